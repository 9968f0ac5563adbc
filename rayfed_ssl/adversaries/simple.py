"""Adversaries that know nothing but what they have computed, or repeat somebody.

Scaling (model replacement): Bagdasaryan, Veit, Hua, Estrin, Shmatikov: How To Backdoor Federated Learning, AISTATS 2020.
Mimic: Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022; it hurts where
clients are unequal. Permuted rows are ours: a client that sends representations of public samples, similarities' rows or a
dictionary under others' names.
"""

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.adversaries.adversary import Numbers, Scale, UploadAdversary


@dataclass(frozen=True, kw_only=True)
class SignFlip(UploadAdversary):
    """Send the opposite of what was computed."""

    scale: Scale = 1.0
    """How many times as far."""

    def forge(self, numbers: Numbers, strength: float, draws: torch.Generator) -> Tensor:
        """-scale x."""
        return -self.scale * numbers.own


@dataclass(frozen=True, kw_only=True)
class Gaussian(UploadAdversary):
    """Send noise."""

    mean: float = 0.0
    """Of each number."""
    std: NonNegativeFloat = 1.0
    """Standard deviation."""

    def forge(self, numbers: Numbers, strength: float, draws: torch.Generator) -> Tensor:
        """N(mean, std^2) in the place of x."""
        return self.mean + self.std * torch.randn(numbers.own.shape, generator=draws, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Scaling(UploadAdversary):
    """Send what was computed, scaled so that the mean becomes it."""

    def strength(self, pieces: Callable[[], Iterator[Numbers]], number: int, hostile: int) -> float:
        """N / f."""
        return number / hostile

    def forge(self, numbers: Numbers, strength: float, draws: torch.Generator) -> Tensor:
        """(n / f) x."""
        return strength * numbers.own


@dataclass(frozen=True, kw_only=True)
class Mimic(UploadAdversary):
    """Repeat the first honest client's upload."""

    sees_honest: ClassVar = True

    def forge(self, numbers: Numbers, strength: float, draws: torch.Generator) -> Tensor:
        """X of the honest client with the lowest id."""
        return numbers.honest[0]


@dataclass(frozen=True, kw_only=True)
class Permute(UploadAdversary):
    """Send rows that are no weights in a random order."""

    def forge(self, numbers: Numbers, strength: float, draws: torch.Generator) -> Tensor:
        """The same numbers."""
        return numbers.own

    def rearrange(self, rows: Tensor, draws: torch.Generator) -> Tensor:
        """Rows in a random order; a single row's entries, as of packed similarities."""
        if len(rows) == 1:
            return rows.flatten()[torch.randperm(rows.numel(), generator=draws)].view(rows.shape)
        return rows[torch.randperm(len(rows), generator=draws)]
