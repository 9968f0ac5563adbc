"""Alignment and uniformity against naive loops."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rayfed_ssl.objectives import AlignUniform
from rayfed_ssl.objectives.align_uniform import alignment, uniformity
from rayfed_ssl.training.task import Task
from tests.objectives import naive_align_uniform as naive
from tests.objectives.linear_model import batch_of, linear, linear_model, views
from tests.tensors import EXACT, seeded, unit_rows

SHAPES = [(2, 3), (5, 4), (7, 2)]


@pytest.mark.parametrize("t", [0.5, 2.0])
@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_the_terms_are_wang_and_isolas(num: int, dim: int, t: float):
    first, second = unit_rows(num, dim, 1), unit_rows(num, dim, 2)
    expected = naive.alignment(first.tolist(), second.tolist())
    assert float(alignment(first, second)) == pytest.approx(expected, rel=EXACT)
    assert float(uniformity(first, t)) == pytest.approx(naive.uniformity(first.tolist(), t), rel=EXACT)


@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_the_gradient_of_uniformity_is_that_of_pairwise_distances(num: int, dim: int):
    gradients = []
    for function in (lambda u: uniformity(u, 2.0), lambda u: torch.pdist(u).square().mul(-2).exp().mean().log()):
        rows = unit_rows(num, dim, 1).requires_grad_()
        function(F.normalize(rows, dim=1)).backward()  # on the sphere, where both are the same function
        gradients.append(rows.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-10)


def test_equal_samples_have_a_uniformity_of_zero_and_a_finite_gradient():
    rows = unit_rows(1, 4, 1).expand(6, 4).clone().requires_grad_()
    value = uniformity(rows, 2.0)
    value.backward()
    assert float(value.detach()) == pytest.approx(0, abs=1e-14)
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())


@pytest.mark.parametrize("norm", [False, True])
def test_the_loss_is_that_of_two_views_encoded_apart(task: Task, norm: bool):
    model = linear_model(5, norm=norm)
    loss = AlignUniform(beta=0.3, t=1.5).loss(task, model, nn.Module(), batch_of(), seeded(2)).loss
    layer = model.projector[0] if norm else model.projector
    projected = [linear(view, layer) for view in views(task)]
    if norm:
        eps = model.projector[1].eps
        projected = [(z - z.mean(0)) / (z.var(0, unbiased=False) + eps).sqrt() for z in projected]
    first, second = ([[x / math.hypot(*row) for x in row] for row in z.tolist()] for z in projected)
    expected = naive.loss(first, second, 0.3, 1.5)
    # The forward pass is float32; with batch-norm its rounding errors are divided by small deviations.
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4 if norm else 1e-5)
