"""What tests draw: generators, rows of numbers and images, each from its seed."""

import torch
from torch import Tensor
from torch.nn import functional as F


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(num: int, dim: int, seed: int) -> Tensor:
    """Draw rows in float64."""
    return torch.randn(num, dim, generator=seeded(seed), dtype=torch.float64)


def unit_rows(num: int, dim: int, seed: int) -> Tensor:
    """Draw rows of unit length in float64."""
    return F.normalize(rows(num, dim, seed), dim=1)


def pixels(num: int, seed: int = 1) -> Tensor:
    """Draw images of the size of digits."""
    return torch.randint(0, 256, (num, 1, 8, 8), dtype=torch.uint8, generator=seeded(seed))
