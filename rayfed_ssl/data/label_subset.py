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
    # The first of each class, then the second of each, and so on.
    turns = np.concatenate([np.arange(len(members)) for members in shuffled]).argsort(kind="stable")
    return np.sort(np.concatenate(shuffled)[turns[:count]]).astype(np.int64)
