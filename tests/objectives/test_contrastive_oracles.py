"""Local losses against naive loops, and against lightly."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rayfed_ssl.objectives import SimCLR, Supervised
from rayfed_ssl.objectives.simclr import info_nce, nt_xent
from rayfed_ssl.training.task import Task
from tests import naive
from tests.objectives.linear_model import batch_of, linear, linear_model, views
from tests.objectives.naive_siamese import batch_norm
from tests.tensors import EXACT, seeded, unit_rows

SHAPES = [(2, 3), (5, 4), (7, 2)]
TEMPERATURES = [0.1, 0.4, 2.0]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_info_nce_is_eq_3_of_flesd(num: int, dim: int, temperature: float):
    first, second = unit_rows(num, dim, 1), unit_rows(num, dim, 2)
    expected = naive.info_nce(first.tolist(), second.tolist(), temperature)
    assert float(info_nce(first, second, temperature)) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_nt_xent_is_eq_1_of_simclr(num: int, dim: int, temperature: float):
    first, second = unit_rows(num, dim, 1), unit_rows(num, dim, 2)
    expected = naive.nt_xent(first.tolist(), second.tolist(), temperature)
    assert float(nt_xent(first, second, temperature)) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_nt_xent_is_lightlys(num: int, dim: int, temperature: float):
    loss = pytest.importorskip("lightly.loss").NTXentLoss(temperature=temperature)
    first, second = unit_rows(num, dim, 1), unit_rows(num, dim, 2)
    assert float(nt_xent(first, second, temperature)) == pytest.approx(float(loss(first, second)), rel=EXACT)


def test_nt_xent_of_info_nce_has_the_same_gradient_as_lightlys():
    loss = pytest.importorskip("lightly.loss").NTXentLoss(temperature=0.3)
    gradients = []
    for function in (lambda a, b: nt_xent(F.normalize(a), F.normalize(b), 0.3), loss):
        first = unit_rows(5, 4, 1).requires_grad_()
        function(first, unit_rows(5, 4, 2)).backward()
        gradients.append(first.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(("form", "oracle"), [("infonce", naive.info_nce), ("ntxent", naive.nt_xent)])
def test_simclr_contrasts_two_views_drawn_one_after_the_other(task: Task, form: str, oracle: Callable[..., float]):
    model = linear_model(5)
    loss = SimCLR(temperature=0.5, form=form).loss(task, model, nn.Module(), batch_of(), seeded(2)).loss
    projections = [F.normalize(linear(view, model.projector), dim=1).tolist() for view in views(task)]
    # The forward pass is float32: 7 digits, divided by a temperature of 1/2.
    assert float(loss.detach()) == pytest.approx(oracle(*projections, 0.5), rel=1e-5)


@pytest.mark.parametrize("encode", ["together", "apart"])
def test_simclr_normalizes_the_views_of_a_batch_together_or_apart(task: Task, encode: Literal["together", "apart"]):
    model = linear_model(5, norm=True)
    loss = SimCLR(temperature=0.5, encode=encode).loss(task, model, nn.Module(), batch_of(), seeded(2)).loss
    pixels = views(task)
    batches = [torch.cat(pixels)] if encode == "together" else pixels
    normed = [row for batch in batches for row in batch_norm(linear(batch, model.projector[0]).tolist(), 1e-5)]
    first, second = F.normalize(torch.tensor(normed, dtype=torch.float64), dim=1).chunk(2)
    # The forward pass is float32: 7 digits, divided by a temperature of 1/2.
    assert float(loss.detach()) == pytest.approx(naive.info_nce(first.tolist(), second.tolist(), 0.5), rel=1e-5)


def test_supervised_is_cross_entropy_of_one_view(task: Task):
    labels, model = torch.tensor([0, 3, 1, 1, 2]), linear_model(4)
    loss = Supervised(num_classes=4).loss(task, model, nn.Module(), batch_of(5, labels), seeded(2)).loss
    scores = linear(views(task, 5)[0], model.projector)
    expected = naive.cross_entropy(scores.tolist(), labels.tolist())
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)  # the forward pass is float32
