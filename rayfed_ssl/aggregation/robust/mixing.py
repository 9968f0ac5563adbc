"""What can be done to uploads before a robust rule: each gives a matrix by which they are mixed.

- nnm: each becomes the mean of its n - f nearest, itself among them (Allouah et al., AISTATS 2023): best known for unequal
  clients.
- bucketing: means of two neighbors in a random order (Karimireddy, He, Jaggi, ICLR 2022); with an odd number the last stays
  alone.
- arc: the floor(2 f (n - f) / n) longest are clipped to the length of the next (Allouah et al., 2024).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rayfed_ssl.aggregation.robust.geometry import distances, lengths, shares_within


def nearest_neighbors(gram: Tensor, hostile: int, generator: torch.Generator) -> Tensor:
    """NNM: rows are means of the n - f nearest [n, n]."""
    order = distances(gram).argsort(dim=1, stable=True)
    count = len(gram) - hostile
    return torch.zeros_like(gram).scatter_(1, order[:, :count], 1 / count)


def buckets(gram: Tensor, hostile: int, generator: torch.Generator) -> Tensor:
    """Means of two neighbors in a random order [ceil(n / 2), n]."""
    pairs = torch.randperm(len(gram), generator=generator).split(2)
    mixture = torch.zeros(len(pairs), len(gram), dtype=gram.dtype)
    for row, pair in zip(mixture, pairs, strict=True):
        row[pair] = 1 / len(pair)
    return mixture


def clipped(gram: Tensor, hostile: int, generator: torch.Generator) -> Tensor:
    """ARC: a diagonal [n, n] that brings the longest to the length of the next."""
    number, norms = len(gram), lengths(gram)
    order = norms.argsort(descending=True, stable=True)
    return torch.diag(shares_within(norms, norms[order[2 * hostile * (number - hostile) // number]]))


MIXTURES: Mapping[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "nnm": nearest_neighbors,
    "bucketing": buckets,
    "arc": clipped,
}
"""What mixes uploads, by name."""
