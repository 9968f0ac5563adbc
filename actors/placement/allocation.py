"""How many client actors a run gets and what each reserves, computed or refused before any actor is created."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from actors.cluster.machine import Node
from actors.errors import ClusterError
from actors.placement.actor_cost import ActorCost
from actors.placement.gpu_sharing import actors_per_gpu
from rayfed_ssl.config.sections import Engine
from rayfed_ssl.engine.gpu_memory import even_share
from rayfed_ssl.formats import size

RESOURCE_UNITS = 10_000
"""Ray counts resources in ten-thousandths."""

UNKNOWN = ActorCost()


@dataclass(frozen=True)
class Placement:
    """The number of client actors, and the cores, GPUs and bytes that Ray reserves for each.

    `device` is where all actors compute, the server's too, and `cost` what each takes.
    """

    num_actors: int
    cpus: float
    gpus: float
    device: str
    memory: int = 0
    cost: ActorCost = UNKNOWN

    @property
    def per_gpu(self) -> int:
        """Count the actors on a GPU that several share."""
        return max(1, min(math.floor(1 / self.gpus + 1e-9), self.num_actors)) if self.gpus else 0


def allocate(
    engine: Engine,
    num_clients: int,
    nodes: Sequence[Node],
    *,
    use_gpu: bool,
    cost: ActorCost = UNKNOWN,
    mps: bool = False,
) -> Placement:
    """Fit the client actors into the machines, or raise `ClusterError`; Ray itself would wait without a message.

    `mps` says whether actors that share a GPU have MPS.
    """
    num_gpus = int(sum(node.gpus for node in nodes))
    _check_gpus(engine, num_gpus, use_gpu)
    is_shared = use_gpu and engine.gpus_per_actor is None
    gpus = engine.gpus_per_actor or 0.0
    if is_shared:
        gpus = even_share(1 / actors_per_gpu(cost, min(node.gpu_memory for node in nodes if node.gpus), mps=mps))
    automatic = int(min(num_clients, _capacity(nodes, max(engine.cpus_per_actor, 1.0), gpus, cost.memory)))
    by_name = {"auto": automatic, "per-client": num_clients}
    number = max(1, min(num_clients, by_name[engine.actors] if isinstance(engine.actors, str) else engine.actors))
    if is_shared:
        gpus = math.floor(RESOURCE_UNITS / math.ceil(number / num_gpus)) / RESOURCE_UNITS
    capacity = _capacity(nodes, engine.cpus_per_actor, gpus, cost.memory)
    if number > _capacity(nodes, engine.cpus_per_actor, gpus):
        raise ClusterError(_refusal(engine, number, gpus, int(capacity), nodes, UNKNOWN))
    # An estimate may be too high, and the object store takes less than its share where actors need it.
    largest = max((node.memory + node.store for node in nodes), default=0.0)
    is_certain = number > 1 or cost.is_measured or (not use_gpu and cost.memory > largest)
    if number > capacity and is_certain:
        raise ClusterError(_refusal(engine, number, gpus, int(capacity), nodes, cost))
    memory = int(min(cost.memory, max((node.memory for node in nodes), default=0.0)))
    return Placement(number, engine.cpus_per_actor, gpus, "cuda" if use_gpu else "cpu", memory, cost)


def _check_gpus(engine: Engine, num_gpus: int, use_gpu: bool) -> None:
    per_actor = engine.gpus_per_actor or 0.0
    if use_gpu and not num_gpus:
        raise ClusterError("engine.device=cuda needs a GPU, but Ray has none: set engine.device=cpu")
    if per_actor and not use_gpu:
        awaited = ", or wait until machines with GPUs have joined" if engine.device == "auto" and not num_gpus else ""
        raise ClusterError(
            f"engine.gpus_per_actor={per_actor:g} has no meaning where actors compute on the CPU (Ray has {num_gpus} GPUs, "
            f"engine.device={engine.device}): remove it{awaited}"
        )
    if per_actor > 1 and per_actor != int(per_actor):
        raise ClusterError(f"engine.gpus_per_actor must be a whole number where it is above 1, got {per_actor:g}")


def _capacity(nodes: Sequence[Node], cpus: float, gpus: float, memory: int = 0) -> float:
    """Count the actors that fit; an actor spans neither machines nor, with a fraction, GPUs."""

    def of_node(node: Node) -> float:
        by_cpu = math.floor(node.cpus / cpus + 1e-9) if cpus else math.inf
        by_memory = math.floor(node.memory / memory) if memory and node.memory else math.inf
        return min(by_cpu, by_memory, _gpu_slots(node, gpus))

    return sum(map(of_node, nodes))


def _gpu_slots(node: Node, gpus: float) -> float:
    if not gpus:
        return math.inf
    whole = math.floor(node.gpus)
    return whole // int(gpus) if gpus >= 1 else whole * math.floor(1 / gpus + 1e-9)


def _refusal(engine: Engine, number: int, gpus: float, capacity: int, nodes: Sequence[Node], cost: ActorCost) -> str:
    cpus, all_gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    each = f"{engine.cpus_per_actor:g} CPUs" + f" and {gpus:g} GPUs" * bool(gpus)
    lower = "engine.cpus_per_actor" + " or engine.gpus_per_actor" * bool(gpus)
    there = f"{cpus:g} CPUs and {all_gpus:g} GPUs"
    if cost.memory:
        source = "as measured here" if cost.is_measured else "by estimate; `rayfed-ssl doctor --measure` measures it"
        each, lower = f"{size(cost.memory)} ({source})", "training.batch"
        there = f"{size(sum(node.memory for node in nodes))} of memory that it leaves them"
    advice = f"set engine.actors={capacity}, or lower" if capacity else "lower"
    asked = engine.actors if isinstance(engine.actors, int) else number
    most = f" (engine.actors={asked}, and one a client is the most)" if asked > number else ""
    what = f"{number} client actors{most} of {each} each"
    return f"{what} do not fit into Ray's {there}, where {capacity} fit: {advice} {lower}"
