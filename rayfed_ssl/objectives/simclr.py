"""SimCLR: tell a sample's other view from all other samples.

Chen, Kornblith, Norouzi, Hinton: A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020.

Symbols: z1, z2 projections of the two views [B, D]; tau temperature.

Two forms are in use and give different numbers:
- "infonce": Eq. 3 of FLESD and Eq. 4-8 of FedCA. Anchors are first views, negatives the B - 1 other second views.
- "ntxent": Eq. 1 of SimCLR. All 2B views are anchors, each with 2B - 2 negatives.

With small crops, V views of a sample, it is "ntxent" with the other V - 1 views as positives, summed within the logarithm
(solo-learn's code).

Views are encoded "together", in one batch of 2B (SimCLR), or "apart", so that batch-norm sees one view at a time (FLESD's
code; its paper does not say). The loss is float32 whatever the precision of the forward pass.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Objective, StepOutput


def info_nce(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """One-directional InfoNCE with in-batch negatives (FLESD, Eq. 3; FedCA, Eq. 4-8).

    Returns:
        Mean over anchors i of -log( exp(z1_i.z2_i / tau) / sum_j exp(z1_i.z2_j / tau) ), for unit-length z [B, D].
    """
    logits = first @ second.T / temperature
    return F.cross_entropy(logits, torch.arange(len(first), device=first.device))


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Normalized temperature-scaled cross entropy over all 2B views (SimCLR, Eq. 1), a view never its own negative.

    Returns:
        Mean over the 2B anchors, for unit-length z [B, D].
    """
    num = len(first)
    views = torch.cat([first, second])
    same_view = torch.eye(2 * num, dtype=torch.bool, device=views.device)
    logits = (views @ views.T / temperature).masked_fill(same_view, float("-inf"))
    partner = torch.arange(2 * num, device=views.device).roll(num)
    return F.cross_entropy(logits, partner)


def nt_xent_of_many(views: Tensor, num: int, temperature: float) -> Tensor:
    """NT-Xent of V views of each sample (solo-learn), which is SimCLR's for two.

    Args:
        views: Unit-length z [V B, D], all first, then all second ones and so on.
        num: B.
        temperature: tau.

    Returns:
        Mean over the V B anchors of -log of what a sample's other views have of the sum of exp(z.z / tau) over all others.
    """
    sample = torch.arange(len(views), device=views.device) % num
    same_view = torch.eye(len(views), dtype=torch.bool, device=views.device)
    logits = (views @ views.T / temperature).masked_fill(same_view, float("-inf"))
    positives = logits.masked_fill(sample[:, None] != sample, float("-inf"))
    return (logits.logsumexp(1) - positives.logsumexp(1)).mean()


@dataclass(frozen=True, kw_only=True)
class SimCLR(Objective):
    """SimCLR's contrastive objective."""

    takes_small_crops: ClassVar[bool] = True
    joins: ClassVar[str] = "NT-Xent and InfoNCE contrast a sample with the others"
    temperature: PositiveFloat = 0.4
    """tau; 0.4 for CIFAR and 0.2 for ImageNet in FLESD."""
    form: Literal["infonce", "ntxent"] = "infonce"
    """Form of the loss: "infonce" (FLESD, FedCA) or "ntxent" (SimCLR)."""
    encode: Literal["together", "apart"] = "together"
    """Both views in one batch, "together" (SimCLR), or each in its own, "apart" (FLESD's code)."""
    projector: Literal["mlp", "mlp-bn"] = "mlp"
    """Two layers with ReLU ("mlp", FLESD) or also with batch-norm in the hidden one ("mlp-bn", EasyFL, FedU2)."""
    hidden: PositiveInt | None = None
    """Width of its hidden layer; None takes the encoder's d (FLESD)."""

    @property
    def head(self) -> Head:
        """The projector, to 128 dimensions (FLESD)."""
        return Head({"mlp": "flesd", "mlp-bn": "simclr-bn"}[self.projector], 128, self.hidden)

    def chance_loss(self, batch: int) -> float | None:
        """The logarithm of the number of candidates."""
        return math.log(batch if self.form == "infonce" else 2 * batch - 1)

    def check(self, context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
        """Refuse small crops where views come in pairs."""
        if context.small_crops and self.form != "ntxent":
            raise ValueError(
                f"objective.form={self.form} contrasts two views, and training.small_crops are more: set "
                "objective.form=ntxent"
            )
        return ()

    def project(self, context: Context, model: Model, images: Tensor, generator: torch.Generator) -> Tensor:
        """Project V random views of images [B, C, H, W], two and small crops: all first, all second.., float32 [V B, p]."""
        views, small = context.stacked_views(images, generator), context.small_views(images, generator)
        batches = [(views, *small)] if self.encode == "together" else [(part,) for part in (*views.chunk(2), *small)]
        with context.autocast():
            parts = [model(*batch)[1] for batch in batches]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Contrast random views of each image."""
        projections, num = self.project(context, model, batch.images, generator), len(batch.images)
        units = F.normalize(projections, dim=1)
        if context.small_crops:
            return StepOutput(nt_xent_of_many(units, num, self.temperature), projections[:num])
        first, second = units.chunk(2)
        return StepOutput(self.contrast(first, second), projections.chunk(2)[0])

    def contrast(self, first: Tensor, second: Tensor) -> Tensor:
        """Contrast unit-length projections [B, D] of both views in the chosen form."""
        return {"infonce": info_nce, "ntxent": nt_xent}[self.form](first, second, self.temperature)
