"""FedMD's and FedDF's equations at the level of features, as loops over Python floats."""

import math
from collections.abc import Sequence

from tests.naive import Matrix, cosine, unit


def mean_matrix(matrices: Sequence[Matrix]) -> list[list[float]]:
    """FedMD's consensus and FedDF's mean teacher: every client counts the same."""
    return [
        [math.fsum(matrix[i][j] for matrix in matrices) / len(matrices) for j in range(len(matrices[0][0]))]
        for i in range(len(matrices[0]))
    ]


def differences(projections: Matrix, target: Matrix) -> list[float]:
    pairs = zip(projections, target, strict=True)
    return [a - b for row, other in pairs for a, b in zip(unit(row), other, strict=True)]


def absolute_error(projections: Matrix, target: Matrix) -> float:
    """FedMD: mean absolute error over all entries, the client's rows at unit length."""
    errors = [abs(value) for value in differences(projections, target)]
    return math.fsum(errors) / len(errors)


def squared_error(projections: Matrix, target: Matrix) -> float:
    errors = [value**2 for value in differences(projections, target)]
    return math.fsum(errors) / len(errors)


def cosine_distance(projections: Matrix, target: Matrix) -> float:
    distances = [1 - cosine(row, other) for row, other in zip(projections, target, strict=True)]
    return math.fsum(distances) / len(distances)
