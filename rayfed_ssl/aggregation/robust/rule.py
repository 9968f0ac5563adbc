"""What a robust rule is: it stands in the place of the mean of clients' weights, so that few of them cannot move it far.

Symbols: n uploads of a round, f of them hostile at most; x_k how far client k's weights are from what it received; G their
inner products [n, n]; z the rule's result. Rules that need G alone give z = sum_k a_k x_k by weights a, so that no stack of
uploads is held; others look at all values of a coordinate, piece by piece.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.aggregation.robust.mixing import MIXTURES
from rayfed_ssl.validation import Validated


@dataclass(frozen=True, kw_only=True)
class Rule(Validated, ABC):
    """A rule with its fields; functions depend on their arguments alone.

    Class attributes:
        needs_public: Whether the server trains or looks at public pictures.
        remembers: Whether differences are those of all rounds so far, added up by client.
    """

    needs_public: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    hostile: NonNegativeInt = 1
    """f, hostile clients in a round at most."""
    before: Literal["nnm", "bucketing", "arc"] | None = None
    """What uploads are mixed by before: "nnm" (mean of the n - f nearest), "bucketing" (means of two neighbors in a random
    order) or "arc" (the longest are clipped).
    """

    @property
    def least(self) -> int:
        """The fewest uploads of a round that the rule works with: a majority is honest."""
        return 2 * self.hostile + 1

    def check(self, number: int) -> None:
        """Refuse rounds of too few uploads, of which bucketing leaves half.

        Raises:
            ValueError: There are fewer than the rule needs.
        """
        least = 2 * self.least - 1 if self.before == "bucketing" else self.least
        if number < least:
            mixed = " and robust.before=bucketing" if self.before == "bucketing" else ""
            raise ValueError(
                f"the rule {type(self).__name__} with robust.hostile={self.hostile}{mixed} needs {least} uploads in a "
                f"round, got {number}: raise clients.number or clients.fraction, or lower robust.hostile"
            )

    def mixture(self, gram: Tensor, generator: torch.Generator) -> Tensor:
        """Give the matrix [m, n] of float64 by which uploads are mixed before; without `before` they stay what they are."""
        if self.before is None:
            return torch.eye(len(gram), dtype=torch.float64)
        return MIXTURES[self.before](gram, self.hostile, generator)


@dataclass(frozen=True, kw_only=True)
class GramRule(Rule):
    """A rule that needs inner products alone."""

    @abstractmethod
    def weights(self, gram: Tensor) -> Tensor:
        """Give a [n] from G [n, n], both float64; ties go to the first."""

    def deviation(self, gram: Tensor) -> float:
        """Give the standard deviation of Gaussian noise on each number of z; by default there is none."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class CoordinateRule(Rule):
    """A rule that looks at all values of a coordinate."""

    def rows(self, gram: Tensor) -> Tensor | None:
        """Choose uploads by G, int64 ascending; None, the default, takes all."""
        return None

    @abstractmethod
    def combine(self, values: Tensor) -> Tensor:
        """Give z [p] from the uploads' values [n, p], both float64."""
