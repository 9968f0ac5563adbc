"""FoolsGold: clients that go the same way in all rounds are one attacker with many names.

Fung, Yoon, Beschastnikh: The Limitations of Federated Learning in Sybil Settings, RAID 2020. A single hostile client passes
unseen, and honest clients of equal data are punished. Histories are of all parameters; the paper's may be of a last layer.
"""

from typing import ClassVar

import torch
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.aggregation.robust.geometry import cosines, even
from rayfed_ssl.aggregation.robust.rule import GramRule


@dataclass(frozen=True, kw_only=True)
class FoolsGold(GramRule):
    """Average clients the less, the more alike the sums of their changes over all rounds are."""

    remembers: ClassVar = True
    before: ClassVar = None  # type: ignore[misc]
    confidence: PositiveFloat = 1.0
    """kappa, how steeply weights fall."""

    def weights(self, gram: Tensor) -> Tensor:
        """The weights of clients whose histories have the inner products G, brought to sum 1; the mean if all are alike.

        c_ij = cos(H_i, H_j), times v_i / v_j where v_j = max_k c_jk is the larger; a_i = 1 - max_j c_ij over the largest;
        kappa (ln(a_i / (1 - a_i)) + 1/2), in [0, 1]. c_ii is 0 (code), so that v_i is 0 of a client that is like nobody.
        """
        alike = cosines(gram).fill_diagonal_(0)
        most = alike.max(dim=1).values
        pardoned = alike * torch.where(most[None, :] > most[:, None], most[:, None] / most[None, :], 1.0)
        unlike = (1 - pardoned.max(dim=1).values).clamp(0, 1)
        if float(unlike.max()) < 1e-9:
            return even(torch.arange(len(gram)), len(gram))
        unlike = (unlike / unlike.max()).clamp(max=0.99)
        shares = (self.confidence * (torch.logit(unlike) + 0.5)).clamp(0, 1)
        return shares / shares.sum()
