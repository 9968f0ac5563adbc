"""How many client actors there are, and what each of them reserves: worked out, or refused, before any is made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from actors.cluster.connect import ClusterError, Node
from actors.placement.actor_cost import ACTOR_IDLE, Need
from rayfed_ssl.config.sections import Engine
from rayfed_ssl.engine.gpu_memory import CONTEXT_BYTES, Gpu, even_share

GRAIN = 10_000
"""Ray counts resources in ten-thousandths."""

NOTHING = Need()


@dataclass(frozen=True)
class Placement:
    """Client actors and their share of the machines.

    Attributes:
        num_actors: Processes that run clients' steps.
        cpus: Cores that Ray reserves for each.
        gpus: GPUs that Ray reserves for each, a fraction where several share one.
        device: Where every actor computes, the server's too: "cpu" or "cuda".
        memory: Bytes that Ray reserves for each, so that no machine gets more of them than it carries.
        need: What each of them takes.
        note: What the user may want to know of it, or "".
    """

    num_actors: int
    cpus: float
    gpus: float
    device: str
    memory: int = 0
    need: Need = NOTHING
    note: str = ""

    @property
    def shares_gpus(self) -> bool:
        """Whether several actors compute on one GPU."""
        return 0 < self.gpus < 1

    @property
    def per_gpu(self) -> int:
        """Count the actors on a GPU where several share it."""
        return max(1, min(math.floor(1 / self.gpus + 1e-9), self.num_actors)) if self.gpus else 0


def place(engine: Engine, num_clients: int, nodes: Sequence[Node], *, use_gpu: bool, need: Need = NOTHING) -> Placement:
    """Fit the client actors that are asked for into the machines that are there.

    Args:
        engine: Number of actors and what each reserves.
        num_clients: There are never more actors than clients.
        nodes: The machines.
        use_gpu: Whether everybody computes on a GPU.
        need: What one actor takes; the default limits nothing.

    Raises:
        ClusterError: They do not fit; Ray itself would wait for ever, and say nothing.
    """
    num_gpus = int(sum(node.gpus for node in nodes))
    _check_gpus(engine, num_gpus, use_gpu)
    is_shared = use_gpu and engine.gpus_per_actor is None
    whole = 1.0 if is_shared else engine.gpus_per_actor or 0.0
    automatic = _automatic(engine, num_clients, nodes, whole, need)
    number = max(1, min(num_clients, _asked(engine.actors, num_clients, automatic)))
    gpus = math.floor(GRAIN / math.ceil(number / num_gpus)) / GRAIN if is_shared else whole
    carried = _room(nodes, engine.cpus_per_actor, gpus, need.memory)
    if number > _room(nodes, engine.cpus_per_actor, gpus):
        raise ClusterError(_refusal(engine, number, gpus, int(carried), nodes))
    if number > carried and (number > 1 or need.is_measured):
        raise ClusterError(_too_large(number, int(carried), nodes, need))
    largest = max((node.memory for node in nodes), default=0.0)
    memory = int(min(need.memory, largest))
    note = _cost_of_many(number, automatic) if engine.actors == "per-client" else ""
    return Placement(number, engine.cpus_per_actor, gpus, "cuda" if use_gpu else "cpu", memory, need, note)


def _asked(actors: str | int, num_clients: int, automatic: int) -> int:
    if actors == "auto":
        return automatic
    return num_clients if actors == "per-client" else int(actors)


def _automatic(engine: Engine, num_clients: int, nodes: Sequence[Node], gpus: float, need: Need) -> int:
    """One actor for each core or GPU, as many as each machine's memory carries, and no more than clients."""
    return int(min(num_clients, _room(nodes, max(engine.cpus_per_actor, 1.0), gpus, need.memory)))


def _check_gpus(engine: Engine, num_gpus: int, use_gpu: bool) -> None:
    asked = engine.gpus_per_actor or 0.0
    if use_gpu and not num_gpus:
        raise ClusterError("engine.device=cuda needs a GPU, but Ray has none: set engine.device=cpu")
    if asked and not use_gpu:
        raise ClusterError(
            f"engine.gpus_per_actor={asked:g} has no meaning where actors compute on the CPU (Ray has {num_gpus} GPUs, "
            f"engine.device={engine.device}): remove it or set engine.device=cuda"
        )
    if asked > 1 and asked != int(asked):
        raise ClusterError(f"engine.gpus_per_actor must be a whole number where it is above 1, got {asked:g}")


def _room(nodes: Sequence[Node], cpus: float, gpus: float, memory: int = 0) -> float:
    """Count the actors that find room; an actor spans neither machines nor, with a fraction, GPUs."""
    return sum(min(_cpu_room(node, cpus), _gpu_room(node, gpus), _memory_room(node, memory)) for node in nodes)


def _cpu_room(node: Node, cpus: float) -> float:
    return math.floor(node.cpus / cpus + 1e-9) if cpus else math.inf


def _gpu_room(node: Node, gpus: float) -> float:
    if not gpus:
        return math.inf
    there = math.floor(node.gpus)
    return there // int(gpus) if gpus >= 1 else there * math.floor(1 / gpus + 1e-9)


def _memory_room(node: Node, memory: int) -> float:
    return math.floor(node.memory / memory) if memory and node.memory else math.inf


def _refusal(engine: Engine, number: int, gpus: float, room: int, nodes: Sequence[Node]) -> str:
    cpus, there = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    each = f"{engine.cpus_per_actor:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
    advice = f"set engine.actors={room}, or lower" if room else "lower"
    return (
        f"{number} client actors of {each} each do not fit into Ray's {cpus:g} CPUs and {there:g} GPUs, "
        f"where {room} find room: {advice} engine.cpus_per_actor{' or engine.gpus_per_actor' if gpus else ''}"
    )


def _too_large(number: int, carried: int, nodes: Sequence[Node], need: Need) -> str:
    there = sum(node.memory for node in nodes)
    known = "as measured here" if need.is_measured else "by estimate; `rayfed-ssl doctor --measure` measures it"
    advice = f"set engine.actors={carried}, or lower training.batch" if carried else "lower training.batch"
    return (
        f"{number} client actors of {_gb(need.memory)} each ({known}) do not fit into the {_gb(there)} of memory that "
        f"Ray leaves them, where {carried} find room: {advice}"
    )


def _cost_of_many(number: int, automatic: int) -> str:
    """Tell what actors beyond one a core cost."""
    if number <= automatic:
        return ""
    return (
        f"engine.actors=per-client makes {number} actors; engine.actors=auto would make {automatic} with the same results, "
        f"and each of the others takes about {ACTOR_IDLE:.1%} of a core while it waits"
    )


def check_gpu_memory(placement: Placement, need: Need, gpus: Sequence[Gpu]) -> None:
    """Refuse, before the first round, actors that would run out of the memory of the GPUs that they share.

    An estimate alone refuses no single actor on a GPU that nobody else uses.

    Args:
        placement: The actors.
        need: What one of them takes.
        gpus: The GPUs as they were before any actor was there; () where that is not known.

    Raises:
        ClusterError: They do not fit.
    """
    together = placement.per_gpu
    for gpu in gpus if together and need.gpu_memory else ():
        sure = together > 1 or need.is_measured or gpu.is_crowded
        if sure and together > gpu_carries(gpu, need):
            raise ClusterError(_gpu_refusal(gpu, together, need))


def gpu_carries(gpu: Gpu, need: Need) -> int:
    """Count the actors that find room beside the server, which holds a context of its own."""
    return max(0, gpu.free - CONTEXT_BYTES) // need.gpu_memory


def _gpu_refusal(gpu: Gpu, together: int, need: Need) -> str:
    fit = gpu_carries(gpu, need)
    crowd = ": another process uses it" if gpu.is_crowded else ""
    share = f"set engine.gpus_per_actor={even_share(1 / fit):g}" if fit else "lower training.batch"
    known = "as measured" if need.is_measured else "by estimate"
    return (
        f"GPU {gpu.index} has {_gb(gpu.free)} of {_gb(gpu.total)} free{crowd}; {together} client actors of "
        f"{_gb(need.gpu_memory)} each ({known}) and the server's {_gb(CONTEXT_BYTES)} do not fit: {share}, or take another "
        "GPU with CUDA_VISIBLE_DEVICES"
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
