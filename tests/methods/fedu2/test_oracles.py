"""FedU2's regularizer and aggregator against naive loops."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from rayfed_ssl.methods.fedu2 import FedU2, common_direction, inner_products, uniformity_loss
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import Weights
from tests.methods.conftest import Open
from tests.methods.fedu2 import naive
from tests.methods.steps import client_of, linear
from tests.tensors import EXACT, rows, seeded, unit_rows


@pytest.mark.parametrize(("num", "dim", "num_points", "num_directions"), [(1, 2, 1, 1), (5, 3, 2, 4), (4, 7, 3, 2)])
def test_the_uniformity_loss(num: int, dim: int, num_points: int, num_directions: int):
    samples = unit_rows(num, dim, 1), unit_rows(num, dim, 2), unit_rows(num_points, dim, 3)
    directions = rows(num_points * num_directions, dim, 4).view(num_points, num_directions, dim)
    expected = naive.uniformity(*(part.tolist() for part in samples), directions.tolist())
    found = float(uniformity_loss(*samples, directions))
    assert found == pytest.approx(
        expected, rel=1e-9
    )  # theta / sin(theta) and tangents of unit length, near opposite points


def test_gradients_are_right_and_finite_at_the_tangent_points():
    samples, uniform, points = unit_rows(4, 3, 1).requires_grad_(), unit_rows(4, 3, 2), unit_rows(2, 3, 3)
    directions = rows(6, 3, 4).view(2, 3, 3)
    assert torch.autograd.gradcheck(lambda z: uniformity_loss(z, uniform, points, directions), samples)
    same = torch.cat([points, -points]).requires_grad_()
    uniformity_loss(same, uniform, points, directions).backward()
    assert bool(same.grad.isfinite().all())


@pytest.mark.parametrize(("number", "dim", "seed"), [(1, 3, 0), (2, 3, 1), (3, 2, 2), (5, 4, 3), (4, 9, 4), (3, 2, 5)])
def test_the_common_direction_is_the_shortest_combination(number: int, dim: int, seed: int):
    vectors = F.normalize(rows(number, dim, seed) + 0.5, dim=1)
    found = common_direction(vectors @ vectors.T)
    expected = torch.tensor(naive.common_direction(vectors.tolist()), dtype=torch.float64)
    assert float(found.min()) >= 0
    assert float(found.sum()) == pytest.approx(1, rel=EXACT)
    shortest = float((expected @ vectors).norm())
    assert float((found @ vectors).norm()) == pytest.approx(shortest, abs=1e-4)  # descent is not exact
    assert float((found @ vectors).norm()) <= shortest + 1e-12


def test_no_client_loses_by_the_common_direction():
    vectors = F.normalize(rows(6, 12, 1) + 0.4, dim=1)
    weights = common_direction(vectors @ vectors.T)
    gains = vectors @ (weights @ vectors)
    active = weights > 1e-9
    torch.testing.assert_close(gains[active], gains.min().expand(int(active.sum())), rtol=1e-9, atol=0)
    assert float(gains.min()) > 0


def test_inner_products_are_those_of_moves_over_all_tensors():
    trees = [{"a": rows(2, 3, seed).float(), "b": rows(1, 4, seed + 9).float()} for seed in range(4)]
    flat = torch.stack([torch.cat([tree["a"].flatten(), tree["b"].flatten()]) for tree in trees]).double()
    moves = flat[1:] - flat[0]
    torch.testing.assert_close(inner_products(trees[0], trees[1:]), moves @ moves.T, rtol=EXACT, atol=EXACT)


def flattened(weights: Weights, names: list[str]) -> list[float]:
    return [value for name in names for value in weights[name].flatten().double().tolist()]


@pytest.mark.parametrize("server_lr", [None, 0.75])
def test_the_server_moves_by_the_common_direction_and_averages_statistics(open_tiny: Open, server_lr: float | None):
    federation = open_tiny("fedu2", *([] if server_lr is None else [f"method.server_lr={server_lr}"]))
    (round,) = play(federation, 1)
    trained = [name for name, _ in federation.task.model(round.server.weights).named_parameters()]
    start, *ends = (
        flattened(weights, trained)
        for weights in (round.server_before.weights, *(upload.weights for upload in round.uploads.values()))
    )
    moves = torch.tensor(ends, dtype=torch.float64) - torch.tensor(start, dtype=torch.float64)
    units = F.normalize(moves, dim=1)
    lambdas = common_direction(units @ units.T)
    numbers = torch.tensor([upload.num_samples for upload in round.uploads.values()], dtype=torch.float64)
    step = float((numbers / numbers.sum() * moves.norm(dim=1)).sum()) if server_lr is None else 2 * server_lr
    expected = naive.aggregated(start, ends, lambdas.tolist(), step)
    found = torch.tensor(flattened(round.server.weights, trained))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=1e-7)
    assert round.metrics["agreement"] == pytest.approx(float((lambdas @ units).norm()), rel=1e-6)
    assert 0 < round.metrics["agreement"] < 1
    for name in set(round.server.weights) - set(trained):
        values = torch.stack([upload.weights[name].double() for upload in round.uploads.values()])
        mean = (numbers / numbers.sum()) @ values.reshape(len(values), -1)
        found = round.server.weights[name].double().flatten()
        torch.testing.assert_close(found, mean if "running" in name else mean.round(), rtol=1e-6, atol=1e-7)


def test_the_term_draws_by_the_methods_own_generator(open_tiny: Open):
    task = open_tiny("fedu2").task
    client = replace(client_of(task), method_generator=seeded(9))
    before = client.generator.get_state()
    method, projections = FedU2(uniformity=0.5, tangent_points=2, directions=3), rows(6, 5, 1).float()
    found = method.local_term(None, client)(linear(), projections)
    own = seeded(9)
    uniform, points, directions = (torch.randn(*shape, generator=own) for shape in ((6, 5), (2, 5), (2, 3, 5)))
    z, uniform, points = (F.normalize(part.double(), dim=1) for part in (projections, uniform, points))
    expected = 0.5 * naive.uniformity(*(part.tolist() for part in (z, uniform, points)), directions.tolist())
    assert float(found) == pytest.approx(expected, rel=1e-4)  # float32
    assert torch.equal(client.generator.get_state(), before)
