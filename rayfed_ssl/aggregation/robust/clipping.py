"""Rules that bound how far one upload reaches.

Centered clipping: Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021, from the
weights that clients received in each round; the paper goes on from the last round's result.

Norm bound: Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019, without its noise.
"""

from typing import Annotated

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.aggregation.robust.geometry import from_combination, lengths, shares_within
from rayfed_ssl.aggregation.robust.rule import GramRule


@dataclass(frozen=True, kw_only=True)
class CenteredClipping(GramRule):
    """Move to the mean of what is clipped around where one is, several times."""

    radius: PositiveFloat = 10.0
    """tau, the length to which differences are clipped; ByzFL's 100 is for its models."""
    steps: PositiveInt = 1
    """L."""

    def weights(self, gram: Tensor) -> Tensor:
        """V <- v + mean_k (x_k - v) min(1, tau / ||x_k - v||), L times from 0."""
        number = len(gram)
        center = torch.zeros(number, dtype=torch.float64)
        for _ in range(self.steps):
            apart = from_combination(gram, center)
            shares = shares_within(apart.clamp(min=0).sqrt(), self.radius)
            center = center * (1 - shares.mean()) + shares / number
        return center


@dataclass(frozen=True, kw_only=True)
class NormBound(GramRule):
    """Average what is clipped to a length."""

    length: PositiveFloat | None = None
    """c; None takes a quantile of the round's lengths, as c depends on the model and on the round."""
    quantile: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Of the lengths, in the place of c."""

    def __post_init__(self) -> None:
        if self.length is not None and self.quantile != NormBound.quantile:
            raise ValueError("robust.quantile has no meaning beside robust.length: set one of both")

    def weights(self, gram: Tensor) -> Tensor:
        """The mean of x_k min(1, c / ||x_k||)."""
        long = lengths(gram)
        bound = self.length or float(long.quantile(self.quantile))
        return shares_within(long, bound) / len(gram)
