"""Color operations with one setting per sample, equal to torchvision's on float images.

Symbols: N samples, C channels, images float32 [N, C, H, W] in [0, 1]. Brightness, contrast and saturation are one
operation with three targets: x -> clamp(f x + (1 - f) target), the target being black, the image's mean luma or each
pixel's luma. Only images of three channels have hue and saturation; others keep theirs, as in torchvision.

Functions whose name ends in an underscore overwrite their images, as in torch; the others return new ones.
"""

from enum import IntEnum
from functools import cache

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
    """Compute the brightness of each pixel, [N, 1, H, W]; the plain mean where there are not three channels."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, 1)
    brightness: Tensor = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    return brightness


def grayscale(images: Tensor) -> Tensor:
    """Replace the three channels by luma; images of other channel counts come back as they are."""
    return luma(images).expand_as(images) if images.shape[1] == 3 else images


def blend_(images: Tensor, factors: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Apply to each sample its own one of brightness, contrast and saturation.

    Args:
        images: Overwritten.
        factors: f of each sample's operation, [N, 1, 1, 1].
        contrast: 1 - f where the operation is contrast, else 0, likewise.
        saturation: 1 - f where it is saturation, else 0, likewise.
    """
    target = luma(images)
    # In two steps, because torch splits the mean of a single large image among threads, which changes its rounding.
    mean = target.mean(3, keepdim=True).mean(2, keepdim=True)
    target = target.mul_(saturation).add_(contrast * mean)
    return images.mul_(factors).add_(target).clamp_(0, 1)


def shift_hue_(images: Tensor, shifts: Tensor) -> Tensor:
    """Turn the hue of each sample by its own angle in HSV, without the branches of the usual formulas.

    With V and m the largest and the smallest channel, c = V - m and the hue h in [0, 6), the channels are

        R = m + c t(h - 3),    G = V - c t(h - 2),    B = V - c t(h - 4),    t(x) = clamp(|x| - 1, 0, 1).

    They give |h - 3| = 2 + (R - G - B + m) / c, with the sign of B - G. So `torch.where`, which costs as much as 20
    other passes on a CPU, is not needed. Shifts are turns in [-0.5, 0.5], [N, 1, 1]. Images that carry gradients are not
    overwritten.
    """
    red, green, blue = images.unbind(1)
    traced = images.requires_grad  # autograd refuses `out`
    high, low = torch.maximum(red, green), torch.minimum(red, green)
    high = torch.maximum(high, blue, out=None if traced else high)
    low = torch.minimum(low, blue, out=None if traced else low)
    chroma = high - low
    # Gray pixels have no hue: any value will do, as they are mixed from V = m.
    distance = (red - green).sub_(blue).add_(low).div_(chroma.clamp(min=1e-12)).add_(2)
    hue = torch.add(distance.copysign_(blue - green), 6 * shifts, out=None if traced else distance)
    hue.sub_((hue / 6).round_(), alpha=6)
    shifted = [
        torch.lerp(low, high, hue.abs().sub_(1).clamp_(0, 1), out=None if traced else red),
        torch.lerp(high, low, (hue + 1).abs_().sub_(1).clamp_(0, 1), out=None if traced else green),
        torch.lerp(high, low, (hue - 1).abs_().sub_(1).clamp_(0, 1), out=None if traced else blue),
    ]
    return torch.stack(shifted, 1) if traced else images


def plan_jitter(uniforms: Tensor, order: Tensor, strengths: tuple[float, float, float, float], colored: bool) -> Tensor:
    """Spread draws over the ranges of torchvision's ColorJitter(*strengths): how `jitter` treats each sample.

    Args:
        uniforms: Draws in [0, 1) of brightness, contrast, saturation and hue, [N, 4].
        order: Each sample's operations in turn, a permutation of 0..3, [N, 4].
        strengths: Of the four operations.
        colored: Whether there are three channels; otherwise saturation stays.

    Returns:
        float32 [N, 11]: how many of the three blends come before the turn of the hue, that turn, and of the blends in turn
        f, 1 - f if of contrast, and 1 - f if of saturation.
    """
    *blends, hue = strengths
    low = torch.tensor([*(max(0.0, 1 - strength) for strength in blends), -hue])
    high = torch.tensor([*(1 + strength for strength in blends), hue])
    factors = torch.lerp(low, high, uniforms)
    if not colored:
        factors[:, Op.SATURATION] = 1
    ops = order[order != Op.HUE].view(-1, 3)
    by_step = factors.gather(1, ops)
    contrast, saturation = ((1 - by_step) * (ops == op) for op in (Op.CONTRAST, Op.SATURATION))
    position = (order == Op.HUE).to(torch.float32) @ torch.arange(4.0)
    return torch.cat([torch.stack([position, factors[:, Op.HUE]], 1), by_step, contrast, saturation], 1)


def jitter(images: Tensor, plan: Tensor) -> Tensor:
    """Jitter samples, each in its own order, on shapes that no draw decides, as a GPU wants them.

    Hue is turned once: before it each sample's first blends are applied, after it the others; the rest change nothing.
    `plan` is what `plan_jitter` makes, [N, 11].
    """
    blends = plan[:, 2:].view(-1, 3, 3)
    first = (_constant((0.0, 1.0, 2.0), images.device) < plan[:, :1]).unsqueeze(1)
    nothing = _constant(((1.0,), (0.0,), (0.0,)), images.device)
    before, after = torch.where(first, blends, nothing), torch.where(first, nothing, blends)
    jittered = images.clone()
    for part in (before, after):
        for step in range(3):
            blend_(jittered, *part[:, :, step].reshape(-1, 3, 1, 1, 1).unbind(1))
        if part is before and images.shape[1] == 3:
            jittered = shift_hue_(jittered, plan[:, 1].view(-1, 1, 1))
    return jittered


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


def standardize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], out: Tensor | None = None) -> Tensor:
    """Write (images - mean) / std to `out`, by default new; if there is not one value per channel, their averages count."""
    center, spread = (_by_channel(values, images.shape[1], images.device) for values in (mean, std))
    return torch.sub(images, center, out=out).div_(spread)


@cache
@torch.inference_mode(False)  # also if evaluation asks first
def _by_channel(values: tuple[float, ...], channels: int, device: torch.device) -> Tensor:
    """Move one value a channel, or the average of all, to the device once: every such copy makes a GPU wait."""
    each = torch.tensor(values, dtype=torch.float32)
    return (each if len(values) == channels else each.mean()).view(-1, 1, 1).to(device)


@cache
@torch.inference_mode(False)
def _constant(values: tuple[object, ...], device: torch.device) -> Tensor:
    return torch.tensor(values).to(device)
