"""MoCo, BYOL and SimSiam as loops over Python floats, written from the papers and not from our code."""

import math
from collections.abc import Sequence

from tests.naive import dot

Row = Sequence[float]
Matrix = Sequence[Row]


def cosine(first: Row, second: Row) -> float:
    return dot(first, second) / (math.sqrt(dot(first, first)) * math.sqrt(dot(second, second)))


def moco(query: Row, positive: Row, queue: Matrix, tau: float) -> float:
    """MoCo Eq. 1 for one query: the sum in the denominator is over one positive and K negative samples."""
    others = math.fsum(math.exp(dot(query, key) / tau) for key in queue)
    right = math.exp(dot(query, positive) / tau)
    return -math.log(right / (right + others))


def moco_batch(queries: Matrix, positives: Matrix, queue: Matrix, tau: float) -> float:
    """The mean of Eq. 1 over a batch (MoCo, Algorithm 1)."""
    losses = [moco(q, k, queue, tau) for q, k in zip(queries, positives, strict=True)]
    return math.fsum(losses) / len(losses)


def pushed(queue: Sequence[Row], keys: Matrix) -> list[Row]:
    """MoCo, Section 3.2: the current mini-batch is enqueued to the dictionary and the oldest is removed; oldest first."""
    rows = list(queue)
    for key in keys:
        rows = [*rows[1:], key]
    return rows


def slow(target: Row, online: Row, decay: float) -> list[float]:
    """MoCo Eq. 2, BYOL Eq. 1: xi <- tau xi + (1 - tau) theta."""
    return [decay * xi + (1 - decay) * theta for xi, theta in zip(target, online, strict=True)]


def byol(prediction: Row, target: Row) -> float:
    """BYOL Eq. 2: || q / ||q|| - z' / ||z'|| ||^2."""
    long, wide = math.sqrt(dot(prediction, prediction)), math.sqrt(dot(target, target))
    return math.fsum((q / long - z / wide) ** 2 for q, z in zip(prediction, target, strict=True))


def byol_batch(first: Matrix, second: Matrix, target_first: Matrix, target_second: Matrix) -> float:
    """L + L~: each view's prediction against the target's projection of the other view, mean over the batch."""
    there = [byol(q, z) for q, z in zip(first, target_second, strict=True)]
    back = [byol(q, z) for q, z in zip(second, target_first, strict=True)]
    return math.fsum([*there, *back]) / len(first)


def simsiam_batch(p1: Matrix, p2: Matrix, z1: Matrix, z2: Matrix) -> float:
    """SimSiam Eq. 1 and 2: D(p1, z2) / 2 + D(p2, z1) / 2, mean over the batch."""
    losses = [-cosine(p1[i], z2[i]) / 2 - cosine(p2[i], z1[i]) / 2 for i in range(len(p1))]
    return math.fsum(losses) / len(losses)


def batch_norm(rows: Matrix, eps: float) -> list[list[float]]:
    """Ioffe and Szegedy, Algorithm 1, without scale and shift: biased variance over the batch."""
    columns = []
    for column in zip(*rows, strict=True):
        mean = math.fsum(column) / len(column)
        variance = math.fsum((x - mean) ** 2 for x in column) / len(column)
        columns.append([(x - mean) / math.sqrt(variance + eps) for x in column])
    return [list(row) for row in zip(*columns, strict=True)]
