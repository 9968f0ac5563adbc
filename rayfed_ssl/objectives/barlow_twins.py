"""Barlow Twins: make the correlation of two views' dimensions the identity.

Zbontar, Jing, Misra, LeCun, Deny: Barlow Twins: Self-Supervised Learning via Redundancy Reduction, ICML 2021. "Code" is
the authors' (facebookresearch/barlowtwins).

Symbols: z projections of a view [B, p]; C correlation of both views' dimensions over the batch [p, p]; lambda weight of what
lies beside the diagonal.

Deviations: the projector is 2048 wide, as solo-learn has it for CIFAR-10, and 8192 in the paper. Its last layer has a bias,
which the normalization takes out again.
"""

from typing import ClassVar

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Objective, StepOutput, project_views

EPS = 1e-5
"""Of the normalization, as in batch-norm (code)."""


def cross_correlation(first: Tensor, second: Tensor) -> Tensor:
    """C [p, p] of projections of two views [B, p], each dimension with mean 0 and deviation 1 over the batch (eq. 2)."""
    normalized = ((z - z.mean(0)) / (z.var(0, unbiased=False) + EPS).sqrt() for z in (first, second))
    one, other = normalized
    return one.T @ other / len(one)


def redundancy(correlation: Tensor, strength: float) -> Tensor:
    """Sum of (1 - C_ii)^2 plus lambda times that of C_ij^2 over i != j (eq. 1), of C [p, p]; a scalar."""
    diagonal = correlation.diagonal()
    others = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + strength * others


@dataclass(frozen=True, kw_only=True)
class BarlowTwins(Objective):
    """Redundancy reduction."""

    joins: ClassVar[str] = "correlations are over the batch"
    head: ClassVar = Head("expander", 2048)
    """d-2048-2048-2048, batch-norm and ReLU after the first two layers (code; solo-learn's width)."""
    strength: NonNegativeFloat = 0.005
    """lambda; the code has 0.0051."""

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Compare two random views of each image, each encoded in a batch of its own (code)."""
        first, second = project_views(context, model, batch.images, generator)
        return StepOutput(redundancy(cross_correlation(first, second), self.strength), first)
