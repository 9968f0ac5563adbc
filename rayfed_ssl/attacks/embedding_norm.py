"""Embedding norm: training on a picture lengthens its projection.

Lp-norm attack on contrastive encoders (arXiv 2506.05743). A contrastive loss does not see lengths, but each of its steps is
orthogonal to the projection that it moves, and so lengthens it.

Deviations: the L2 norm alone, of the projection of the plain picture; longer means member. Only the attack's idea is taken:
its own choice of p and of the direction was not available.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.attacks.attack import Seen
from rayfed_ssl.attacks.membership import Membership
from rayfed_ssl.attacks.model_theft import embed
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model


@dataclass(frozen=True, kw_only=True)
class EmbeddingNorm(Membership):
    """Length of the projection."""

    def scores(self, seen: Seen, model: Model, samples: Shard) -> Tensor:
        """||z||."""
        _, z = embed(seen, model, seen.task.plain(samples.batch(torch.arange(len(samples)))))
        return z.square().sum(1).sqrt()
