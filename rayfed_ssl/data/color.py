"""Color operations with one setting per sample, equal to torchvision's on float images.

Symbols: N samples, C channels, images float32 [N, C, H, W] in [0, 1]. Brightness, contrast and saturation are one
operation with three targets: x -> clamp(f x + (1 - f) target), the target being black, the image's mean luma or each
pixel's luma. Only images of three channels have hue and saturation; others keep theirs, as in torchvision.

Functions whose name ends in an underscore overwrite their images, as in torch; the others return new ones.
"""

from enum import IntEnum

import torch
from torch import Tensor
from torch.nn import functional as F

LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in luma (ITU-R 601-2, rounded as in torchvision)."""


class Op(IntEnum):
    """The four operations of color jitter; the number is the column of a sample's strengths and factors."""

    BRIGHTNESS = 0
    CONTRAST = 1
    SATURATION = 2
    HUE = 3


def luma(images: Tensor) -> Tensor:
    """Compute the brightness of each pixel, [N, H, W]; the plain mean where there are not three channels."""
    if images.shape[1] != 3:
        return images.mean(1)
    red, green, blue = images.unbind(1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def grayscale(images: Tensor) -> Tensor:
    """Replace the three channels by luma; images of other channel counts come back as they are."""
    return luma(images).unsqueeze(1).expand_as(images) if images.shape[1] == 3 else images


def blend_(images: Tensor, factors: Tensor, ops: Tensor) -> Tensor:
    """Apply to each sample its own one of brightness, contrast and saturation, `ops` [N], by its own f, [N]."""
    target = luma(images)
    rest = 1 - factors
    # In two steps, because torch splits the mean of a single large image among threads, which changes its rounding.
    mean = target.mean(2).mean(1)
    contrast = (rest * (ops == Op.CONTRAST) * mean).view(-1, 1, 1)
    target = target.mul_((rest * (ops == Op.SATURATION)).view(-1, 1, 1)).add_(contrast)
    return images.mul_(factors.view(-1, 1, 1, 1)).add_(target.unsqueeze(1)).clamp_(0, 1)


def shift_hue_(images: Tensor, shifts: Tensor) -> Tensor:
    """Turn the hue of each sample by its own angle in HSV, without the branches of the usual formulas.

    With V and m the largest and the smallest channel, c = V - m and the hue h in [0, 6), the channels are

        R = m + c t(h - 3),    G = V - c t(h - 2),    B = V - c t(h - 4),    t(x) = clamp(|x| - 1, 0, 1).

    They give |h - 3| = 2 + (R - G - B + m) / c, with the sign of B - G. So `torch.where`, which costs as much as 20
    other passes on a CPU, is not needed. Shifts are turns in [-0.5, 0.5], [N].
    """
    red, green, blue = images.unbind(1)
    high = torch.maximum(red, green)
    high = torch.maximum(high, blue, out=high)
    low = torch.minimum(red, green)
    low = torch.minimum(low, blue, out=low)
    chroma = high - low
    # Gray pixels have no hue: any value will do, as they are mixed from V = m.
    distance = (red - green).sub_(blue).add_(low).div_(chroma.clamp(min=1e-12)).add_(2)
    hue = distance.copysign_(blue - green).add_(6 * shifts.view(-1, 1, 1))
    hue.sub_((hue / 6).round_(), alpha=6)
    torch.lerp(low, high, hue.abs().sub_(1).clamp_(0, 1), out=red)
    torch.lerp(high, low, (hue + 1).abs_().sub_(1).clamp_(0, 1), out=green)
    torch.lerp(high, low, (hue - 1).abs_().sub_(1).clamp_(0, 1), out=blue)
    return images


def jitter_factors(uniforms: Tensor, strengths: tuple[float, float, float, float]) -> Tensor:
    """Spread draws in [0, 1) over the ranges of ColorJitter(*strengths): three factors and a turn of the hue, [N, 4]."""
    *blends, hue = strengths
    low = uniforms.new_tensor([*(max(0.0, 1 - strength) for strength in blends), -hue])
    high = uniforms.new_tensor([*(1 + strength for strength in blends), hue])
    return torch.lerp(low, high, uniforms)


def jitter_(images: Tensor, rows: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Apply the four operations to some samples, each in its own order.

    The samples are sorted by where in their order hue stands. So every step is one blend of all of them, which picks
    its target per sample, and one turn of the hues of one contiguous block.

    Args:
        images: Overwritten in the given rows.
        rows: Which samples to jitter, no row twice, [M].
        factors: What `jitter_factors` gives for all N samples.
        order: Each sample's operations in turn, a permutation of 0..3, [N, 4].
    """
    colored = images.shape[1] == 3
    positions = (order == Op.HUE).to(torch.uint8).argmax(1)[rows]
    rows = rows[positions.argsort(stable=True)]
    chosen, factors, order = (values.index_select(0, rows) for values in (images, factors, order))
    if not colored:
        factors[:, Op.SATURATION] = 1
    counts = positions.bincount(minlength=4).tolist()
    blocks, turns = chosen.split(counts), factors[:, Op.HUE].split(counts)
    blends = order[order != Op.HUE].view(-1, 3)
    for step, (block, turn) in enumerate(zip(blocks, turns, strict=True)):
        if colored:
            shift_hue_(block, turn)
        if step < 3:
            blend_(chosen, factors.gather(1, blends[:, step : step + 1]).squeeze(1), blends[:, step])
    return images.index_copy_(0, rows, chosen)


def solarize(images: Tensor, threshold: float) -> Tensor:
    """Invert the pixels at or above the threshold, channel by channel."""
    # lerp is exact at weights 0 and 1, and faster than torch.where.
    return torch.lerp(images, 1 - images, (images >= threshold).to(images.dtype))


def blur(images: Tensor, sigmas: Tensor, kernel: int) -> Tensor:
    """Blur square images, each with its own standard deviation in pixels, [N], by one banded matrix each."""
    size, radius = images.shape[3], kernel // 2
    distance = torch.arange(-radius, radius + 1, device=images.device)
    taps = torch.softmax((distance / sigmas.unsqueeze(1)).square().div(-2), 1)
    mirrored = F.pad(torch.eye(size, device=images.device)[None], (radius, radius), mode="reflect")[0]
    shifted = mirrored.unfold(1, size, 1).permute(1, 2, 0)  # [kernel, S, S]: which pixel lies at each distance
    weights = (taps @ shifted.flatten(1)).view(-1, 1, size, size)
    return weights @ images @ weights.mT


def unit(images: Tensor) -> Tensor:
    """Scale uint8 images to [0, 1], in a new float32 tensor."""
    return images.to(torch.float32, memory_format=torch.contiguous_format).div_(255)


def standardize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], out: Tensor) -> Tensor:
    """Write (images - mean) / std to `out`; if there is not one value per channel, their averages count for all."""
    center, spread = images.new_tensor(mean), images.new_tensor(std)
    if len(mean) != images.shape[1]:
        center, spread = center.mean(), spread.mean()
    return torch.sub(images, center.view(-1, 1, 1), out=out).div_(spread.view(-1, 1, 1))
