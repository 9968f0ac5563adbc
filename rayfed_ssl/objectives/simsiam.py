"""SimSiam: predict the other view's projections, which are held still; there are no negatives and no slow encoder.

Chen, He: Exploring Simple Siamese Representation Learning, CVPR 2021. "Code" below is EasyFL.

Symbols: z = projector(encoder(view)) projections [B, p]; p = h(z) predictions [B, p], h the predictor; D negative cosine.

The heads are the paper's for CIFAR, as lightly and solo-learn have them: a two-layer projector d-2048-2048 with batch-norm
after both layers and a predictor that narrows, 2048-512-2048. EasyFL takes BYOL's heads instead, which
`output_norm=false hidden=4096 predictor_hidden=4096` gives.

Deviations:
- For ImageNet the paper's projector has three layers; here it has two, whatever the images.
- The paper keeps the predictor's learning rate constant while the others decay; a run has one schedule for all parts.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models import Model, build_head
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Objective, StepOutput, tiny_batch_notes
from rayfed_ssl.training.state_parts import Rule


def negative_cosine(predictions: Tensor, projections: Tensor) -> Tensor:
    """D(p, stopgrad(z)) = -cos(p, z) by sample (SimSiam, Eq. 1 and 3), [B]; inputs [B, p] have any length."""
    return -(F.normalize(predictions, dim=1) * F.normalize(projections.detach(), dim=1)).sum(1)


@dataclass(frozen=True, kw_only=True)
class SimSiam(Objective):
    """SimSiam's similarity."""

    parts: ClassVar[Mapping[str, Rule]] = {"predictor": "averaged"}
    hidden: PositiveInt = 2048
    """Width of the projector's hidden layer."""
    predictor_hidden: PositiveInt = 512
    """Width of the predictor's hidden layer; a quarter of the projections in the paper."""
    output_norm: bool = True
    """Whether batch-norm without scale and shift follows the projector's last layer (paper; EasyFL: no)."""

    @property
    def head(self) -> Head:
        """The projector, to 2048 dimensions; BYOL's lacks the last norm."""
        return Head("simsiam" if self.output_norm else "byol", 2048, self.hidden)

    def heads(self, context: Context, feature_dim: int, projection_dim: int) -> dict[str, nn.Module]:
        """The predictor h, as wide at both ends as the projections."""
        predictor = build_head("byol-predictor", projection_dim, out=projection_dim, hidden=self.predictor_hidden)
        return {"predictor": predictor}

    def check(self, context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
        """Say where batches are too small."""
        return tiny_batch_notes(context, shard_sizes)

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Mean over samples of D(p1, stopgrad(z2)) / 2 + D(p2, stopgrad(z1)) / 2 (Eq. 4)."""
        views = context.two_views(batch.images, generator)
        predictor = model.part("predictor")
        with context.autocast():
            # Each view is a batch of its own: batch-norm shall not see both (paper, code).
            first, second = (model(view)[1] for view in views)
            predictions = [predictor(projections).float() for projections in (first, second)]
        cosines = negative_cosine(torch.cat(predictions), torch.cat([second, first]))
        return StepOutput(cosines.view(2, -1).sum(0).mean() / 2, first)
