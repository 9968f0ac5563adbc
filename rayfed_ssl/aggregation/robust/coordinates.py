"""Rules by coordinate: median and trimmed mean.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018. Of an
even number the median is the mean of the two middle values, as NumPy's.

The mean around the median (Meamed): Xie, Koyejo, Gupta: Generalized Byzantine-tolerant SGD, 2018.
"""

from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.aggregation.robust.rule import CoordinateRule


def middle(values: Tensor) -> Tensor:
    """The median of each coordinate [p] of [n, p]."""
    ordered = values.sort(dim=0).values
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def around_median(values: Tensor, count: int) -> Tensor:
    """The mean of the `count` values nearest the median, by coordinate."""
    nearest = (values - middle(values)).abs().argsort(dim=0, stable=True)[:count]
    return values.gather(0, nearest).mean(dim=0)


@dataclass(frozen=True, kw_only=True)
class Median(CoordinateRule):
    """Take the median of each coordinate."""

    def combine(self, values: Tensor) -> Tensor:
        """The middle value, or the mean of the two middle ones."""
        return middle(values)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(CoordinateRule):
    """Average each coordinate without its f largest and f smallest values."""

    def combine(self, values: Tensor) -> Tensor:
        """The mean of the n - 2 f values in the middle."""
        return values.sort(dim=0).values[self.hostile : len(values) - self.hostile].mean(dim=0)


@dataclass(frozen=True, kw_only=True)
class Meamed(CoordinateRule):
    """Average the n - f values nearest the median of each coordinate."""

    def combine(self, values: Tensor) -> Tensor:
        """The mean around the median."""
        return around_median(values, len(values) - self.hostile)
