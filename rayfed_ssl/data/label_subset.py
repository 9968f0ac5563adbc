"""Few labels: which samples of a set have one, by a fraction and a seed.

Semi-supervised protocols take a share of the training set (SimCLR and SwAV: as many images of each class), federated
fine-tuning a share of every client's shard (FedCA, FCL).
"""

from typing import Literal

import numpy as np

from rayfed_ssl.data.partitions import Rows

Choice = Literal["balanced", "random"]


def label_subset(labels: np.ndarray, fraction: float, choice: Choice, seed: int) -> Rows:
    """Choose the sorted rows whose labels are known, of labels int64 [N]; those with -1 do not count.

    The nearest whole number of samples is chosen, one at least. "balanced" takes equally many of each class, one more of
    some where that does not work out, and all of a class that has fewer; "random" takes any.
    """
    rows = np.flatnonzero(labels >= 0)
    if not len(rows):
        raise ValueError(f"none of {len(labels)} samples has a label: take a dataset with classes")
    count = max(1, int(fraction * len(rows) + 0.5))
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"label_subset"]))
    if choice == "random":
        return np.sort(rng.choice(rows, count, replace=False)).astype(np.int64)
    classes = rng.permutation(np.unique(labels[rows]))  # which of them get one more is random too
    shuffled = [rng.permutation(np.flatnonzero(labels == label)) for label in classes]
    counts = even_counts(np.array([len(members) for members in shuffled]), count)
    chosen = [members[:number] for members, number in zip(shuffled, counts, strict=True)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def even_counts(sizes: np.ndarray, total: int) -> np.ndarray:
    """Divide `total` as evenly as the classes' sizes [C] allow; what does not divide goes to the first of them."""
    counts = np.zeros_like(sizes)
    while (rest := total - int(counts.sum())) > 0:
        unfilled = np.flatnonzero(counts < sizes)
        share = rest // len(unfilled)
        if share:
            counts[unfilled] = np.minimum(sizes[unfilled], counts[unfilled] + share)
        else:
            counts[unfilled[:rest]] += 1
    return counts
