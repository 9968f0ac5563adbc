"""Small random tensors for tests of equations."""

import torch
from torch import Tensor
from torch.nn import functional as F

EXACT = 1e-12
"""float64 keeps 16 digits; sums of a few dozen terms lose two."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(num: int, dim: int, seed: int) -> Tensor:
    return torch.randn(num, dim, generator=seeded(seed), dtype=torch.float64)


def unit_rows(num: int, dim: int, seed: int) -> Tensor:
    return F.normalize(rows(num, dim, seed), dim=1)
