"""The spectral contrastive loss as loops over Python floats, written from FedSC's definitions."""

import math
from collections.abc import Sequence

from tests.naive import cosine, dot

Row = Sequence[float]
Matrix = Sequence[Row]


def shortened(row: Row, mu: float) -> list[float]:
    length = math.sqrt(dot(row, row))
    return [value * min(1.0, math.sqrt(mu) / length) for value in row]


def attraction(first: Matrix, second: Matrix) -> float:
    """-2 E[z^T z']."""
    return -2 * math.fsum(dot(a, b) for a, b in zip(first, second, strict=True)) / len(first)


def correlation(rows: Matrix) -> list[list[float]]:
    """R = E[z z^T]."""
    places = range(len(rows[0]))
    return [[math.fsum(row[i] * row[j] for row in rows) / len(rows) for j in places] for i in places]


def orchestras(first: Matrix, second: Matrix) -> float:
    """FedSpecLoss: -2 E cos(z_i, z'_i) + E cos(z_i, z'_j)^2 over i != j, as HaoChen et al. with cosines."""
    places = range(len(first))
    pairs = [cosine(first[i], second[j]) ** 2 for i in places for j in places if i != j]
    return -2 * math.fsum(map(cosine, first, second)) / len(first) + math.fsum(pairs) / len(pairs)


def loss(first: Matrix, second: Matrix) -> float:
    """-2 E[z^T z'] + E (z_i^T z_j)^2 over all pairs of views, which is ||R||^2."""
    views = [*first, *second]
    repulsion = math.fsum(dot(a, b) ** 2 for a in views for b in views) / len(views) ** 2
    return attraction(first, second) + repulsion
