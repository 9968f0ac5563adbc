"""How far clients are from having the same number of samples and the same distribution of classes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rayfed_ssl.data.partitions.rows import Rows


@dataclass(frozen=True)
class Skew:
    """Measures of a partition. Those of labels are None if no sample has one, and see labeled samples alone.

    Attributes:
        size_gini: Gini coefficient of the clients' numbers of samples: 0 for equal ones, below 1.
        label_entropy: Entropy of a client's labels in nats, mean over clients, each of the same weight.
        global_entropy: Entropy of the labels of all clients' samples together, in nats: ln C for C equal classes.
        label_distance: Total variation distance of a client's label distribution p_k to that of all clients' samples p,
            `sum_c |p_k(c) - p(c)| / 2`, mean over clients: 0 for IID labels, below 1.
    """

    size_gini: float
    label_entropy: float | None
    global_entropy: float | None
    label_distance: float | None

    @property
    def text(self) -> str:
        """Say all measures in one line."""
        text = f"size Gini {self.size_gini:.2f}"
        if self.label_entropy is None:
            return text
        return (
            f"{text}, label entropy {self.label_entropy:.2f} of {self.global_entropy:.2f} nats, total variation to global "
            f"labels {self.label_distance:.2f}"
        )


def measure_skew(labels: np.ndarray, shards: Iterable[Rows], num_classes: int) -> Skew:
    """Measure a partition's shards, none of them empty, from the labels [N] of all samples; -1 is no label."""
    rows = list(shards)
    sizes = np.sort([len(shard) for shard in rows])
    ranks = np.arange(1 - len(sizes), len(sizes), 2)  # 2 i - K - 1: Gini = sum_i (2 i - K - 1) n_i / (K sum_i n_i)
    gini = float((ranks * sizes).sum() / (len(sizes) * sizes.sum()))
    counts = count_samples(labels, rows, num_classes)
    counts = counts[counts.sum(1) > 0]
    if not len(counts):
        return Skew(gini, None, None, None)
    clients, everyone = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
    distances = np.abs(clients - everyone).sum(1) / 2
    return Skew(gini, float(_entropies(clients).mean()), float(_entropies(everyone)), float(distances.mean()))


def count_samples(labels: np.ndarray, shards: Iterable[Rows], num_classes: int) -> np.ndarray:
    """Count each shard's samples of each class, int64 [K, C]; label -1 is not counted."""
    counts = [np.bincount(labels[rows][labels[rows] >= 0], minlength=num_classes) for rows in shards]
    return np.stack(counts).astype(np.int64)


def with_unlabeled(labels: np.ndarray, classes: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Take samples without a label, -1, for a last class of their own, if there are any."""
    unlabeled = labels < 0
    if not unlabeled.any():
        return labels, tuple(classes)
    return np.where(unlabeled, len(classes), labels), (*classes, "no label")


def _entropies(distributions: np.ndarray) -> np.ndarray:
    """Compute entropies in nats over the last axis, 0 ln 0 = 0."""
    logs = np.log(distributions, where=distributions > 0, out=np.zeros_like(distributions))
    return np.asarray(0.0 - (distributions * logs).sum(-1))
