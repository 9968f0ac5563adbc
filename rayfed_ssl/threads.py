"""How many threads torch computes with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compute_threads(number: int) -> Iterator[None]:
    """Compute with so many threads inside: bits of what is not elementwise depend on the number, so a run fixes it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
