"""What an actor costs: measured by benchmarks/actor_costs.py, documented in docs/engine.md."""

from dataclasses import dataclass

from rayfed_ssl.capacity.client_cost import StepCost

ACTOR_BYTES = 352_000_000
"""Private memory of a client actor that has opened its data, before its first step (torch 2.15 with CUDA)."""

ACTOR_START = 2.0
"""Core-seconds until a client actor is ready; nearly all of it is importing torch."""

ACTOR_IDLE = 0.005
"""Cores that an idle actor uses."""


@dataclass(frozen=True)
class ActorCost:
    """Bytes of memory (0: unknown) and GPU memory that a client actor takes in a step, measured here or estimated.

    `busy` is the part of its time in which a step keeps the GPU busy; None if unknown.
    """

    memory: int = 0
    gpu_memory: int = 0
    is_measured: bool = False
    busy: float | None = None

    @classmethod
    def of(cls, step: StepCost) -> "ActorCost":
        """Add the actor's own memory to that of the step."""
        return cls(ACTOR_BYTES + step.memory, step.gpu_memory, step.is_measured, step.busy)
