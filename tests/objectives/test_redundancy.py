"""Barlow Twins and VICReg against naive loops, and what their terms are of views that are easily understood."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.objectives import BarlowTwins, VICReg
from rayfed_ssl.objectives.barlow_twins import EPS, cross_correlation, redundancy
from rayfed_ssl.objectives.vicreg import covariance_loss, variance_loss
from rayfed_ssl.training.task import Task
from tests.objectives.linear_model import batch_of, linear, linear_model, views
from tests.tensors import EXACT, rows, seeded

Matrix = Sequence[Sequence[float]]

SHAPES = [(2, 3), (5, 4), (7, 2)]


def columns(matrix: Matrix) -> list[list[float]]:
    """Columns minus their means."""
    means = [math.fsum(column) / len(column) for column in zip(*matrix, strict=True)]
    return [[value - mean for value in column] for column, mean in zip(zip(*matrix, strict=True), means, strict=True)]


def product(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def naive_barlow(first: Matrix, second: Matrix, strength: float, eps: float = EPS) -> float:
    """Eq. 1 over eq. 2, with batch-norm's eps."""
    num = len(first)
    one, other = columns(first), columns(second)
    lengths = [[math.sqrt(product(c, c) / num + eps) for c in side] for side in (one, other)]
    total = 0.0
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            value = product(a, b) / num / lengths[0][i] / lengths[1][j]
            total += (1 - value) ** 2 if i == j else strength * value**2
    return total


def naive_vicreg(first: Matrix, second: Matrix, weights: tuple[float, float, float]) -> float:
    """Eq. 6 with the code's means."""
    num, dim = len(first), len(first[0])
    distance = math.fsum((a - b) ** 2 for r, s in zip(first, second, strict=True) for a, b in zip(r, s, strict=True))
    spread = correlated = 0.0
    for side in (columns(first), columns(second)):
        covariances = [[product(a, b) / (num - 1) for b in side] for a in side]
        spread += math.fsum(max(0.0, 1 - math.sqrt(covariances[i][i] + 1e-4)) for i in range(dim)) / dim / 2
        correlated += math.fsum(covariances[i][j] ** 2 for i in range(dim) for j in range(dim) if i != j) / dim
    return weights[0] * distance / num / dim + weights[1] * spread + weights[2] * correlated


@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_redundancy_is_zbontars(num: int, dim: int):
    first, second = rows(num, dim, 1), rows(num, dim, 2)
    value = redundancy(cross_correlation(first, second), 0.3)
    assert float(value) == pytest.approx(naive_barlow(first.tolist(), second.tolist(), 0.3), rel=1e3 * EXACT)


def test_equal_views_of_uncorrelated_dimensions_have_no_redundancy():
    views = torch.linalg.qr(torch.cat([torch.ones(8, 1, dtype=torch.float64), rows(8, 3, 1)], 1))[0][:, 1:] * 1e3
    assert float(redundancy(cross_correlation(views, views), 1.0)) == pytest.approx(0, abs=1e-9)
    assert float(redundancy(cross_correlation(views, -views), 1.0)) == pytest.approx(3 * 4, abs=1e-6)


@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_variance_and_covariance_are_bardes(num: int, dim: int):
    first = rows(num, dim, 1)
    variance, covariance = (naive_vicreg(first.tolist(), first.tolist(), w) for w in ((0, 1, 0), (0, 0, 1)))
    assert float(variance_loss(first)) == pytest.approx(variance, rel=1e3 * EXACT)
    assert float(covariance_loss(first)) == pytest.approx(covariance / 2, rel=1e3 * EXACT)


def test_collapsed_projections_have_all_of_the_variance_loss_and_a_finite_gradient():
    collapsed = torch.ones(6, 4, dtype=torch.float64, requires_grad=True)
    value = variance_loss(collapsed)
    value.backward()
    assert float(value.detach()) == pytest.approx(0.99)
    assert collapsed.grad is not None
    assert bool(collapsed.grad.isfinite().all())
    assert float(covariance_loss(torch.ones(6, 4))) == 0


@pytest.mark.parametrize("name", ["barlow-twins", "vicreg"])
def test_the_loss_is_that_of_two_views_encoded_apart(task: Task, name: str):
    model = linear_model(5)
    objective = (
        BarlowTwins(strength=0.3) if name == "barlow-twins" else VICReg(invariance=3, variance=2, covariance=0.5)
    )
    loss = objective.loss(task, model, nn.Module(), batch_of(), seeded(2)).loss
    projected: list[Tensor] = [linear(view, model.projector) for view in views(task)]
    first, second = (z.tolist() for z in projected)
    expected = naive_barlow(first, second, 0.3) if name == "barlow-twins" else naive_vicreg(first, second, (3, 2, 0.5))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)  # the forward pass is float32
