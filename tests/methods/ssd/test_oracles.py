"""SSD's terms and its loss against naive loops."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rayfed_ssl.methods import SSD
from rayfed_ssl.methods.ssd import distillation, scales, separation
from rayfed_ssl.objectives import AlignUniform
from rayfed_ssl.training.objective import Batch
from tests.methods.conftest import Open
from tests.methods.ssd import naive
from tests.methods.steps import linear, pixels, projected
from tests.naive import unit
from tests.objectives import naive_align_uniform
from tests.tensors import EXACT, rows, seeded, unit_rows


@pytest.mark.parametrize(
    ("client_id", "width", "share", "own"),
    [
        (0, 10, 0.2, {0, 1}),
        (4, 10, 0.2, {8, 9}),
        (2, 10, 0.39, {6, 7, 8}),
        (3, 10, 0.39, {9, 0, 1}),
        (1, 4, 1.0, {0, 1, 2, 3}),
        (0, 100, 0.29, set(range(29))),
    ],
)
def test_a_client_stretches_dimensions_of_its_own(client_id: int, width: int, share: float, own: set[int]):
    vector = scales(client_id, width, share, 7.0)
    assert {place for place, value in enumerate(vector.tolist()) if value == 7} == own
    assert vector.sum() == width + 6 * len(own)


def test_ten_clients_share_512_dimensions_as_in_the_code():
    taken = torch.stack([scales(client_id, 512, 0.1, 10.0) > 1 for client_id in range(10)])
    assert taken.sum(1).tolist() == [51] * 10
    assert int(taken.sum(0).max()) == 1, "no dimension has two clients"


@pytest.mark.parametrize(("num", "dim"), [(2, 3), (5, 4), (7, 6)])
def test_separation_is_the_distance_from_what_is_stretched(num: int, dim: int):
    units = unit_rows(num, dim, 1)
    stretch = scales(1, dim, 0.34, 10.0).double()
    own = {place for place in range(dim) if stretch[place] != 1}
    expected = naive.separation(units.tolist(), own, 10.0)
    assert own
    assert float(separation(units, stretch)) == pytest.approx(expected, rel=EXACT)


def test_rows_that_are_their_own_targets_have_a_finite_gradient():
    units = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    separation(units, torch.tensor([10.0, 1.0])).backward()
    assert torch.equal(units.grad, torch.zeros(2, 2))


@pytest.mark.parametrize("tau", [0.5, 2.0])
@pytest.mark.parametrize(("num", "dim"), [(1, 3), (5, 4)])
def test_distillation_is_the_divergence_of_features_from_projections(num: int, dim: int, tau: float):
    features, projections = rows(num, dim, 1), rows(num, dim, 2)
    expected = naive.distillation(features.tolist(), projections.tolist(), tau)
    assert float(distillation(features, projections, tau)) == pytest.approx(expected, rel=EXACT)


def test_the_loss_is_the_weighted_sum_over_both_views(open_tiny: Open):
    task = replace(open_tiny("ssd").task, objective=AlignUniform(beta=0.3, t=1.5), projection_dim=64)
    model = linear(dim=64)
    stretch, method = scales(1, 64, 0.2, 4.0), SSD(gamma=0.7, delta=0.2)
    ours = method.loss(task, seeded(), stretch, model, nn.Module(), Batch(pixels(6), torch.arange(6), None, 0))
    views = task.two_views(pixels(6), seeded())
    features = [view.flatten(1).double().tolist() for view in views]
    projections = [projected(model, view).tolist() for view in views]
    units = [[unit(row) for row in z] for z in projections]
    own = set(range(12, 24))
    separate = sum(naive.separation(u, own, 4.0) for u in units) / 2
    distil = sum(naive.distillation(h, z, 0.5) for h, z in zip(features, projections, strict=True)) / 2
    expected = naive_align_uniform.loss(*units, 0.3, 1.5) + 0.7 * separate + 0.2 * distil
    assert float(ours.loss.detach()) == pytest.approx(expected, rel=1e-5)  # the forward pass is float32
