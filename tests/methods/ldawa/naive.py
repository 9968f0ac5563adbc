"""L-DAWA's aggregation as loops over Python floats, written from the method's description and not from our code."""

import math
from collections.abc import Sequence

Layer = Sequence[float]


def cosine(first: Layer, second: Layer) -> float:
    """delta; 1 where one of the layers has no direction."""
    lengths = math.sqrt(math.fsum(a * a for a in first)) * math.sqrt(math.fsum(b * b for b in second))
    if lengths == 0:
        return 1.0
    value = math.fsum(a * b for a, b in zip(first, second, strict=True)) / lengths
    return 1.0 if value > 1 else value


def layer(locals_: Sequence[Layer], reference: Layer, *, renormalize: bool) -> list[float]:
    """w <- sum_k delta_k w_k over K, or over the sum of |delta_k|."""
    angles = [cosine(local, reference) for local in locals_]
    divisor = math.fsum(abs(a) for a in angles) if renormalize else float(len(locals_))
    if divisor == 0:
        return list(reference)
    return [
        math.fsum(angle * local[i] for angle, local in zip(angles, locals_, strict=True)) / divisor
        for i in range(len(reference))
    ]
