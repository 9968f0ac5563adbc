"""The geometric median: the point from which the sum of distances is least.

RFA: Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning, IEEE TSP 2022, smoothed Weiszfeld iterations
from the mean. Clients count alike.
"""

import torch
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.aggregation.robust.geometry import from_combination
from rayfed_ssl.aggregation.robust.rule import GramRule


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(GramRule):
    """Take the point with the least sum of distances."""

    smoothing: PositiveFloat = 1e-6
    """nu: distances below count as nu."""
    steps: PositiveInt = 1000
    """Iterations at most; they end where no weight moves by 1e-12. Uploads far away need hundreds."""

    def weights(self, gram: Tensor) -> Tensor:
        """w_k = 1 / max(nu, ||z - x_k||), z = sum w_k x_k / sum w_k."""
        weights = torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
        for _ in range(self.steps):
            before = weights
            weights = 1 / from_combination(gram, weights).clamp(min=self.smoothing**2).sqrt()
            weights = weights / weights.sum()
            if float((weights - before).abs().max()) < 1e-12:
                break
        return weights
