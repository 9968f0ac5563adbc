"""How many client actors there are, and what each of them reserves: worked out, or refused, before any is made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from actors.cluster import ClusterError, Node
from rayfed_ssl.settings import Engine

GRAIN = 10_000
"""Ray counts resources in ten-thousandths."""


@dataclass(frozen=True)
class Placement:
    """Client actors and their share of the machines.

    Attributes:
        num_actors: Processes that run clients' steps.
        cpus: Cores that Ray reserves for each.
        gpus: GPUs that Ray reserves for each, a fraction where several share one.
        device: Where every actor computes, the server's too: "cpu" or "cuda".
    """

    num_actors: int
    cpus: float
    gpus: float
    device: str


def place(engine: Engine, num_clients: int, nodes: Sequence[Node], *, use_gpu: bool) -> Placement:
    """Fit the client actors that are asked for into the machines that are there.

    Args:
        engine: Number of actors and what each reserves.
        num_clients: There are never more actors than clients.
        nodes: The machines.
        use_gpu: Whether everybody computes on a GPU.

    Raises:
        ClusterError: They do not fit; Ray itself would wait for ever, and say nothing.
    """
    num_gpus = int(sum(node.gpus for node in nodes))
    _check_gpus(engine, num_gpus, use_gpu)
    is_shared = use_gpu and engine.gpus_per_actor is None
    whole = 1.0 if is_shared else engine.gpus_per_actor or 0.0
    number = num_clients
    if engine.actors == "auto":
        number = min(num_clients, int(min(_room(nodes, engine.cpus_per_actor, whole), _room(nodes, 1, 0))))
    elif engine.actors != "per-client":
        number = min(num_clients, int(engine.actors))
    number = max(number, 1)
    gpus = math.floor(GRAIN / math.ceil(number / num_gpus)) / GRAIN if is_shared else whole
    room = _room(nodes, engine.cpus_per_actor, gpus)
    if number > room:
        raise ClusterError(_refusal(engine, number, gpus, int(room), nodes))
    return Placement(number, engine.cpus_per_actor, gpus, "cuda" if use_gpu else "cpu")


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


def _room(nodes: Sequence[Node], cpus: float, gpus: float) -> float:
    """Count the actors that find room; an actor spans neither machines nor, with a fraction, GPUs."""
    return sum(min(_cpu_room(node, cpus), _gpu_room(node, gpus)) for node in nodes)


def _cpu_room(node: Node, cpus: float) -> float:
    return math.floor(node.cpus / cpus + 1e-9) if cpus else math.inf


def _gpu_room(node: Node, gpus: float) -> float:
    if not gpus:
        return math.inf
    there = math.floor(node.gpus)
    return there // int(gpus) if gpus >= 1 else there * math.floor(1 / gpus + 1e-9)


def _refusal(engine: Engine, number: int, gpus: float, room: int, nodes: Sequence[Node]) -> str:
    cpus, there = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    each = f"{engine.cpus_per_actor:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
    advice = f"set engine.actors={room}, or lower" if room else "lower"
    return (
        f"{number} client actors of {each} each do not fit into Ray's {cpus:g} CPUs and {there:g} GPUs, "
        f"where {room} find room: {advice} engine.cpus_per_actor{' or engine.gpus_per_actor' if gpus else ''}"
    )
