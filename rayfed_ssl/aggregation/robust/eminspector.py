"""EmInspector: local models that see pictures alike are hostile.

Qian, Wu, Wei, et al.: EmInspector: Combating Backdoor Attacks in Federated Self-Supervised Learning Through Embedding
Inspection, 2024 (arXiv 2405.13080). Embeddings of backdoored models lie closer together than honest ones. Somebody is always
above the mean: without an attacker it drops about half of the clients.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.aggregation.robust.geometry import even
from rayfed_ssl.aggregation.robust.rule import Rule


@dataclass(frozen=True, kw_only=True)
class EmInspector(Rule):
    """Drop clients whose features of public pictures lie closest to all others'."""

    needs_public: ClassVar = True
    before: ClassVar = None  # type: ignore[misc]

    def of_features(self, features: Tensor) -> Tensor:
        """Weights [n] from features [n, N, d] of N pictures by each client's model.

        S_k = sum_j <F_k, F_j>, its own too; a picture counts +1 where S_k is at least the mean, else -1; a client with a sum
        above 0 is dropped.
        """
        units = F.normalize(features.double(), dim=2)
        sums = torch.einsum("knd,nd->kn", units, units.sum(dim=0))
        counts = torch.where(sums >= sums.mean(dim=0), 1, -1).sum(dim=1)
        kept = (counts <= 0).nonzero().flatten()
        return even(kept if len(kept) else torch.arange(len(features)), len(features))
