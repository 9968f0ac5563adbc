"""Diagnostics as loops over Python floats, written from the papers and not from our code."""

import math
from collections.abc import Sequence

from tests.naive import dot

Matrix = Sequence[Sequence[float]]


def unit(vector: Sequence[float]) -> list[float]:
    length = math.sqrt(dot(vector, vector))
    return [value / length if length else 0.0 for value in vector]


def columns(matrix: Matrix) -> list[list[float]]:
    return [list(column) for column in zip(*matrix, strict=True)]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def squared_distance(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(first, second, strict=True))


def feature_std(features: Matrix) -> float:
    """SimSiam, section 4.1: the standard deviation of z / ||z|| per channel, averaged; 1 / sqrt(d) counts as 1."""
    turned = columns([unit(row) for row in features])
    deviations = [math.sqrt(mean([(value - mean(column)) ** 2 for value in column])) for column in turned]
    return mean(deviations) * math.sqrt(len(features[0]))


def singular_values(matrix: Matrix) -> list[float]:
    """Hestenes: turn pairs of columns until all are at right angles; their lengths are the singular values."""
    turned = columns(matrix)
    for _ in range(60):
        for i in range(len(turned)):
            for j in range(i + 1, len(turned)):
                angle = 0.5 * math.atan2(
                    2 * dot(turned[i], turned[j]), dot(turned[i], turned[i]) - dot(turned[j], turned[j])
                )
                c, s = math.cos(angle), math.sin(angle)
                turned[i], turned[j] = (
                    [c * a + s * b for a, b in zip(turned[i], turned[j], strict=True)],
                    [c * b - s * a for a, b in zip(turned[i], turned[j], strict=True)],
                )
    return [math.sqrt(dot(column, column)) for column in turned]


def effective_rank(features: Matrix) -> float:
    """Roy & Vetterli, Definition 1: exp of the entropy of sigma_k / ||sigma||_1, with 0 log 0 = 0."""
    values = singular_values(features)
    shares = [value / math.fsum(values) for value in values]
    return math.exp(-math.fsum(share * math.log(share) for share in shares if share > 0))


def neighbors_in_common(first: Matrix, second: Matrix, count: int) -> float:
    """Huh et al., section 2.1: the mean size of the intersection of two models' neighbor sets, over their size."""
    shares = []
    for i in range(len(first)):
        others = [j for j in range(len(first)) if j != i]
        near = [
            set(sorted(others, key=lambda j: -dot(unit(model[i]), unit(model[j])))[:count]) for model in (first, second)
        ]
        shares.append(len(near[0] & near[1]) / len(near[0]))
    return mean(shares)


def alignment(first: Matrix, second: Matrix) -> float:
    """Wang & Isola, section 4.1.1, alpha = 2."""
    return mean([squared_distance(unit(a), unit(b)) for a, b in zip(first, second, strict=True)])


def uniformity(features: Matrix) -> float:
    """Wang & Isola, section 4.1.2, t = 2, over pairs of different samples."""
    units = [unit(row) for row in features]
    values = [math.exp(-2 * squared_distance(a, b)) for i, a in enumerate(units) for b in units[:i]]
    return math.log(mean(values))


def hsic(first: Matrix, second: Matrix) -> float:
    """Kornblith et al., Eq. 3: tr(K H L H) / (n - 1)^2."""
    num = len(first)
    centering = [[float(i == j) - 1 / num for j in range(num)] for i in range(num)]

    def times(one: Matrix, other: Matrix) -> list[list[float]]:
        return [[dot(row, column) for column in columns(other)] for row in one]

    product = times(times(times(first, centering), second), centering)
    return math.fsum(product[i][i] for i in range(num)) / (num - 1) ** 2


def cka(first: Matrix, second: Matrix) -> float:
    """Kornblith et al., section 3, with linear kernels K = X X^T and L = Y Y^T."""
    one, other = ([[dot(a, b) for b in rows] for a in rows] for rows in (first, second))
    return hsic(one, other) / math.sqrt(hsic(one, one) * hsic(other, other))


def angle(first: Sequence[float], second: Sequence[float]) -> float:
    """Degrees between two vectors."""
    return math.degrees(math.acos(max(-1.0, min(1.0, dot(unit(first), unit(second))))))


def quartile(values: Sequence[float], share: float) -> float:
    """A quantile, linear between the two values beside it."""
    ordered, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def mean_cosine(updates: Matrix, client: int) -> float:
    """Mean over the other clients of the cosine of two updates."""
    return mean([dot(unit(updates[client]), unit(other)) for i, other in enumerate(updates) if i != client])


def fused_ratio(present: Sequence[set[int]], client: int, label: int, m: int, bank: int) -> float:
    """FCL, Eq. 4, for clients with m balanced classes each and |Q| = `bank`."""
    others = [i for i in range(len(present)) if i != client]
    same = bank / m + math.fsum((label in present[i]) * bank / m for i in others)
    return same / (bank + math.fsum(bank for _ in others))


def remote_ratio(present: Sequence[set[int]], client: int, label: int, m: int) -> float:
    """FCL, Eq. 5."""
    others = [i for i in range(len(present)) if i != client]
    return math.fsum((label in present[i]) / m for i in others) / len(others)
