"""How many client actors are to share a GPU: as many as what one leaves idle is worth, and as its memory carries."""

import math

from actors.cluster.mps import MAX_CLIENTS
from actors.placement.actor_cost import ActorCost
from rayfed_ssl.engine.gpu_memory import CONTEXT_BYTES

TURNS = 1.45
"""Factor on the time that a GPU is busy where actors take turns: fitted to two and four on an H100 (docs/gpu.md)."""

ENOUGH = 0.75
"""Part of the most that any number of actors would reach at which more of them are not worth their memory."""


def speedup(actors: int, busy: float, *, mps: bool) -> float:
    """Estimate how much faster actors on a GPU are than one, by Amdahl's law.

    Args:
        actors: How many share the GPU.
        busy: Part of its time in which one actor keeps the GPU busy, in (0, 1]: no other can use that part.
        mps: Whether they have MPS.
    """
    return actors / (1 + (actors - 1) * _serial(busy, mps))


def worthwhile(busy: float, *, mps: bool) -> int:
    """Count the actors that reach ENOUGH of the limit of `speedup`."""
    serial = _serial(busy, mps)
    number = max(1, math.ceil(ENOUGH / (1 - ENOUGH) * (1 / serial - 1) - 1e-9))
    return min(number, MAX_CLIENTS - 1) if mps else number  # the server is a client of MPS, too


def fitting(memory: float, cost: ActorCost) -> int:
    """Count the actors that fit into bytes of a GPU beside the server, which has a CUDA context of its own."""
    return int(max(0, memory - CONTEXT_BYTES) // max(1, cost.gpu_memory))


def actors_per_gpu(cost: ActorCost, memory: float, *, mps: bool) -> int:
    """Choose how many actors share a GPU with so many bytes: one where memory or what a step leaves idle is not known."""
    if not (cost.gpu_memory and cost.busy and memory):
        return 1
    return max(1, min(worthwhile(cost.busy, mps=mps), fitting(memory, cost)))


def reason(actors: int, cost: ActorCost, memory: float, *, mps: bool) -> str:
    """Say why so many actors share a GPU."""
    if not cost.busy:
        return "how busy a step keeps its GPU is not known, as nvidia-smi did not say"
    factor, limit = speedup(actors, cost.busy, mps=mps), 1 / _serial(cost.busy, mps)
    return (
        f"a step keeps its GPU busy for {cost.busy:.0%} of the time: actors on it {'with' if mps else 'without'} MPS are at "
        f"most {limit:.1f} times as fast as one, {actors} of them {factor:.1f} times; memory carries {fitting(memory, cost)}"
    )


def _serial(busy: float, mps: bool) -> float:
    return min(1.0, busy if mps else TURNS * busy)
