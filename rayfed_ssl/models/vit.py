"""Vision transformers for small images: the patch follows from the image, dropout is never drawn.

Dosovitskiy et al.: An Image is Worth 16x16 Words, ICLR 2021; widths "tiny" and "small" from DeiT (Touvron et al., 2021).

Symbols: P patches an image, p pixels a side of a patch, d width.

Deviations:
- Features are the mean over the patches' last tokens, after the last norm (MAE's code with global pooling: before it); there
  is no class token.
- Positions are learned and start as MAE's sines and cosines, so that few images suffice.
- Linear layers start from a normal distribution of deviation 0.02 (DeiT's and DINO's code, which cut it at 100 deviations).
"""

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models.encoders import Encoder

LARGEST_PATCH = 16
"""Pixels a side, as in ViT-S/16; smaller images get about 8 x 8 patches."""


class Shape(NamedTuple):
    """Width d, number of blocks and number of attention heads."""

    width: int
    depth: int
    heads: int


SHAPES = {"micro": Shape(128, 4, 4), "tiny": Shape(192, 12, 3), "small": Shape(384, 12, 6)}
"""DeiT's, and "micro", which is ours, for CPUs."""


def patch_size(size: int) -> int:
    """Choose p: of the divisors from 2 to 16, below the side, the nearest to an eighth of it; 4 at 32 pixels, 16 at 224."""
    divisors = [side for side in range(2, min(LARGEST_PATCH + 1, size)) if size % side == 0]
    if not divisors:
        raise ValueError(
            f"no patch of 2 to {LARGEST_PATCH} pixels divides images of {size} pixels a side: set data.size to a multiple "
            "of 4"
        )
    return min(divisors, key=lambda side: (abs(8 * side - size), -side))


def num_patches(size: int) -> int:
    """Count P of an image of `size` pixels a side."""
    return (size // patch_size(size)) ** 2


def positions(side: int, width: int) -> Tensor:
    """Compute sines and cosines of places in a grid of `side` x `side` patches, [1, P, width] (MAE's code).

    The first half of the width is for the column, the second for the row; each is sines, then cosines.
    """
    omega = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.arange(side, dtype=torch.float64).outer(omega)
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    return torch.cat([waves.repeat(side, 1), waves.repeat_interleave(side, 0)], 1).float().unsqueeze(0)


def resized(places: Tensor, side: int) -> Tensor:
    """Interpolate positions [1, P, d] to a grid of `side` x `side` patches, bicubic as in DINO's code, [1, side^2, d].

    As products, one for each direction: torch's own gradient has no fixed order on CUDA.
    """
    old = int(places.shape[1] ** 0.5)
    units = torch.eye(old, device=places.device)[None, :, :, None]
    weights = F.interpolate(units, size=(side, 1), mode="bicubic")[0, :, :, 0]  # [old, side]
    grid = places.view(old, old, -1)
    return torch.einsum("ar,bc,abd->rcd", weights, weights, grid).flatten(0, 1).unsqueeze(0).to(places.dtype)


@torch.fx.wrap
def places_of(patches: Tensor, positions: Tensor, pixels: int, patch: int) -> Tensor:
    """Positions of a grid of patches [N, d, S, S], as they are or interpolated; one step of a traced graph.

    Raises:
        ValueError: The picture is no multiple of the patch.
    """
    side = patches.shape[2]
    if side * side == positions.shape[1]:
        return positions
    if pixels % patch:
        raise ValueError(f"{pixels} pixels are no multiple of the patch of {patch}")
    return resized(positions, side)


class Patches(nn.Module):
    """Images [N, C, S, S] to tokens [N, P, d]: a linear layer on each patch, and its position.

    Positions are learned for one size and interpolated for images of another one, such as small crops.
    """

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        side = patch_size(size)
        self.project = nn.Conv2d(channels, width, side, stride=side)
        self.positions = nn.Parameter(positions(size // side, width))

    def forward(self, images: Tensor) -> Tensor:
        """Cut and project, row by row."""
        patches = self.project(images)
        places = places_of(patches, self.positions, images.shape[2], self.project.stride[0])
        tokens: Tensor = patches.flatten(2).transpose(1, 2) + places
        return tokens


class Attention(nn.Module):
    """Multi-head self-attention by torch's `scaled_dot_product_attention`, without dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mix tokens [N, P, d]."""
        qkv = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        projected: Tensor = self.project(mixed.transpose(1, 2).flatten(2))
        return projected


class Block(nn.Module):
    """Attention, then a perceptron of four times the width, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Change tokens [N, P, d]."""
        tokens = tokens + self.attention(self.norm1(tokens))
        changed: Tensor = tokens + self.mlp(self.norm2(tokens))
        return changed


class MeanToken(nn.Module):
    """The last norm, and the mean over tokens [N, P, d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        """Give features [N, d]."""
        mean: Tensor = self.norm(tokens).mean(1)
        return mean


class VisionTransformer(Encoder):
    """A ViT as a chain of `patches`, `blocks` and `pool`."""

    patches: Patches
    blocks: nn.Sequential
    pool: MeanToken


def draw_linear(module: nn.Module) -> None:
    """Draw a linear layer's weights with deviation 0.02; for `nn.Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def blocks(width: int, depth: int, heads: int) -> nn.Sequential:
    """Build a chain of blocks, drawn by `draw_linear`."""
    return nn.Sequential(*(Block(width, heads) for _ in range(depth))).apply(draw_linear)


def vit(name: str, *, channels: int, size: int) -> VisionTransformer:
    """Build a vision transformer of a shape in `SHAPES`."""
    width, depth, heads = SHAPES[name]
    layers = OrderedDict[str, nn.Module](patches=Patches(channels, size, width))
    layers |= {"blocks": blocks(width, depth, heads), "pool": MeanToken(width)}
    return VisionTransformer(width, layers)
