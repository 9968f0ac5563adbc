"""Pooling layers whose gradients come in a fixed order on CUDA, where torch's add them up as they arrive.

On a CPU, and where deterministic algorithms are off, they are torch's own layers.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MaxPool2d(nn.MaxPool2d):
    """`torch.nn.MaxPool2d` of square windows, not dilated."""

    def forward(self, images: Tensor) -> Tensor:
        """Pool feature maps [N, C, H, W]."""
        if not _ordered(images):
            pooled: Tensor = super().forward(images)
            return pooled
        kernel, stride, padding = (_side(length) for length in (self.kernel_size, self.stride, self.padding))
        return max_by_window(images, kernel, stride, padding, self.ceil_mode)


class AdaptiveAvgPool2d(nn.AdaptiveAvgPool2d):
    """`torch.nn.AdaptiveAvgPool2d` to a square."""

    def forward(self, images: Tensor) -> Tensor:
        """Pool feature maps [N, C, H, W]."""
        if not _ordered(images):
            return super().forward(images)
        assert isinstance(self.output_size, int)
        return adaptive_mean(images, self.output_size)


def max_by_window(images: Tensor, kernel: int, stride: int, padding: int, ceil_mode: bool) -> Tensor:
    """Compute max_pool2d from a view of all windows; equal maxima share the gradient, where torch gives it to one."""
    pads = [padding, padding]
    if ceil_mode:
        pads = [padding + (-(size + 2 * padding - kernel)) % stride for size in (images.shape[3], images.shape[2])]
    padded = F.pad(images, (padding, pads[0], padding, pads[1]), value=-math.inf)
    windows = padded.unfold(2, kernel, stride).unfold(3, kernel, stride)
    return windows.amax((-2, -1))


def adaptive_mean(images: Tensor, size: int) -> Tensor:
    """Compute adaptive_avg_pool2d to [N, C, size, size] by a matrix product along each side."""
    rows, columns = (_means(extent, size, images.dtype, images.device) for extent in images.shape[2:])
    return rows @ images @ columns.T


def _means(extent: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Weights [size, extent] of the means that adaptive pooling takes along one side."""
    place = torch.arange(extent, device=device)
    part = torch.arange(size, device=device).unsqueeze(1)
    inside = ((place >= part * extent // size) & (place < ((part + 1) * extent + size - 1) // size)).to(dtype)
    return inside / inside.sum(1, keepdim=True)


def _side(length: int | tuple[int, ...]) -> int:
    assert isinstance(length, int), "windows are square"
    return length


def _ordered(images: Tensor) -> bool:
    return images.is_cuda and torch.are_deterministic_algorithms_enabled()
