"""The spectral contrastive objective: draw two views together, and make the dimensions of all projections uncorrelated.

HaoChen, Wei, Gaidon, Ma: Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive Loss, NeurIPS
2021, in the form of Jing, Yu, Zhang, Zhang: FedSC, ICML 2024. "Code" below is FedSC's.

Symbols: z projections of a view [B, p], shortened to a length of at most sqrt(mu); R correlation matrix, the mean of
z z^T [p, p].

Two forms are in use:
- "fedsc": the mean of (z_i^T z_j')^2 is one over all pairs of views of the batch, a view and itself among them (FedSC,
  code): ||R||^2, which is what clients can share.
- "orchestra": over pairs of different samples (HaoChen et al.), one of each view, of cosines and without a bound on lengths
  (FedSpecLoss of Orchestra's code, akhilmathurs/orchestra).
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Objective, StepOutput, project_views


def shortened(projections: Tensor, mu: float) -> Tensor:
    """Shorten rows [B, p] that are longer than sqrt(mu) to that length (code)."""
    lengths = torch.linalg.vector_norm(projections, dim=1, keepdim=True)
    factors: Tensor = math.sqrt(mu) / lengths.clamp(min=math.sqrt(mu))
    return projections * factors


def attraction(first: Tensor, second: Tensor) -> Tensor:
    """-2 E[z^T z'] over pairs of views of a sample, [B, p] each; a scalar."""
    return -2 * (first * second).sum(1).mean()


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """R = E[z z^T] over all views of the batch, [p, p]."""
    views = torch.cat([first, second])
    return views.T @ views / len(views)


def repulsion(first: Tensor, second: Tensor) -> Tensor:
    """E (z_i^T z_j')^2 over pairs of different samples i and j, one of each view, [B, p] each, B at least 2; a scalar."""
    num = len(first)
    itself = torch.eye(num, dtype=torch.bool, device=first.device)
    return (first @ second.T).masked_fill(itself, 0.0).square().sum() / (num * (num - 1))


@dataclass(frozen=True, kw_only=True)
class Spectral(Objective):
    """The spectral contrastive loss."""

    joins: ClassVar[str] = "the contrast is over all pairs of samples"
    form: Literal["fedsc", "orchestra"] = "fedsc"
    """Form of the loss: "fedsc" or "orchestra"."""
    mu: PositiveFloat = 4.0
    """Largest squared length of a projection under "fedsc"; 4 in the code's configuration."""

    def __post_init__(self) -> None:
        if self.form == "orchestra" and self.mu != Spectral.mu:
            raise ValueError(f"objective.mu={self.mu} has no meaning with objective.form=orchestra: remove one of them")

    @property
    def head(self) -> Head:
        """FedSC's: d-1024-512 with ReLU and without batch-norm. Orchestra's: 512-512 with batch-norm, and a layer to 128."""
        return Head("flesd", 512, 1024) if self.form == "fedsc" else Head("orchestra-spectral", 128)

    def embed(
        self, context: Context, model: Model, images: Tensor, generator: torch.Generator
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Project two random views of each image, each in a batch of its own (code).

        Returns:
            z of both views, shortened or under "orchestra" of length 1, and the first view's projections as they come out
            of the model; [B, p] each.
        """
        first, second = project_views(context, model, images, generator)
        if self.form == "orchestra":
            return (F.normalize(first, dim=1), F.normalize(second, dim=1)), first
        return (shortened(first, self.mu), shortened(second, self.mu)), first

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """-2 E[z^T z'] + ||R||^2, the norm Frobenius', or the mean over different samples in its place."""
        views, projections = self.embed(context, model, batch.images, generator)
        others = repulsion(*views) if self.form == "orchestra" else correlation(*views).square().sum()
        return StepOutput(attraction(*views) + others, projections)
