"""FedU's and FedEMA's rules as loops over Python floats, written from the papers' description and not from our code.

Weights are flat: a name, and the list of its numbers.
"""

import math
from collections.abc import Mapping, Sequence

Flat = Mapping[str, Sequence[float]]


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(first, second, strict=True)))


def divergence(before: Flat, after: Flat, convolutions: Sequence[str]) -> float:
    """Mean over the encoder's convolutions of how far the weights of each have moved."""
    return math.fsum(distance(before[name], after[name]) for name in convolutions) / len(convolutions)


def share(scale: float, moved: float) -> float:
    """FedEMA: mu_k = min(lambda_k d_k, 1)."""
    return scale * moved if scale * moved < 1 else 1.0


def scale(tau: float, first_divergence: float) -> float:
    """FedEMA's autoscaler: lambda_k = tau / d_k at the first divergence."""
    return tau / first_divergence


def mixed(own: Sequence[float], received: Sequence[float], mu: float) -> list[float]:
    """FedEMA: mu W_k + (1 - mu) W_g."""
    return [mu * a + (1 - mu) * b for a, b in zip(own, received, strict=True)]
