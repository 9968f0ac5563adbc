"""Bulyan: uploads that Krum chooses one after the other, then the mean around the median of each coordinate.

El Mhamdi, Guerraoui, Rouault: The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018. Krum chooses
theta = n - 2 f uploads repeatedly, each among those that are left; Flower chooses once, which gives other results.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.aggregation.robust.coordinates import around_median
from rayfed_ssl.aggregation.robust.krum import scores
from rayfed_ssl.aggregation.robust.rule import CoordinateRule


@dataclass(frozen=True, kw_only=True)
class Bulyan(CoordinateRule):
    """Average around the median what Krum chooses repeatedly."""

    @property
    def least(self) -> int:
        """A round has at least 4 f + 3 uploads."""
        return 4 * self.hostile + 3

    def rows(self, gram: Tensor) -> Tensor:
        """Theta uploads, the best of those that are left each time."""
        left, chosen = list(range(len(gram))), list[int]()
        while len(chosen) < len(gram) - 2 * self.hostile:
            best = int(scores(gram[left][:, left], self.hostile).argmin())
            chosen.append(left.pop(best))
        return torch.tensor(sorted(chosen))

    def combine(self, values: Tensor) -> Tensor:
        """The mean of the theta - 2 f values nearest the median."""
        return around_median(values, len(values) - 2 * self.hostile)
