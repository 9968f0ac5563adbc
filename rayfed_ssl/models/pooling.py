"""Pooling whose gradient comes in a fixed order on CUDA, where torch's adds it up as it arrives."""

import torch
from torch import Tensor, nn


class AdaptiveAvgPool2d(nn.AdaptiveAvgPool2d):
    """`torch.nn.AdaptiveAvgPool2d` to a square; torch's own on a CPU and where deterministic algorithms are off."""

    def forward(self, images: Tensor) -> Tensor:
        """Pool feature maps [N, C, H, W]."""
        if not (images.is_cuda and torch.are_deterministic_algorithms_enabled()):
            return super().forward(images)
        assert isinstance(self.output_size, int), "maps are pooled to a square"
        return adaptive_mean(images, self.output_size)


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
