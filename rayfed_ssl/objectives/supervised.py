"""Supervised cross entropy: the papers' labeled comparison, not a self-supervised objective.

FLESD's Figure 2 trains it for 100 epochs with Adam 1e-3 and batches of 128; FedCA and FCL average it as "FedAvg".

Deviations: none of the papers gives the augmentation, so a batch sees one view of the run's first recipe.
"""

import math
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, PerSample, StepOutput


@dataclass(frozen=True, kw_only=True)
class Supervised(PerSample):
    """Cross entropy of a linear classifier on top of the encoder."""

    needs_labels: ClassVar[bool] = True
    classifies: ClassVar[bool] = True
    fixed_head: ClassVar[bool] = True
    compares_views: ClassVar[bool] = False
    num_views: ClassVar = 1
    num_classes: int = 0
    """Width of the classifier; the engine fills it in from the dataset."""

    @property
    def head(self) -> Head:
        """One linear layer from features to class scores."""
        return Head("linear", self.num_classes)

    def chance_loss(self, batch: int) -> float:
        """The logarithm of the number of classes."""
        return math.log(self.num_classes)

    def inputs(self, context: Context, batch: Batch, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw one random view of each image; and its label."""
        assert batch.labels is not None, "the engine gives labels to objectives that need them"
        return context.augment(batch.images, context.views.first, generator), batch.labels

    def loss_of(self, context: Context, model: Model, *inputs: Tensor) -> StepOutput:
        """Classify views."""
        views, labels = inputs
        with context.autocast():
            _, scores = model(views)
        return StepOutput(F.cross_entropy(scores, labels), scores)
