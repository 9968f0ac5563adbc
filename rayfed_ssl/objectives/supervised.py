"""Supervised cross entropy: the papers' labeled comparison, not a self-supervised objective.

FLESD's Figure 2 trains it for 100 epochs with Adam 1e-3 and batches of 128; FedCA and FCL average it as "FedAvg".

Deviations: none of the papers gives the augmentation, so a batch sees one view of the run's first recipe.
"""

import math
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import nn
from torch.nn import functional as F

from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Objective, StepOutput


@dataclass(frozen=True, kw_only=True)
class Supervised(Objective):
    """Cross entropy of a linear classifier on top of the encoder."""

    needs_labels: ClassVar[bool] = True
    classifies: ClassVar[bool] = True
    fixed_head: ClassVar[bool] = True
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

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Classify one random view of each image."""
        assert batch.labels is not None, "the engine gives labels to objectives that need them"
        view = context.augment(batch.images, context.views.first, generator)
        with context.autocast():
            _, scores = model(view)
        return StepOutput(F.cross_entropy(scores, batch.labels), scores)
