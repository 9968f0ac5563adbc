"""FCL's equations 1 to 11 against naive loops."""

import math

import pytest
import torch

from rayfed_ssl.methods import FCL, fcl
from rayfed_ssl.objectives.moco import KeyQueue, MoCoState, queue_contrast
from rayfed_ssl.training.objective import Batch
from tests.methods.conftest import Open
from tests.methods.fcl import naive as naive_fcl
from tests.methods.steps import linear, pixels, projected_to_unit
from tests.tensors import EXACT, seeded, unit_rows


@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize(("num", "dim"), [(1, 2), (3, 4), (5, 3)])
def test_neighborhood_matching_is_eq_8_to_11(num: int, dim: int, count: int, temperature: float):
    """For every N from 1 to K: with N = K each set holds one feature."""
    queries, candidates = unit_rows(num, dim, 1), unit_rows(7, dim, 2)
    expected = naive_fcl.neighborhood(queries.tolist(), candidates.tolist(), count, temperature)
    found = float(fcl.neighborhood_loss(queries, candidates, count, temperature))
    # The loops take differences of numbers near 1 where a match is nearly certain: absolute there.
    assert found == pytest.approx(expected, rel=EXACT, abs=1e-15)


@pytest.mark.parametrize("count", [1, 3, 6, 7, 50])
@pytest.mark.parametrize("temperature", [1e-3, 0.1])
def test_duplicates_and_certain_matches_give_finite_losses_and_gradients(count: int, temperature: float):
    """All features equal; and a query that is its own neighbor at a temperature at which nothing else counts."""
    same = torch.ones(7, 3) / math.sqrt(3)
    sure = torch.cat([torch.eye(3), -torch.eye(3), torch.eye(3)[:1]])
    for candidates in (same, sure):
        queries = candidates[:2].clone().requires_grad_()
        loss = fcl.neighborhood_loss(queries, candidates, count, temperature)
        (gradient,) = torch.autograd.grad(loss, queries)
        assert bool(loss.isfinite())
        assert bool(gradient.isfinite().all())


def test_candidates_are_drawn_from_both_banks_and_are_as_many_as_the_local_one_holds():
    local, remote = torch.arange(6.0).view(6, 1), torch.arange(6.0, 16.0).view(10, 1)
    generator = seeded()
    draws = [fcl.draw_candidates(local, remote, generator).flatten().tolist() for _ in range(400)]
    assert all(len(set(draw)) == 6 for draw in draws)
    counts = [sum(value in draw for draw in draws) for value in range(16)]
    # Each value is drawn with probability 6 / 16; 400 draws have a spread of 9.7: five sigma.
    assert all(abs(count - 400 * 6 / 16) < 49 for count in counts)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("negatives", ["both", "remote"])
@pytest.mark.parametrize("num_remote", [0, 4])
def test_the_contrast_with_fused_features_is_eq_3_and_6(num_remote: int, negatives: str, temperature: float):
    queries, keys, local, remote = (unit_rows(n, 3, seed) for seed, n in enumerate((2, 2, 5, num_remote)))
    fused = fcl.fused_negatives(local, remote, negatives)
    found = float(queue_contrast(queries, keys, fused, temperature).mean())
    papers = remote if negatives == "remote" and num_remote else torch.cat([local, remote])
    expected = naive_fcl.contrast(queries.tolist(), keys.tolist(), papers.tolist(), temperature)
    assert found == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("negatives", "strength"), [("both", 0.0), ("both", 0.7), ("remote", 0.7)])
def test_a_steps_loss_is_eq_12(open_tiny: Open, negatives: str, strength: float, symmetric: bool):
    """The views are drawn first, then the candidates; when symmetric, losses of both directions are summed."""
    moco = f"objective={{name: moco, queue_size: 6, temperature: 0.5, symmetric: {str(symmetric).lower()}}}"
    task = open_tiny("fcl", "training.views=orchestra", moco).task
    images, model, target = pixels(4), linear(1), linear(2)
    local, remote = unit_rows(6, 5, 1).float(), unit_rows(7, 5, 2).float()
    method = FCL(negatives=negatives, neighborhood=strength, neighbors=2, neighborhood_temperature=0.3)
    state, batch = MoCoState(target=target, queue=KeyQueue(local.clone())), Batch(images, torch.arange(4), None, 0)
    draws = seeded()
    output = method.loss(task, (draws, draws), remote, model, state, batch)
    generator = seeded()
    views = [task.augment(images, view, generator) for view in (task.views.first, task.views.second)]
    drawn = torch.randperm(13, generator=generator)[:6]
    candidates = torch.cat([remote, local])[drawn].double().tolist()
    fused = remote if negatives == "remote" else torch.cat([local, remote])
    expected = 0.0
    for query_view, key_view in ((0, 1), (1, 0)) if symmetric else ((0, 1),):
        queries, keys = projected_to_unit(model, views[query_view]), projected_to_unit(target, views[key_view])
        expected += naive_fcl.contrast(queries, keys, fused.double().tolist(), 0.5)
        expected += strength * naive_fcl.neighborhood(queries, candidates, 2, 0.3)
    # The forward pass is float32: 7 digits, divided by temperatures.
    assert float(output.loss.detach()) == pytest.approx(expected, rel=1e-5)
    assert set(output.updates) == {"keys"}
    assert len(output.updates["keys"]) == (8 if symmetric else 4)
