"""The spectral contrastive loss against naive loops."""

import math

import pytest
import torch
from torch import nn

from rayfed_ssl.objectives import Spectral
from rayfed_ssl.objectives.spectral import attraction, correlation, repulsion, shortened
from rayfed_ssl.training.task import Task
from tests.objectives import naive_spectral as naive
from tests.objectives.linear_model import batch_of, linear, linear_model, views
from tests.tensors import EXACT, rows, seeded, unit_rows

SHAPES = [(1, 3), (5, 4), (7, 2)]


@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_the_terms_are_fedscs(num: int, dim: int):
    first, second = rows(num, dim, 1), rows(num, dim, 2)
    assert float(attraction(first, second)) == pytest.approx(
        naive.attraction(first.tolist(), second.tolist()), rel=EXACT
    )
    expected = torch.tensor(naive.correlation([*first.tolist(), *second.tolist()]), dtype=torch.float64)
    torch.testing.assert_close(correlation(first, second), expected, rtol=EXACT, atol=EXACT)


def test_rows_are_shortened_and_never_lengthened():
    values = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    short = shortened(values, 2.0)
    expected = [naive.shortened(row, 2.0) for row in values.tolist()[:2]]
    torch.testing.assert_close(short[:2], torch.tensor(expected, dtype=torch.float64), rtol=EXACT, atol=0)
    assert torch.equal(short[1:], values[1:])
    short.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad[1:], torch.ones(2, 2, dtype=torch.float64))
    assert float(values.grad[0] @ values.detach()[0]) == pytest.approx(0, abs=1e-14), "a shortened row has no length"


@pytest.mark.parametrize("mu", [0.05, 100.0])
def test_the_loss_is_that_of_two_views(task: Task, mu: float):
    model = linear_model(5)
    loss = Spectral(mu=mu).loss(task, model, nn.Module(), batch_of(), seeded(2)).loss
    projected = [linear(view, model.projector).tolist() for view in views(task)]
    assert {math.hypot(*row) > math.sqrt(mu) for z in projected for row in z} == {mu < 1}
    expected = naive.loss(*([naive.shortened(row, mu) for row in z] for z in projected))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-6)  # the forward pass is float32


def test_orchestras_form_is_of_cosines_over_different_samples(task: Task):
    first, second = unit_rows(5, 4, 1), unit_rows(5, 4, 2)
    expected = naive.orchestras(first.tolist(), second.tolist())
    assert float(attraction(first, second) + repulsion(first, second)) == pytest.approx(expected, rel=EXACT)
    model = linear_model(5)
    loss = Spectral(form="orchestra").loss(task, model, nn.Module(), batch_of(), seeded(2)).loss
    expected = naive.orchestras(*(linear(view, model.projector).tolist() for view in views(task)))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-6)  # the forward pass is float32


def test_orchestras_form_has_no_bound_on_lengths():
    with pytest.raises(ValueError, match=r"objective.mu=2.0 has no meaning with objective.form=orchestra: remove one"):
        Spectral(form="orchestra", mu=2.0)
