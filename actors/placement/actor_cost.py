"""What processes cost here: measured by benchmarks/actor_costs.py, told in docs/engine.md, used by placement and doctor."""

from dataclasses import dataclass

from rayfed_ssl.engine.client_cost import StepCost

ACTOR_BYTES = 352_000_000
"""Private memory of a client actor that has opened its data, before its first step (torch 2.15 with CUDA)."""

ACTOR_START = 2.0
"""Core-seconds until a client actor is ready; nearly all of it is importing torch."""

ACTOR_IDLE = 0.005
"""Cores that an actor takes while it does nothing."""


@dataclass(frozen=True)
class Need:
    """What one client actor takes of its machine while it runs a step.

    Attributes:
        memory: Bytes of memory; 0 where nothing is known.
        gpu_memory: Bytes of its GPU.
        is_measured: Whether such a step was run here, or is only estimated.
    """

    memory: int = 0
    gpu_memory: int = 0
    is_measured: bool = False

    @classmethod
    def of(cls, cost: StepCost) -> "Need":
        """Add an actor to the step that it runs."""
        return cls(ACTOR_BYTES + cost.memory, cost.gpu_memory, cost.is_measured)
