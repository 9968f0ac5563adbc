"""Pooling with gradients in a fixed order: torch's values, and torch's gradients where no two maxima are equal."""

import pytest
import torch
from torch.nn import functional as F

from rayfed_ssl.models.pooling import AdaptiveAvgPool2d, MaxPool2d, adaptive_mean, max_by_window
from tests.tensors import seeded


def gradients(function, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = images.clone().requires_grad_()
    pooled = function(leaf)
    (pooled * torch.rand(pooled.shape, generator=seeded(1), dtype=pooled.dtype)).sum().backward()
    assert leaf.grad is not None
    return pooled.detach(), leaf.grad


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil_mode"), [(2, 2, 0, False), (2, 2, 0, True), (3, 2, 1, False), (3, 2, 1, True)]
)
@pytest.mark.parametrize("size", [(8, 8), (7, 9), (3, 5)])
def test_maxima_of_windows_are_torchs(kernel: int, stride: int, padding: int, ceil_mode: bool, size) -> None:
    images = torch.randn(2, 3, *size, generator=seeded())
    ours = gradients(lambda x: max_by_window(x, kernel, stride, padding, ceil_mode), images)
    theirs = gradients(lambda x: F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil_mode), images)
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=1e-6)  # windows overlap: sums in another order


@pytest.mark.parametrize("out", [1, 2, 4])
@pytest.mark.parametrize("size", [(8, 8), (6, 7), (1, 3)])
def test_means_of_parts_are_torchs(out: int, size) -> None:
    images = torch.randn(2, 3, *size, generator=seeded(), dtype=torch.float64)
    ours = gradients(lambda x: adaptive_mean(x, out), images)
    theirs = gradients(lambda x: F.adaptive_avg_pool2d(x, out), images)
    for value, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


def test_on_a_cpu_the_layers_are_torchs() -> None:
    images = torch.randn(2, 3, 7, 7, generator=seeded())
    assert torch.equal(MaxPool2d(3, 2, 1)(images), F.max_pool2d(images, 3, 2, 1))
    assert torch.equal(AdaptiveAvgPool2d(2)(images), F.adaptive_avg_pool2d(images, 2))
