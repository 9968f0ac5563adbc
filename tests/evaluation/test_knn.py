import math

import pytest
import torch
from torch import Tensor

from rayfed_ssl.evaluation.knn import knn_accuracy, votes
from tests.evaluation.test_linear_probe import blobs

torch.set_num_threads(1)


def naive_accuracy(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, neighbors: int, tau: float
) -> float:
    def cosine(a: list[float], b: list[float]) -> float:
        return sum(p * q for p, q in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    neighbors = min(neighbors, max(5, min(train_labels.tolist().count(c) for c in range(3))))
    bank = list(zip(train.tolist(), train_labels.tolist(), strict=True))
    correct = 0
    for sample, label in zip(test.tolist(), test_labels.tolist(), strict=True):
        nearest = sorted(((cosine(sample, other), c) for other, c in bank), reverse=True)[:neighbors]
        scores = {c: sum(math.exp(s / tau) for s, owner in nearest if owner == c) for c in range(3)}
        correct += max(scores, key=lambda c: scores[c]) == label
    return correct / len(test)


@pytest.mark.parametrize(("neighbors", "tau"), [(1, 0.1), (7, 0.1), (20, 0.5), (41, 0.07), (200, 0.1)])
def test_accuracy_is_that_of_a_naive_float64_loop(neighbors: int, tau: float) -> None:
    train, train_labels = blobs(41, spread=2.0, seed=1)
    test, test_labels = blobs(1100, spread=2.0, seed=2)  # more than one chunk
    expected = naive_accuracy(train.double(), train_labels, test.double(), test_labels, neighbors, tau)
    got = knn_accuracy(
        train.double(), train_labels, test.double(), test_labels,
        num_classes=3, neighbors=neighbors, temperature=tau,
    )  # fmt: skip
    assert 0.4 < expected < 0.95
    assert got == expected


def test_votes_are_the_definitions_up_to_one_factor_a_sample() -> None:
    similarity = torch.tensor([[0.9, 0.8, 0.1], [0.3, 0.2, 0.2]], dtype=torch.float64)
    labels = torch.tensor([[2, 0, 2], [1, 0, 0]])
    got = votes(similarity, labels, 0.1, 4)
    expected = torch.tensor(
        [[math.exp(8), 0, math.exp(9) + math.exp(1), 0], [2 * math.exp(2), math.exp(3), 0, 0]], dtype=torch.float64
    )
    torch.testing.assert_close(got * similarity[:, :1].mul(10).exp(), expected, rtol=1e-12, atol=0)


def test_length_low_temperatures_and_too_many_neighbors_do_not_matter() -> None:
    train, train_labels = blobs(30, spread=1.5, seed=1)
    test, test_labels = blobs(50, spread=1.5, seed=2)

    def accuracy(factor: Tensor | float, neighbors: int) -> float:
        return knn_accuracy(train * factor, train_labels, test, test_labels, num_classes=3, neighbors=neighbors)

    assert accuracy(torch.arange(1, 31).unsqueeze(1), 5) == accuracy(1, 5)
    smallest = int(train_labels.bincount().min())
    assert accuracy(1, smallest) == accuracy(1, smallest + 1) == accuracy(1, 200)
    near, near_labels = blobs(30, spread=0.1, seed=1)
    assert knn_accuracy(near, near_labels, near, near_labels, num_classes=3, temperature=1e-3) == 1.0
