"""FedX's relational loss and its step against naive loops."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.method import Client
from rayfed_ssl.methods.fedx import Draws, FedX, relational_loss
from rayfed_ssl.models import Model
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.task import Task
from tests.methods.conftest import Open
from tests.methods.fedx import naive
from tests.methods.steps import linear, pixels, projected
from tests.tensors import EXACT, rows, seeded, unit_rows


@pytest.mark.parametrize(("temperature", "target_temperature"), [(0.1, 0.1), (0.1, 0.3), (1.0, 0.5)])
@pytest.mark.parametrize(("num", "num_anchors", "dim"), [(1, 2, 3), (5, 3, 4), (3, 7, 2)])
def test_the_relational_loss(num: int, num_anchors: int, dim: int, temperature: float, target_temperature: float):
    views = unit_rows(num, dim, 1), unit_rows(num, dim, 2), unit_rows(num_anchors, dim, 3)
    expected = naive.relational(*(view.tolist() for view in views), temperature, target_temperature)
    assert float(relational_loss(*views, temperature, target_temperature)) == pytest.approx(expected, rel=EXACT)


def test_views_in_the_same_relation_have_no_relational_loss():
    view, anchors = unit_rows(4, 3, 1), unit_rows(5, 3, 2)
    assert float(relational_loss(view, view, anchors, 0.2, 0.2)) == pytest.approx(0, abs=1e-15)
    assert float(relational_loss(view, view, anchors, 0.2, 0.1)) > 0.01  # the target is sharper than its student


def test_gradients_flow_through_targets_and_anchors():
    first, second, anchors = (rows(3, 4, seed).requires_grad_() for seed in range(3))
    assert torch.autograd.gradcheck(lambda *views: relational_loss(*views, 0.7, 0.4), (first, second, anchors))


def test_a_sharp_target_stays_finite():
    view, anchors = unit_rows(4, 3, 1).float().requires_grad_(), unit_rows(5, 3, 2).float()
    relational_loss(view, -view, anchors, 0.1, 0.001).backward()
    assert bool(view.grad.isfinite().all())


def heads() -> dict[str, nn.Module]:
    return {"predictor": nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))}


def predicted(model: Model, projections: Tensor) -> Tensor:
    first, _, last = model.part("predictor")
    hidden = (projections @ first.weight.detach().double().T + first.bias.detach().double()).clamp(min=0)
    return hidden @ last.weight.detach().double().T + last.bias.detach().double()


@pytest.fixture
def task(open_tiny: Open) -> Task:
    return replace(open_tiny("fedx", "training.views=orchestra", "objective.temperature=0.5").task, batch=4)


def two_generators(task: Task, num: int) -> Client:
    data = Shard(pixels(num), torch.arange(num))
    return Client(0, 2, data, None, task, seeded(0), seeded(9))


WEIGHTS = [(1.0, 1.0, 1.0), (0.5, 0.0, 0.0), (0.0, 2.0, 0.0), (0.0, 0.0, 3.0)]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_step_contrasts_and_relates_views_anchors_and_what_the_global_model_sees(
    task: Task, weights: tuple[float, float, float]
):
    client, model, teacher = two_generators(task, 7), linear(3, heads=heads()), linear(4)
    names = ("local_relation", "global_contrast", "global_relation")
    method = FedX(**dict(zip(names, weights, strict=True)), target_temperature=0.3)
    batch = Batch(client.data.batch(torch.tensor([5, 1, 3])), torch.tensor([5, 1, 3]), None, 0)
    given = Draws(client.generator, seeded(5), client.method_generator)
    step = method.distil(task, client.data, given, teacher, model, nn.Module(), batch)

    draws, own, choices = seeded(0), seeded(9), seeded(5)
    views = task.two_views(batch.images, draws)
    chosen = torch.randperm(7, generator=choices)[:4]
    anchors = task.augment(client.data.batch(chosen), task.views.first, own)
    z = [projected(model, view) for view in (*views, anchors)]
    h = [predicted(model, projections) for projections in z[:2]]
    seen = [projected(teacher, view) for view in (views[1], anchors)]
    lists = ([part.tolist() for part in group] for group in (z, h, seen))
    expected = naive.total(*map(tuple, lists), weights, 0.5, 0.3)
    assert float(step.loss.detach()) == pytest.approx(expected, rel=1e-5)  # float32 sums of 64 pixels
    torch.testing.assert_close(step.projections.detach().double(), z[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(client.generator.get_state(), draws.get_state())  # samples and views stay those of SimCLR


def test_what_the_global_model_projects_has_no_gradient(task: Task):
    client, model, teacher = two_generators(task, 7), linear(3, heads=heads()), linear(4)
    batch = Batch(client.data.batch(torch.arange(3)), torch.arange(3), None, 0)
    given = Draws(client.generator, seeded(5), client.method_generator)
    FedX().distil(task, client.data, given, teacher, model, nn.Module(), batch).loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(float(parameter.grad.abs().sum()) > 0 for parameter in model.parameters())
