"""FedFoA's equations as loops over Python floats, written from the paper and not from our code."""

import math
from collections.abc import Sequence

from tests.naive import Matrix, dot


def columns(matrix: Matrix) -> list[list[float]]:
    return [list(column) for column in zip(*matrix, strict=True)]


def multiply(first: Matrix, second: Matrix) -> list[list[float]]:
    return [[dot(row, column) for column in columns(second)] for row in first]


def frobenius(matrix: Matrix) -> float:
    return math.sqrt(math.fsum(value * value for row in matrix for value in row))


def minus(first: Matrix, second: Matrix) -> list[list[float]]:
    return [[a - b for a, b in zip(r, s, strict=True)] for r, s in zip(first, second, strict=True)]


def gram_schmidt(features: Matrix) -> tuple[list[list[float]], list[list[float]]]:
    """Eq. 4 for features of full rank: what is new in each column, in the order of columns. (Q, R).

    With fewer rows than columns, the columns beyond the m-th bring nothing new: R has m rows.
    """
    basis: list[list[float]] = []
    relation: list[list[float]] = []
    width = len(features[0])
    for number, column in enumerate(columns(features)):
        rest = list(column)
        for _ in range(2):  # twice: once leaves rounding errors of the size of the condition number
            for index, direction in enumerate(basis):
                share = dot(direction, rest)
                relation[index][number] += share
                rest = [value - share * part for value, part in zip(rest, direction, strict=True)]
        if len(basis) < len(features):
            length = math.sqrt(dot(rest, rest))
            relation.append([0.0] * width)
            relation[len(basis)][number] = length
            basis.append([value / length for value in rest])
    return columns(basis), relation


def trace(matrix: Matrix) -> float:
    return math.fsum(matrix[i][i] for i in range(min(len(matrix), len(matrix[0]))))


def round_average(relations: Sequence[Matrix]) -> list[list[float]]:
    """Eq. 12, with as many rows as columns; missing rows are zero."""
    width = len(relations[0][0])
    return [
        [math.fsum(r[i][j] for r in relations if i < len(r)) / len(relations) for j in range(width)]
        for i in range(width)
    ]


def turned(basis: list[list[float]], target: Matrix) -> list[list[float]]:
    """The orthonormal basis nearest to `target` in Tr(target^T basis) among those that rotations reach from `basis`.

    Pairs of rows are turned by the best angle, again and again: the trace is a linear function on the rotations, whose
    only maximum is the greatest.
    """
    basis = [list(row) for row in basis]
    for _ in range(400):
        for i in range(len(basis)):
            for j in range(i + 1, len(basis)):
                cosine = dot(target[i], basis[i]) + dot(target[j], basis[j])
                sine = dot(target[j], basis[i]) - dot(target[i], basis[j])
                length = math.hypot(cosine, sine)
                if length > 0:
                    c, s = cosine / length, sine / length
                    basis[i], basis[j] = (
                        [c * a - s * b for a, b in zip(basis[i], basis[j], strict=True)],
                        [s * a + c * b for a, b in zip(basis[i], basis[j], strict=True)],
                    )
    return basis


def with_zeros(features: Matrix) -> list[list[float]]:
    """Rows of zeros below, up to as many rows as columns."""
    width = len(features[0])
    return [list(row) for row in features] + [[0.0] * width] * max(0, width - len(features))


def best_basis(features: Matrix, other: Matrix) -> list[list[float]]:
    """Eq. 5: the Q with orthonormal columns that minimizes ||Z - Q R||."""
    target = multiply(with_zeros(features), columns(other))
    candidates = []
    for sign in (1.0, -1.0):
        start = [[(sign if i == 0 else 1.0) * float(i == j) for j in range(len(other))] for i in range(len(target))]
        candidates.append(turned(start, target))
    return max(candidates, key=lambda basis: math.fsum(dot(a, b) for a, b in zip(basis, target, strict=True)))


def recreation_error(features: Matrix, other: Matrix) -> float:
    """Eq. 7 at the basis of Eq. 5."""
    return frobenius(minus(with_zeros(features), multiply(best_basis(features, other), other)))


def regularization(features: Matrix, others: Sequence[Matrix], strength: float) -> float:
    """Algorithm 1, lines 15 to 24, without the loss that it is added to."""
    own = trace(gram_schmidt(features)[1])
    return math.fsum(strength * recreation_error(features, other) for other in others if trace(other) > own)
