"""MoCo, BYOL and SimSiam against naive loops, and against lightly."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models import Model
from rayfed_ssl.objectives import BYOL, MoCo, SimSiam
from rayfed_ssl.objectives.byol import BYOLState, regression_error
from rayfed_ssl.objectives.moco import KeyQueue, MoCoState, queue_contrast
from rayfed_ssl.objectives.simsiam import negative_cosine
from rayfed_ssl.training.task import Task
from tests.objectives import naive_siamese as naive
from tests.objectives.linear_model import batch_of, linear, linear_model, views
from tests.objectives.local_rounds import Open, digits, first_batch, started
from tests.tensors import EXACT, rows, seeded, unit_rows

FORWARD = 1e-5
"""Forward passes are float32: 7 digits, of which sums over 64 pixels and low temperatures take two."""

SHAPES = [(1, 3, 7), (2, 3, 1), (5, 4, 11), (7, 2, 3)]
TEMPERATURES = [0.07, 0.1, 0.2, 2.0]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("num", "dim", "size"), SHAPES)
def test_queue_contrast_is_eq_1_of_moco(num: int, dim: int, size: int, temperature: float):
    queries, keys, negatives = unit_rows(num, dim, 1), unit_rows(num, dim, 2), unit_rows(size, dim, 3)
    expected = [
        naive.moco(q, k, negatives.tolist(), temperature) for q, k in zip(queries.tolist(), keys.tolist(), strict=True)
    ]
    # Where a query is close to its key the loss is a difference of larger numbers.
    assert queue_contrast(queries, keys, negatives, temperature).tolist() == pytest.approx(
        expected, rel=EXACT, abs=1e-14
    )


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_queue_contrast_over_many_steps_is_lightlys(temperature: float):
    torch.manual_seed(0)
    theirs = pytest.importorskip("lightly.loss").NTXentLoss(temperature=temperature, memory_bank_size=(12, 5))
    theirs.memory_bank.bank = theirs.memory_bank.bank.double()
    queue = KeyQueue(theirs.memory_bank.bank.clone())
    for step in range(7):  # 7 x 4 keys go round a queue of 12 twice
        queries, keys = unit_rows(4, 5, 10 + step).requires_grad_(), unit_rows(4, 5, 50 + step)
        reference = queries.detach().clone().requires_grad_()
        ours = queue_contrast(F.normalize(queries), keys, queue.rows, temperature).mean()
        other = theirs(reference, keys)
        assert float(ours.detach()) == pytest.approx(float(other.detach()), rel=EXACT)
        ours.backward()
        other.backward()
        torch.testing.assert_close(queries.grad, reference.grad, rtol=EXACT, atol=EXACT)
        queue.enqueue(keys)
        # lightly normalizes keys of length 1 once more.
        torch.testing.assert_close(queue.rows, theirs.memory_bank.bank, rtol=EXACT, atol=0)


@pytest.mark.parametrize(("num", "dim"), [(1, 3), (5, 4), (7, 2)])
def test_errors_are_eq_2_of_byol_and_eq_1_of_simsiam(num: int, dim: int):
    predictions, targets = rows(num, dim, 1), 3 * rows(num, dim, 2)
    pairs = list(zip(predictions.tolist(), targets.tolist(), strict=True))
    byol, simsiam = [naive.byol(p, z) for p, z in pairs], [-naive.cosine(p, z) for p, z in pairs]
    assert regression_error(predictions, targets).tolist() == pytest.approx(byol, rel=EXACT)
    assert negative_cosine(predictions, targets).tolist() == pytest.approx(simsiam, rel=EXACT)


@pytest.mark.parametrize(
    ("ours", "scale", "shift"), [(negative_cosine, 1, 0), (regression_error, 2, 2)], ids=["simsiam", "byol"]
)
def test_siamese_losses_and_their_gradients_are_lightlys(
    ours: Callable[[Tensor, Tensor], Tensor], scale: int, shift: int
):
    # lightly has one class for both: BYOL's error is 2 + 2 D.
    theirs = pytest.importorskip("lightly.loss").NegativeCosineSimilarity()
    fixed, mine, other = rows(5, 4, 2), rows(5, 4, 1).requires_grad_(), rows(5, 4, 1).requires_grad_()
    loss, reference = ours(mine, fixed).mean(), shift + scale * theirs(other, fixed)
    assert float(loss.detach()) == pytest.approx(float(reference.detach()), rel=EXACT)
    loss.backward()
    reference.backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("loss", [negative_cosine, regression_error])
def test_gradients_stop_at_what_is_predicted(loss: Callable[[Tensor, Tensor], Tensor]):
    predictions, fixed = rows(5, 4, 1).requires_grad_(), rows(5, 4, 2).requires_grad_()
    loss(predictions, fixed).sum().backward()
    assert fixed.grad is None
    assert predictions.grad is not None
    assert bool(predictions.grad.any())


@pytest.mark.parametrize("size", [1, 3, 6, 7])
@pytest.mark.parametrize("batches", [(1,) * 9, (4, 4, 4, 4), (5, 2, 3, 6, 1), (20, 3), (7, 14, 2)])
def test_the_queue_holds_the_last_keys_first_in_first_out(size: int, batches: tuple[int, ...]):
    start = unit_rows(size, 3, 0)
    queue, expected, seen = KeyQueue(start.clone()), start.tolist(), 0
    for step, num in enumerate(batches):
        keys = unit_rows(num, 3, 1 + step)
        queue.enqueue(keys)
        expected, seen = naive.pushed(expected, keys.tolist()), seen + num
        assert int(queue.filled) == seen
        assert queue.rows.roll(-(seen % size), 0).tolist() == expected  # oldest first


def test_without_negatives_every_query_finds_its_key():
    losses = queue_contrast(unit_rows(4, 3, 1), unit_rows(4, 3, 2), torch.empty(0, 3, dtype=torch.float64), 0.1)
    assert losses.tolist() == pytest.approx([0.0] * 4, abs=1e-14)


def projected(pixels: Tensor, model: Model) -> list[list[float]]:
    assert isinstance(model.projector, nn.Sequential)
    return naive.batch_norm(linear(pixels, model.projector[0]).tolist(), 1e-5)


def unit(matrix: list[list[float]]) -> list[list[float]]:
    return F.normalize(torch.tensor(matrix, dtype=torch.float64), dim=1).tolist()


def close(matrix: list[list[float]]) -> list[object]:
    return [pytest.approx(row, rel=1e-3, abs=FORWARD) for row in matrix]


def networks() -> tuple[Model, Model]:
    """An online network with a predictor, and a target."""
    return linear_model(5, norm=True, predictor=nn.Linear(5, 5)), linear_model(5, seed=4, norm=True)


@pytest.mark.parametrize("symmetric", [False, True])
def test_moco_asks_views_for_the_other_views_and_sums_the_directions(task: Task, symmetric: bool):
    (model, target), queue = networks(), unit_rows(9, 5, 5).float()
    state = MoCoState(target=target, queue=KeyQueue(queue.clone()))
    output = MoCo(temperature=0.5, symmetric=symmetric).loss(task, model, state, batch_of(), seeded(2))
    first, second = views(task)
    directions = [(first, second), (second, first)] if symmetric else [(first, second)]
    pairs = [(unit(projected(seen, model)), unit(projected(asked, target))) for seen, asked in directions]
    expected = sum(naive.moco_batch(queries, keys, queue.tolist(), 0.5) for queries, keys in pairs)
    assert float(output.loss.detach()) == pytest.approx(expected, rel=FORWARD)
    assert output.updates["keys"].tolist() == close([key for _, keys in pairs for key in keys])
    assert output.projections.tolist() == close(projected(first, model))
    assert torch.equal(state.queue.rows, queue)


@pytest.mark.parametrize(("key_groups", "sizes"), [(2, [3, 3]), (3, [2, 2, 2]), (50, [2, 2, 2])])
def test_key_groups_are_encoded_one_by_one_and_put_back_in_order(task: Task, key_groups: int, sizes: list[int]):
    model, target = networks()
    state, generator = MoCoState(target=target, queue=KeyQueue(unit_rows(9, 5, 5).float())), seeded(2)
    keys = MoCo(symmetric=False, key_groups=key_groups).encode(task, model, state, batch_of(), seeded(2)).keys
    _, pixels = (view.flatten(1).double() for view in task.two_views(batch_of().images, generator))
    expected = torch.empty(6, 5, dtype=torch.float64)
    for group in torch.randperm(6, generator=generator).split(sizes):
        expected[group] = torch.tensor(unit(projected(pixels[group], target)), dtype=torch.float64)
    torch.testing.assert_close(keys.double(), expected, rtol=1e-3, atol=FORWARD)


def predicted(projections: list[list[float]], model: Model) -> list[list[float]]:
    return linear(torch.tensor(projections, dtype=torch.float64), model.part("predictor")).tolist()


def test_byol_predicts_the_targets_view_of_the_other_view(task: Task):
    model, target = networks()
    output = BYOL().loss(task, model, BYOLState(target=target), batch_of(), seeded(2))
    z1, z2 = (projected(view, model) for view in views(task))
    targets = [projected(view, target) for view in views(task)]
    expected = naive.byol_batch(predicted(z1, model), predicted(z2, model), *targets)
    assert float(output.loss.detach()) == pytest.approx(expected, rel=FORWARD)
    assert output.projections.tolist() == close(z1)


def test_simsiam_predicts_its_own_view_of_the_other_view(task: Task):
    model, _ = networks()
    output = SimSiam().loss(task, model, nn.Module(), batch_of(), seeded(2))
    z1, z2 = (projected(view, model) for view in views(task))
    expected = naive.simsiam_batch(predicted(z1, model), predicted(z2, model), z1, z2)
    assert float(output.loss.detach()) == pytest.approx(expected, rel=FORWARD)
    assert output.projections.tolist() == close(z1)


@pytest.mark.parametrize("name", ["moco", "byol"])
def test_the_target_moves_by_the_slow_mean_of_parameters(open_objective: Open, name: str):
    federation = open_objective(name)
    task, data = federation.task, digits(federation, 2)
    objective = replace(task.objective, momentum=0.9)
    model, state = started(task, data)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=seeded(1)))
    before = {key: value.clone() for key, value in state.target.state_dict().items()}
    output = objective.loss(task, model, state, first_batch(data, 2), seeded(3))
    statistics = {key: value.clone() for key, value in state.target.named_buffers()}
    objective.finish_step(task, model, state, output)
    online = dict(model.named_parameters())
    for key, value in state.target.named_parameters():
        slow = naive.slow(before[key].flatten().double().tolist(), online[key].flatten().double().tolist(), 0.9)
        # float32: 7 digits, and where both nearly cancel, of numbers of size 1.
        expected = torch.tensor(slow, dtype=torch.float64)
        assert ((value.flatten() - expected).abs() <= (1e-6 * expected.abs()).clamp(min=1e-7)).all()
    for key, value in state.target.named_buffers():
        assert torch.equal(value, statistics[key]), f"{key} is the target's own"
