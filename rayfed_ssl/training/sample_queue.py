"""FLESD's queue of representations, first in, first out, with the sample of each; MoCo's is in `objectives/moco.py`."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.draws import draw


@dataclass
class SampleQueue:
    """The last m representations of a momentum encoder.

    Attributes:
        representations: Unit-length rows, [m, D].
        samples: Which public sample each row came from, int64 [m].
        filled: How many rows were enqueued so far.
    """

    representations: Tensor
    samples: Tensor
    filled: int = 0

    @classmethod
    def random(cls, size: int, dim: int, generator: torch.Generator, device: torch.device) -> "SampleQueue":
        """Start from random directions (code)."""
        rows = draw(torch.randn, size, dim, generator=generator, device=device)
        return cls(F.normalize(rows, dim=1), torch.zeros(size, dtype=torch.int64, device=device))

    def enqueue(self, representations: Tensor, samples: Tensor) -> None:
        """Replace the oldest rows; m is a multiple of the batch, so a batch never wraps around."""
        start = self.filled % len(self.samples)
        self.representations[start : start + len(samples)] = representations
        self.samples[start : start + len(samples)] = samples
        self.filled += len(samples)
