"""FedCA's equations as loops over Python floats, written from the paper and not from our code."""

import math
from collections.abc import Sequence

from tests.naive import Matrix, cross_entropy, dot, unit


def contrast(first: Matrix, second: Matrix, dictionary: Matrix, t: float) -> float:
    """Eq. 4 to 8: an (N + K)-classification whose labels are 0 .. N - 1."""
    total = [[dot(z, other) / t for other in [*second, *dictionary]] for z in first]
    return cross_entropy(total, range(len(first)))


def ensembled(rounds: Sequence[Sequence[float]], alpha: float) -> tuple[list[float], list[float]]:
    """Eq. 9 and 10 for one sample over rounds t = 1, 2, ..: (Z^t, z~^t), with the correction written out."""
    z_bar = [0.0] * len(rounds[0])
    for z in rounds:
        z_bar = [alpha * old + (1 - alpha) * new for old, new in zip(z_bar, z, strict=True)]
    corrected = [value / (1 - alpha ** len(rounds)) for value in z_bar]
    return z_bar, unit(corrected)


def alignment(h_u: Matrix, z_u: Matrix, h_align: Matrix, z_align: Matrix) -> float:
    """Eq. 11 to 13."""

    def squared(targets: Matrix, outputs: Matrix) -> float:
        return math.fsum(
            math.fsum((a - b) ** 2 for a, b in zip(target, output, strict=True))
            for target, output in zip(targets, outputs, strict=True)
        )

    return squared(h_align, h_u) + squared(z_align, z_u)
