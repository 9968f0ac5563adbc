"""What partitions are made of: rows, shards, and a stream of random numbers for each purpose."""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

Rows = npt.NDArray[np.int64]
Shards = tuple[Rows, ...]

MinSamples = Annotated[
    PositiveInt,
    Field(
        description="Shares are drawn again until each client has this many samples; the authors of EasyFL and NIID-Bench "
        "use 10."
    ),
]

MAX_DRAWS = 10_000
"""Proportions that are drawn before a partition is refused."""


def random_rows(num_samples: int, count: int | None, seed: int) -> Rows:
    """Choose `count` of the rows at random, sorted; all of them for None or where there are no more."""
    if count is None or count >= num_samples:
        return np.arange(num_samples, dtype=np.int64)
    return np.sort(stream("random_rows", seed).choice(num_samples, count, replace=False)).astype(np.int64)


def stratified_split(labels: np.ndarray, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Hold out ceil(fraction * N) samples with the class proportions of all; -1 counts as a class.

    Returns the remaining and the held-out rows, each sorted and neither empty.
    """
    total = math.ceil(fraction * len(labels) - 1e-9) if 0 < fraction < 1 else 0
    if not 0 < total < len(labels):
        raise ValueError(f"cannot hold out a fraction {fraction} of {len(labels)} samples: both parts need a sample")
    rng = stream("stratified_split", seed)
    classes, sizes = np.unique(labels, return_counts=True)
    quotas = sizes * (total / len(labels))
    counts = np.floor(quotas).astype(np.int64)
    # Largest remainders, so that the counts add up to the total.
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    held = [rng.permutation(np.flatnonzero(labels == label))[:n] for label, n in zip(classes, counts, strict=True)]
    rows = np.sort(np.concatenate(held)).astype(np.int64)
    return np.setdiff1d(np.arange(len(labels), dtype=np.int64), rows), rows


def stream(purpose: str, seed: int) -> np.random.Generator:
    """Give each purpose its own stream, so that one seed can serve several draws."""
    return np.random.default_rng(np.random.SeedSequence([seed, *purpose.encode()]))


def check_clients(labels: np.ndarray, num_clients: int, each: int = 1) -> None:
    """Refuse more clients than can have that many samples each."""
    if not 1 <= num_clients <= len(labels) // each:
        raise ValueError(
            f"cannot divide {len(labels)} samples among {num_clients} clients: each needs at least "
            f"{'one' if each == 1 else each}: lower clients.number or take more samples"
        )


def rows_by_class(labels: np.ndarray, name: str) -> list[np.ndarray]:
    """Give the rows of each class, in ascending classes; raises ValueError for samples without a label."""
    if unlabeled := int((labels < 0).sum()):
        raise ValueError(f"partition {name} needs classes, but {unlabeled} samples have no label: set partition=iid")
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def sorted_shards(shards: Sequence[np.ndarray]) -> Shards:
    """Give each shard as a partition promises it: sorted rows, int64."""
    return tuple(np.sort(shard).astype(np.int64) for shard in shards)


def deal(rng: np.random.Generator, classes: Sequence[np.ndarray], counts: np.ndarray) -> Shards:
    """Give client k counts[c, k] random rows of class c; `counts` is int64 [C, K]."""
    pieces = [np.split(rng.permutation(rows), row.cumsum())[:-1] for rows, row in zip(classes, counts, strict=True)]
    return sorted_shards([np.concatenate(shard) for shard in zip(*pieces, strict=True)])


def cut(num_samples: int, proportions: np.ndarray) -> np.ndarray:
    """Cut samples at the truncated cumulative proportions [K], of any sum; returns how many each client gets, int64 [K]."""
    ends = proportions.cumsum()
    # The last end is exactly 1, so that clients with proportion 0 get nothing wherever they stand.
    return np.diff((ends / ends[-1] * num_samples).astype(np.int64), prepend=0)


def too_skewed(num_clients: int, alpha: float, min_samples: int) -> ValueError:
    """Explain that no draw left every client enough samples."""
    return ValueError(
        f"none of {MAX_DRAWS} Dirichlet draws gave each of {num_clients} clients {min_samples} samples (alpha {alpha}): "
        "raise partition.alpha, or lower clients.number or partition.min_samples"
    )
