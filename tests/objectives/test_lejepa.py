"""LeJEPA's SIGReg against lightly's and against the integral, and what its terms are of views that are easily understood."""

import math

import pytest
import torch
from lightly.loss.lejepa_loss import SIGReg, lejepa_invariance_loss
from torch import nn

from rayfed_ssl.objectives import LeJEPA
from rayfed_ssl.objectives.lejepa import directions, epps_pulley
from rayfed_ssl.training.task import Task
from tests.objectives.linear_model import IMAGES, batch_of, linear, linear_model, views
from tests.tensors import rows, seeded


@pytest.mark.parametrize(("number", "dim", "knots"), [(2, 3, 5), (32, 8, 17)])
def test_the_statistic_is_lightlys(number: int, dim: int, knots: int):
    theirs = SIGReg(knots=knots, num_vectors=40)
    projections = rows(number, dim, 1).float()
    along = theirs._generate_unit_vectors(projections.device, projections.dtype, dim)
    theirs._generate_unit_vectors = lambda *_: along  # type: ignore[method-assign]
    ours = epps_pulley(projections @ along, 3.0, knots).mean()
    assert float(ours) == pytest.approx(float(theirs(projections)), rel=1e-5)


def test_the_statistic_is_the_papers_integral_over_all_frequencies():
    """With many knots, against the closed form of the Epps-Pulley integral over the whole line."""
    x = rows(6, 1, 3)[:, 0]
    pairs = (-(x[:, None] - x[None, :]).square() / 2).exp().sum() / len(x)
    single = math.sqrt(2) * (-x.square() / 4).exp().sum()
    closed = math.sqrt(2 * math.pi) * (pairs - single + len(x) / math.sqrt(3))
    assert float(epps_pulley(x[:, None], 12.0, 4001)) == pytest.approx(float(closed), rel=1e-6)


def test_a_normal_sample_has_a_small_statistic_and_a_collapsed_one_a_large_one():
    normal = torch.randn(4000, 6, generator=seeded(0))
    along = directions(6, 64, seeded(1), torch.device("cpu"))
    assert torch.allclose(along.norm(dim=0), torch.ones(64))
    assert float(epps_pulley(normal @ along, 3.0, 17).mean()) < 2
    assert float(epps_pulley(torch.zeros(4000, 64), 3.0, 17).mean()) > 1000


def test_the_loss_weighs_the_distance_to_the_mean_of_views_and_the_statistic_of_each(task: Task):
    model, generator = linear_model(5), seeded(2)
    for recipe in (task.views.first, task.views.second):  # the objective draws views, then directions
        task.augment(IMAGES, recipe, generator)
    along = directions(5, 16, generator, task.device)
    projected = torch.stack([linear(view, model.projector).float() for view in views(task)])
    invariance = lejepa_invariance_loss(all_proj=projected, global_proj=projected)
    statistic = sum(epps_pulley(view @ along, 3.0, 17).mean() for view in projected) / 2
    for strength in (0.0, 0.3, 1.0):
        objective = LeJEPA(strength=strength, directions=16)
        loss = objective.loss(task, model, nn.Module(), batch_of(), seeded(2)).loss
        assert float(loss.detach()) == pytest.approx(
            float((1 - strength) * invariance + strength * statistic), rel=1e-4
        )
