"""Pooling with gradients in a fixed order: torch's values and gradients."""

import pytest
import torch
from torch.nn import functional as F

from rayfed_ssl.models.pooling import AdaptiveAvgPool2d, adaptive_mean
from tests.tensors import seeded


def gradients(function, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = images.clone().requires_grad_()
    pooled = function(leaf)
    (pooled * torch.rand(pooled.shape, generator=seeded(1), dtype=pooled.dtype)).sum().backward()
    assert leaf.grad is not None
    return pooled.detach(), leaf.grad


@pytest.mark.parametrize("out", [1, 2, 4])
@pytest.mark.parametrize("size", [(8, 8), (6, 7), (1, 3)])
def test_means_of_parts_are_torchs(out: int, size) -> None:
    images = torch.randn(2, 3, *size, generator=seeded(), dtype=torch.float64)
    ours = gradients(lambda x: adaptive_mean(x, out), images)
    theirs = gradients(lambda x: F.adaptive_avg_pool2d(x, out), images)
    for value, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


def test_on_a_cpu_the_layer_is_torchs() -> None:
    images = torch.randn(2, 3, 7, 7, generator=seeded())
    assert torch.equal(AdaptiveAvgPool2d(2)(images), F.adaptive_avg_pool2d(images, 2))
