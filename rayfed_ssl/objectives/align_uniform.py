"""Alignment and uniformity: draw the two views of a sample together, and spread all samples over the sphere.

Wang, Isola: Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere, ICML
2020. Under FedAvg it is FedAlignUniform, the base of SSD (Fang et al. 2025); "code" below is SSD's.

Symbols: h features [B, d], z projections [B, p] of a view; u = z / ||z||; t of the Gaussian potential; beta weight of the
uniformity.

Deviations: the paper's exponent alpha of the alignment is 2, its default. The paper weighs both terms (its best choices for
small images are 0.75 and 0.5, or 1 and 1); SSD's code has 1 and beta = 1.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Objective, StepOutput


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """L_align: mean squared distance between the two views of a sample, for unit-length rows [B, p]; in [0, 4]."""
    return (first - second).square().sum(1).mean()


def uniformity(units: Tensor, t: float) -> Tensor:
    """L_uniform: log of the mean Gaussian potential exp(-t ||u_i - u_j||^2) over pairs i < j.

    Args:
        units: Rows of length 1, [B, p], at least two.
        t: Sharpness of the potential.

    Returns:
        A scalar in [-4 t, 0]; lower is more uniform.
    """
    num = len(units)
    itself = torch.eye(num, dtype=torch.bool, device=units.device)
    exponents = (2 * t * (units @ units.T - 1)).masked_fill(itself, float("-inf"))  # ||u - v||^2 = 2 - 2 u.v
    return exponents.flatten().logsumexp(0) - math.log(num * (num - 1))


@dataclass(frozen=True)
class Embedded:
    """Both views of a batch: features h [B, d] and projections z [B, p] of each, float32, not normalized."""

    features: tuple[Tensor, Tensor]
    projections: tuple[Tensor, Tensor]

    @property
    def units(self) -> tuple[Tensor, Tensor]:
        """Projections of length 1 of each view, [B, p]."""
        first, second = (F.normalize(projections, dim=1) for projections in self.projections)
        return first, second


@pydantic_dataclass(frozen=True, kw_only=True)
class AlignUniform(Objective):
    """Alignment plus weighted uniformity."""

    joins: ClassVar[str] = "uniformity compares all pairs of samples"
    head: ClassVar = Head("byol", 512, 2048)
    """SSD's head: d-2048-512 with batch-norm after the hidden layer (code)."""
    beta: NonNegativeFloat = 1.0
    """Weight of the uniformity (SSD)."""
    t: PositiveFloat = 2.0
    """Sharpness of the Gaussian potential (Wang and Isola, section 4.1)."""

    def embed(self, context: Context, model: Model, images: Tensor, generator: torch.Generator) -> Embedded:
        """Encode two random views of each image, each in a batch of its own (code)."""
        with context.autocast():
            first, second = (model(view) for view in context.two_views(images, generator))
        return Embedded((first[0], second[0]), (first[1], second[1]))

    def value(self, units: tuple[Tensor, Tensor]) -> Tensor:
        """L_align + beta L_uniform, the latter the mean of both views' (code); a scalar."""
        spread = (uniformity(units[0], self.t) + uniformity(units[1], self.t)) / 2
        return alignment(*units) + self.beta * spread

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Align two random views of each image and spread the batch."""
        embedded = self.embed(context, model, batch.images, generator)
        return StepOutput(self.value(embedded.units), embedded.projections[0])
