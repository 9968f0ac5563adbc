"""Local losses against naive loops, and against lightly."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.models import Model
from rayfed_ssl.objectives import SimCLR, Supervised
from rayfed_ssl.objectives.simclr import info_nce, nt_xent
from rayfed_ssl.training.objective import Batch
from tests import naive

EXACT = 1e-12
"""float64 keeps 16 digits; sums of a few dozen terms lose two."""

SHAPES = [(2, 3), (5, 4), (7, 2)]
TEMPERATURES = [0.1, 0.4, 2.0]


def unit_rows(num: int, dim: int, seed: int) -> Tensor:
    rows = torch.randn(num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(rows, dim=1)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_info_nce_is_eq_3_of_flesd(num: int, dim: int, temperature: float):
    first, second = unit_rows(num, dim, 1), unit_rows(num, dim, 2)
    expected = naive.info_nce(first.tolist(), second.tolist(), temperature)
    assert float(info_nce(first, second, temperature)) == pytest.approx(expected, rel=EXACT)


def test_info_nce_is_directed():
    first, second = unit_rows(5, 3, 1), unit_rows(5, 3, 2)
    assert float(info_nce(first, second, 0.4)) != pytest.approx(float(info_nce(second, first, 0.4)), rel=1e-3)


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


def flat_model(inputs: int, outputs: int) -> Model:
    """A linear model on raw pixels: all that a loss needs, and nothing that hides a mistake."""
    torch.manual_seed(3)
    return Model(nn.Flatten(), nn.Linear(inputs, outputs), outputs)


def batch_of(images: torch.Tensor, labels: torch.Tensor | None = None) -> Batch:
    return Batch(images, torch.arange(len(images)), labels, 0)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(2)


@pytest.mark.parametrize(("form", "oracle"), [("infonce", naive.info_nce), ("ntxent", naive.nt_xent)])
def test_simclr_contrasts_two_views_drawn_one_after_the_other(
    open_tiny: Callable[..., Federation], form: str, oracle: Callable[..., float]
):
    task = open_tiny("fedavg", "training.views=orchestra").task
    assert task.views.first != task.views.second
    images = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    model = flat_model(64, 5)
    loss = SimCLR(temperature=0.5, form=form).loss(task, model, nn.Module(), batch_of(images), seeded()).loss
    generator, views = torch.Generator().manual_seed(2), []
    for recipe in (task.views.first, task.views.second):
        pixels = task.augment(images, recipe, generator).flatten(1).double()
        rows = pixels @ model.projector.weight.double().T + model.projector.bias.double()
        views.append((rows / rows.square().sum(1, keepdim=True).sqrt()).tolist())
    # The forward pass is float32: 7 digits, divided by a temperature of 1/2.
    assert float(loss.detach()) == pytest.approx(oracle(*views, 0.5), rel=1e-5)


def test_supervised_is_cross_entropy_of_one_view(open_tiny: Callable[..., Federation]):
    task = open_tiny("fedavg").task
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    labels, model = torch.tensor([0, 3, 1, 1, 2]), flat_model(64, 4)
    loss = Supervised(num_classes=4).loss(task, model, nn.Module(), batch_of(images, labels), seeded()).loss
    pixels = task.augment(images, task.views.first, torch.Generator().manual_seed(2)).flatten(1).double()
    scores = pixels @ model.projector.weight.double().T + model.projector.bias.double()
    expected = naive.cross_entropy(scores.tolist(), labels.tolist())
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)  # the forward pass is float32


def test_the_supervised_head_is_as_wide_as_the_dataset_has_classes(open_tiny: Callable[..., Federation]):
    task = open_tiny("fedavg", "objective=supervised", "model.projection_dim=null").task
    assert task.model(task.initial_weights()).projection_dim == 10
