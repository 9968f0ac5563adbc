"""Weighted k-nearest-neighbor accuracy, the monitor of InstDisc, MoCo's CIFAR demo and EasyFL.

Wu, Xiong, Yu, Lin: Unsupervised Feature Learning via Non-Parametric Instance Discrimination, CVPR 2018, section 3.4.

Symbols: N training samples, M test samples, d feature width, k neighbors, tau temperature, K classes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.evaluation.features import check_labeled

CHUNK = 1024  # test samples at a time: bounds the similarities in memory

LEAST = 5
"""Neighbors of a vote, however small the smallest class is."""


def knn_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    num_classes: int,
    neighbors: int = 200,
    temperature: float = 0.1,
) -> float:
    """Share in [0, 1] of test samples that a vote of their nearest training samples, weighted exp(cosine / tau), gets right.

    `train` is [N, d], `test` [M, d], labels int64 in 0..K-1. A tie goes to the lowest label. k is at most the size of the
    smallest class (`capped`).
    """
    check_labeled(train, train_labels, test, test_labels, num_classes=num_classes)
    neighbors = capped(neighbors, train_labels)
    bank = F.normalize(train, dim=1)
    correct = 0
    for features, labels in zip(F.normalize(test, dim=1).split(CHUNK), test_labels.split(CHUNK), strict=True):
        similarity, index = (features @ bank.T).topk(neighbors, dim=1)
        scores = votes(similarity, train_labels[index], temperature, num_classes)
        correct += int((scores.argmax(1) == labels).sum())
    return correct / len(test)


def capped(neighbors: int, labels: Tensor) -> int:
    """Cap k at the size of the smallest class in labels [N], or `LEAST`: beyond it most neighbors are of other classes."""
    counts = labels.bincount()
    return min(neighbors, max(LEAST, int(counts[counts > 0].min())), len(labels))


def votes(similarity: Tensor, labels: Tensor, temperature: float, num_classes: int) -> Tensor:
    """Sum neighbors' weights by label: sum_i 1[label_i = c] exp((s_i - s_1) / tau), [M, K].

    `similarity` holds cosines [M, k], highest first. The common factor exp(s_1 / tau), which would overflow at low
    temperatures, changes no vote.
    """
    weights = ((similarity - similarity[:, :1]) / temperature).exp()
    return torch.zeros(len(labels), num_classes, dtype=weights.dtype, device=weights.device).scatter_add_(
        1, labels, weights
    )
