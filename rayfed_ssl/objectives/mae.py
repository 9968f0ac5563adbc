"""MAE: rebuild the hidden patches of an image from the few that are visible.

He, Chen, Xie, Li, Dollár, Girshick: Masked Autoencoders Are Scalable Vision Learners, CVPR 2022. "Code" below is
facebookresearch/mae. Federated before by SSL-FL (Yan et al., 2023) and FedMAR (2026), which average encoder and decoder.

Symbols: x normalized images [B, C, S, S]; p pixels a side of a patch; P patches an image, V of them visible; d width of the
encoder; y pixels of patches, [B, P, p p C].

Deviations:
- The encoder has no class token; projections are its mean over the visible patches.
- Positions are learned, of encoder and decoder, and start as the code's fixed ones.
- Images are cropped and mirrored as the run's first view says (the code: a fifth of the area or more, mirrored half the
  time); the digits', which are never mirrored, are rotated a little.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from rayfed_ssl.data.view_recipes import ViewRecipe
from rayfed_ssl.models import Model
from rayfed_ssl.models.vit import VisionTransformer, blocks, draw_linear, num_patches, patch_size, positions
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, PerSample, StepOutput
from rayfed_ssl.training.state_parts import Rule

HEAD_WIDTH = 32
"""Of the decoder's attention: 512 in 16 heads (code)."""


def patchify(images: Tensor, side: int) -> Tensor:
    """Cut images [B, C, S, S] into patches, row by row, [B, P, p p C], channels last in each (code)."""
    patches = images.unfold(2, side, side).unfold(3, side, side)  # [B, C, rows, columns, p, p]
    return patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)


def standardized(patches: Tensor) -> Tensor:
    """Bring each patch [.., n] to mean 0 and deviation 1: (y - mean) / sqrt(var + 1e-6), var with n - 1 (code)."""
    variance, mean = torch.var_mean(patches, -1, keepdim=True)
    return (patches - mean) / (variance + 1e-6).sqrt()


def masked_error(rebuilt: Tensor, targets: Tensor, hidden: Tensor) -> Tensor:
    """Mean squared error over the pixels of hidden patches: predictions and targets [B, P, n], hidden 0 or 1 [B, P]."""
    return ((rebuilt - targets).square().mean(2) * hidden).sum() / hidden.sum()


def shuffled(noise: Tensor) -> Tensor:
    """Order each image's patches by its noise [B, P]; the first V are visible. int64 [B, P]."""
    return noise.argsort(dim=1, stable=True)


def transformer(model: Model) -> VisionTransformer:
    """Give the encoder of an objective that hides patches from it (`needs_patches`)."""
    assert isinstance(model.encoder, VisionTransformer), "needs_patches"
    return model.encoder


def cropped(views: ViewRecipe) -> ViewRecipe:
    """Keep of a view its crop, mirroring and rotation: MAE changes no colors (section 4, data augmentation)."""
    return replace(views, jitter=None, grayscale=0.0, blur=0.0, solarize=0.0)


class MaskedDecoder(nn.Module):
    """Latents of visible patches [B, V, d] to pixels of all patches [B, P, n]."""

    def __init__(self, feature_dim: int, *, patches: int, pixels: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(feature_dim, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(positions(int(patches**0.5), width))
        self.blocks = blocks(width, depth, width // HEAD_WIDTH)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pixels = nn.Linear(width, pixels)
        nn.init.normal_(self.mask_token, std=0.02)
        for layer in (self.embed, self.pixels):
            draw_linear(layer)

    def forward(self, latents: Tensor, order: Tensor) -> Tensor:
        """Fill in the mask token for hidden patches, and put all where `order` [B, P] took them from."""
        tokens = self.embed(latents)
        hidden = self.mask_token.to(tokens.dtype).expand(len(order), order.shape[1] - latents.shape[1], -1)
        places = order.argsort(dim=1, stable=True)
        tokens = torch.cat([tokens, hidden], 1).gather(1, places.unsqueeze(2).expand(-1, -1, tokens.shape[2]))
        pixels: Tensor = self.pixels(self.norm(self.blocks(tokens + self.positions)))
        return pixels.float()


@dataclass(frozen=True, kw_only=True)
class MAE(PerSample):
    """Masked autoencoding of patches."""

    parts: ClassVar[Mapping[str, Rule]] = {"decoder": "averaged"}
    fixed_head: ClassVar[bool] = True
    compares_views: ClassVar[bool] = False
    needs_patches: ClassVar[bool] = True
    head: ClassVar = Head("none")
    """None: projections are the mean over visible patches."""
    num_views: ClassVar = 1
    mask_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.75
    """Share of the patches that is hidden (Figure 5)."""
    width: Annotated[int, Field(ge=1, multiple_of=HEAD_WIDTH)] = 512
    """Of the decoder's tokens, a multiple of 32 (Table 1b)."""
    depth: PositiveInt = 8
    """Blocks of the decoder (Table 1a)."""
    standardize: bool = True
    """Whether each patch's pixels are rebuilt at mean 0 and deviation 1 (Table 1d)."""

    def heads(self, context: Context, feature_dim: int, projection_dim: int) -> dict[str, nn.Module]:
        """The decoder."""
        side = patch_size(context.size)
        patches, pixels = (context.size // side) ** 2, context.channels * side**2
        decoder = MaskedDecoder(feature_dim, patches=patches, pixels=pixels, width=self.width, depth=self.depth)
        return {"decoder": decoder}

    def inputs(self, context: Context, batch: Batch, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw a view of each image, and an order of its patches, of which the first ones are visible."""
        images = context.augment(batch.images, cropped(context.views.first), generator)
        total = num_patches(context.size)
        return images, shuffled(draw(torch.rand, len(images), total, generator=generator, device=images.device))

    def loss_of(self, context: Context, model: Model, *inputs: Tensor) -> StepOutput:
        """Give the loss, and means over visible patches as projections."""
        loss, latents = self.rebuild(context, model, *inputs)
        return StepOutput(loss, latents.float().mean(1))

    def rebuild(self, context: Context, model: Model, images: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Hide patches, encode the others, and compare what the decoder gives for the hidden ones (section 3).

        Gives the loss and the latents, [B, V, d].
        """
        targets = patchify(images, patch_size(context.size))
        with context.autocast():
            latents = self.latents(model, images, order)
            rebuilt = model.part("decoder")(latents, order)
        hidden = torch.ones_like(order, dtype=torch.float32).scatter_(1, order[:, : latents.shape[1]], 0.0)
        if self.standardize:
            targets = standardized(targets)
        return masked_error(rebuilt, targets, hidden), latents

    def visible(self, patches: int) -> int:
        """V of P patches."""
        return max(1, int(patches * (1 - self.mask_ratio)))

    def latents(self, model: Model, images: Tensor, order: Tensor) -> Tensor:
        """Encode the visible patches, the first ones of `order` [B, P], after the last norm, [B, V, d]."""
        encoder, visible = transformer(model), self.visible(order.shape[1])
        tokens = encoder.patches(images)
        seen = tokens.gather(1, order[:, :visible].unsqueeze(2).expand(-1, -1, tokens.shape[2]))
        latents: Tensor = encoder.pool.norm(encoder.blocks(seen))
        return latents
