"""EncoderMI: views of a picture that the encoder was trained on are embedded closer to each other.

Liu, Jia, Qu, Gong: EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive Learning, CCS 2021
(arXiv 2108.11023). Symbols: n views of a picture, h_i their features; S the n (n - 1) / 2 cosines between them.

Deviation: the score is the mean of S, the threshold form EncoderMI-T; its vector and set classifiers need a shadow encoder.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.attacks.attack import Seen
from rayfed_ssl.attacks.membership import Membership
from rayfed_ssl.attacks.model_theft import embed
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model


def mean_cosine(features: Tensor) -> Tensor:
    """Mean of S for features [n, N, d] of n views of N pictures; [N].

    Of unit-length h_i, all n^2 cosines add up to ||sum_i h_i||^2, of which n are 1.
    """
    num_views = len(features)
    total = F.normalize(features, dim=2).sum(0).square().sum(1)
    return (total - num_views) / (num_views * (num_views - 1))


@dataclass(frozen=True, kw_only=True)
class EncoderMI(Membership):
    """Mean cosine between features of views."""

    knows: ClassVar = ("views",)
    views: Annotated[int, Field(ge=2, le=1000)] = 10
    """n (section 5.1)."""

    def scores(self, seen: Seen, model: Model, samples: Shard) -> Tensor:
        """Mean of S, in [-1, 1]."""
        random, images = seen.generator(1), samples.batch(torch.arange(len(samples)))
        views = (seen.task.augment(images, seen.task.views.first, random) for _ in range(self.views))
        return mean_cosine(torch.stack([embed(seen, model, view)[0] for view in views]))
