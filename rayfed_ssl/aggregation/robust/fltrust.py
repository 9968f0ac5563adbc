"""FLTrust: the server trains too, and trusts clients that go its way.

Cao, Fang, Liu, Gong: FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021. The server's clean set
is the public data, and its step is a client's: the run's objective for as many epochs.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.aggregation.robust.geometry import lengths
from rayfed_ssl.aggregation.robust.rule import GramRule


@dataclass(frozen=True, kw_only=True)
class FLTrust(GramRule):
    """Weigh clients by the cosine to the server's own step on public data, at its length."""

    needs_public: ClassVar = True
    before: ClassVar = None  # type: ignore[misc]

    def weights(self, gram: Tensor) -> Tensor:
        """Sum t_k (||x_0|| / ||x_k||) x_k / sum t_k with t_k = max(0, cos(x_k, x_0)); nothing if the sum is 0.

        The last row of G is x_0, which gets no weight.
        """
        long = lengths(gram)
        own = long[-1]
        cosines = gram[-1] / (long * own).clamp(min=1e-300)
        trust = cosines.clamp(min=0)
        trust[-1] = 0
        total = trust.sum()
        return torch.where(total > 0, trust * own / (long.clamp(min=1e-300) * total.clamp(min=1e-300)), 0.0)
