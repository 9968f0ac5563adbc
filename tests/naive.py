"""The papers' equations as loops over Python floats, written from the papers and not from our code."""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

Matrix = Sequence[Sequence[float]]


def dot(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))


def unit(vector: Sequence[float]) -> list[float]:
    length = math.sqrt(dot(vector, vector))
    return [value / length for value in vector]


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    return dot(first, second) / math.sqrt(dot(first, first) * dot(second, second))


def info_nce(anchors: Matrix, partners: Matrix, tau: float) -> float:
    """FLESD Eq. 3: x+ is the other view, x- are the other samples' other views, M_neg = B - 1."""
    losses = []
    for i, anchor in enumerate(anchors):
        positive = math.exp(dot(anchor, partners[i]) / tau)
        negatives = math.fsum(math.exp(dot(anchor, partners[m]) / tau) for m in range(len(partners)) if m != i)
        losses.append(-math.log(positive / (positive + negatives)))
    return math.fsum(losses) / len(losses)


def nt_xent(first: Matrix, second: Matrix, tau: float) -> float:
    """SimCLR Eq. 1 over views z_1..z_2N in which 2k-1 and 2k are partners."""
    views = [row for pair in zip(first, second, strict=True) for row in pair]

    def loss(i: int, j: int) -> float:
        others = math.fsum(math.exp(cosine(views[i], views[k]) / tau) for k in range(len(views)) if k != i)
        return -math.log(math.exp(cosine(views[i], views[j]) / tau) / others)

    pairs = range(len(first))
    return math.fsum(loss(2 * k, 2 * k + 1) + loss(2 * k + 1, 2 * k) for k in pairs) / len(views)


def similarity(columns: Matrix) -> list[list[float]]:
    """FLESD Eq. 4: M_ij = <R_:i, R_:j>."""
    return [[dot(a, b) for b in columns] for a in columns]


def ensemble(similarities: Sequence[Matrix], tau: float) -> list[list[float]]:
    """FLESD Eq. 5 and 6: M = 1/|S| sum_k exp(M_k / tau_T)."""
    size = len(similarities[0])
    return [
        [math.fsum(math.exp(m[i][j] / tau) for m in similarities) / len(similarities) for j in range(size)]
        for i in range(size)
    ]


def student(queries: Matrix, anchors: Matrix, tau: float) -> list[list[float]]:
    """FLESD Eq. 7: q^i_j."""
    rows = []
    for query in queries:
        weights = [math.exp(dot(anchor, query) / tau) for anchor in anchors]
        rows.append([weight / math.fsum(weights) for weight in weights])
    return rows


def target(ensembled: Matrix, queries: Sequence[int], anchors: Sequence[int]) -> list[list[float]]:
    """FLESD Eq. 8: p^i_j."""
    return [[ensembled[i][j] / math.fsum(ensembled[i][k] for k in anchors) for j in anchors] for i in queries]


def divergence(targets: Matrix, students: Matrix) -> float:
    """FLESD Eq. 9: mean over queries of KL(p^i || q^i), with 0 log 0 = 0."""
    rows = [
        math.fsum(p * math.log(p / q) for p, q in zip(p_row, q_row, strict=True) if p > 0)
        for p_row, q_row in zip(targets, students, strict=True)
    ]
    return math.fsum(rows) / len(rows)


def cross_entropy(scores: Matrix, labels: Sequence[int]) -> float:
    """Mean of -log softmax(scores)_label."""
    losses = [
        math.log(math.fsum(math.exp(s) for s in row)) - row[label] for row, label in zip(scores, labels, strict=True)
    ]
    return math.fsum(losses) / len(losses)


def mean_weights(weights: Sequence[Tensor], factors: Sequence[float]) -> np.ndarray:
    """FLESD Eq. 1's aggregation: sum_k p_k w_k with p_k = n_k / n, in float64."""
    total = np.zeros(tuple(weights[0].shape), np.float64)
    for tensor, factor in zip(weights, factors, strict=True):
        total += tensor.numpy().astype(np.float64) * (factor / math.fsum(factors))
    return total
