"""VICReg: equal projections of two views, of a deviation of 1 in every dimension and without correlation between dimensions.

Bardes, Ponce, LeCun: VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning, ICLR 2022. "Code"
below is the authors' (facebookresearch/vicreg).

Symbols: z projections of a view [B, p]; s invariance, v variance, c covariance; lambda, mu, nu their weights.

Deviations: s is the mean over dimensions and v that of both views (code), where the paper has the sums. The expander is 2048
wide, as solo-learn has it for CIFAR-10, and 8192 in the paper. Its last layer has a bias, on which no term depends.
"""

from typing import ClassVar

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Objective, StepOutput, project_views

EPS = 1e-4
"""Under the square root of v (paper, section 4.2)."""


def variance_loss(projections: Tensor) -> Tensor:
    """The mean (v, eq. 1) of max(0, 1 - sqrt(Var + eps)) over the dimensions of [B, p], B at least 2; a scalar in [0, 1]."""
    return F.relu(1 - (projections.var(0) + EPS).sqrt()).mean()


def covariance_loss(projections: Tensor) -> Tensor:
    """The sum (c, eq. 4) of the squared covariances of different dimensions of [B, p], B at least 2, over p; a scalar."""
    centered = projections - projections.mean(0)
    covariance = centered.T @ centered / (len(centered) - 1)
    others = covariance.square().sum() - covariance.diagonal().square().sum()
    return others / projections.shape[1]


@dataclass(frozen=True, kw_only=True)
class VICReg(Objective):
    """Variance, invariance and covariance."""

    joins: ClassVar[str] = "variances and covariances are over the batch"
    head: ClassVar = Head("expander", 2048)
    """d-2048-2048-2048, batch-norm and ReLU after the first two layers (code; solo-learn's width)."""
    invariance: NonNegativeFloat = 25.0
    """lambda, weight of the squared distance between both views (paper)."""
    variance: NonNegativeFloat = 25.0
    """mu, weight of the deviations below 1 (paper)."""
    covariance: NonNegativeFloat = 1.0
    """nu, weight of the covariances (paper)."""

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Sum lambda s + mu v + nu c (eq. 6) over two random views of each image, each encoded in its own batch (code)."""
        first, second = project_views(context, model, batch.images, generator)
        spread = (variance_loss(first) + variance_loss(second)) / 2
        correlated = covariance_loss(first) + covariance_loss(second)
        loss = self.invariance * F.mse_loss(first, second) + self.variance * spread + self.covariance * correlated
        return StepOutput(loss, first)
