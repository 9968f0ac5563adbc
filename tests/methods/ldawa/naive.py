"""L-DAWA's aggregation as loops over Python floats, written from the method's description and not from our code."""

import math
from collections.abc import Sequence

from tests.naive import cosine

Layer = Sequence[float]


def layer(locals_: Sequence[Layer], reference: Layer, *, renormalize: bool) -> list[float]:
    """w <- sum_k delta_k w_k over K, or over the sum of |delta_k|, where delta_k is the cosine."""
    angles = [min(cosine(local, reference), 1.0) for local in locals_]
    divisor = math.fsum(abs(a) for a in angles) if renormalize else float(len(locals_))
    return [
        math.fsum(angle * local[i] for angle, local in zip(angles, locals_, strict=True)) / divisor
        for i in range(len(reference))
    ]
