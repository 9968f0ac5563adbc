"""Krum and Multi-Krum: the uploads nearest to their neighbors.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NIPS 2017.
A score is the sum of squared distances to the n - f - 2 nearest others, as in the paper; ByzFL takes n - f - 1 of them and
their mean.
"""

from typing import ClassVar

import torch
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.aggregation.robust.geometry import distances, even
from rayfed_ssl.aggregation.robust.rule import GramRule


def scores(gram: Tensor, hostile: int) -> Tensor:
    """s_i = sum of ||x_i - x_j||^2 over the n - f - 2 nearest others, at least one, [n]."""
    between = distances(gram)
    between.fill_diagonal_(torch.inf)
    return between.sort(dim=1).values[:, : max(1, len(gram) - hostile - 2)].sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class MultiKrum(GramRule):
    """Average the uploads that are nearest to their neighbors."""

    chosen: PositiveInt | None = None
    """m, uploads that are averaged; None is n - f."""

    @property
    def least(self) -> int:
        """A round has at least 2 f + 3 uploads."""
        return 2 * self.hostile + 3

    def check(self, number: int) -> None:
        """Refuse more uploads to choose than there are, too."""
        super().check(number)
        if (self.chosen or 0) > number:
            raise ValueError(f"robust.chosen={self.chosen} is more than the {number} uploads of a round: lower it")

    def weights(self, gram: Tensor) -> Tensor:
        """The mean of the m uploads with the smallest scores."""
        number = min(self.chosen or len(gram) - self.hostile, len(gram))
        return even(scores(gram, self.hostile).argsort(stable=True)[:number], len(gram))


@dataclass(frozen=True, kw_only=True)
class Krum(MultiKrum):
    """Take the upload that is nearest to its neighbors."""

    chosen: ClassVar = 1  # type: ignore[misc]
