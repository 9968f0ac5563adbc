"""Shards on which an objective may stumble."""

import numpy as np

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.trees import Weights

KINDS = {
    "two samples": np.arange(2),
    "fewer than a batch": np.arange(7),
    "duplicates": np.zeros(9, np.int64),
    "equal gray images": np.arange(9),
}
"""Rows by kind."""


def shard(federation: Federation, kind: str) -> Shard:
    """Make a shard of one of `KINDS` from a federation's training images."""
    images = federation.dataset.train.images
    if kind == "equal gray images":
        images = np.full_like(images[:9], 128)
    return Shard.of(images, KINDS[kind], federation.task.device)


def check_finite(weights: Weights) -> None:
    for name, value in weights.items():
        assert bool(value.isfinite().all()), f"{name} is not finite"
