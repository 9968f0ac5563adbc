"""FLAME: the largest cluster of directions, clipped at its median length, with a little noise.

Nguyen et al.: FLAME: Taming Backdoors in Federated Learning, USENIX Security 2022. Cosine distances are of differences; the
paper's are of local models, which lie close together. The noise is no privacy: nothing counts it.
"""

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.aggregation.robust.geometry import cosines, lengths, shares_within
from rayfed_ssl.aggregation.robust.rule import GramRule


@dataclass(frozen=True, kw_only=True)
class FLAME(GramRule):
    """Average the largest cluster of directions, clipped at the median length, and add noise."""

    noise: NonNegativeFloat = 0.001
    """lambda: the deviation of the noise over the median length; 0.001 for images (paper)."""

    @property
    def least(self) -> int:
        """A cluster has two uploads at least."""
        return max(2, super().least)

    def weights(self, gram: Tensor) -> Tensor:
        """HDBSCAN by cosine distance, of which a cluster has more than half of the uploads; outliers get no weight."""
        from sklearn.cluster import HDBSCAN

        long = lengths(gram)
        apart = (1 - cosines(gram)).clamp(min=0).fill_diagonal_(0.0)
        smallest = len(gram) // 2 + 1
        clusters = HDBSCAN(
            min_cluster_size=max(2, smallest), min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
        ).fit_predict(apart.numpy())
        inside = torch.tensor(clusters >= 0)
        if not inside.any():
            inside = torch.ones(len(gram), dtype=torch.bool)
        return inside.double() * shares_within(long, long.quantile(0.5)) / inside.sum()

    def deviation(self, gram: Tensor) -> float:
        """Lambda S."""
        return self.noise * float(lengths(gram).quantile(0.5))
