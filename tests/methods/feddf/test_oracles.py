"""FedMD and FedDF at the level of features: equations against naive loops, distillation against a second one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.method import Server
from rayfed_ssl.methods import FedDF, FedMD, feddf, fedmd
from rayfed_ssl.models import Model
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import frozen, tensor_mean
from tests.methods.conftest import Open
from tests.methods.feddf import naive
from tests.methods.steps import client_of, linear
from tests.tensors import EXACT, rows, seeded

Loss = Callable[[Tensor, Tensor], Tensor]

SHAPES = [(1, 3), (4, 3), (3, 5)]


@pytest.mark.parametrize("num_clients", [1, 2, 3])
def test_consensus_and_mean_teacher_are_the_plain_mean(num_clients: int):
    matrices = [rows(4, 3, seed) for seed in range(num_clients)]
    before = [matrix.clone() for matrix in matrices]
    expected = torch.tensor(naive.mean_matrix([m.tolist() for m in matrices]), dtype=torch.float64)
    for found in (fedmd.consensus(iter(matrices)), tensor_mean(iter(matrices))):
        torch.testing.assert_close(found, expected, rtol=EXACT, atol=1e-15)
    assert all(torch.equal(matrix, old) for matrix, old in zip(matrices, before, strict=True))


def test_the_consensus_of_one_client_is_its_projections_bit_for_bit():
    only = rows(4, 3, 1).float()
    assert torch.equal(fedmd.consensus([only]), only)


@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_digesting_minimizes_the_mean_absolute_error(num: int, dim: int):
    projections, agreed = rows(num, dim, 1), rows(num, dim, 2)
    expected = naive.absolute_error(projections.tolist(), agreed.tolist())
    assert float(fedmd.digest_loss(projections, agreed)) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(("num", "dim"), SHAPES)
@pytest.mark.parametrize(("distance", "oracle"), [("mse", naive.squared_error), ("cosine", naive.cosine_distance)])
def test_students_minimize_the_distance_to_the_mean_teacher(num: int, dim: int, distance: str, oracle: Callable):
    projections, taught = rows(num, dim, 1), rows(num, dim, 2)
    expected = oracle(projections.tolist(), taught.tolist())
    assert float(feddf.distance_loss(projections, taught, distance)) == pytest.approx(expected, rel=EXACT)


def fit_by_hand(
    model: Model, optimizer: torch.optim.Optimizer, public: Shard, task: Task, loss: Loss, epochs: int
) -> list[float]:
    """Pass over the public samples in batches of 16; gives the mean loss of each pass."""
    generator, means = seeded(), []
    for _ in range(epochs):
        losses = []
        for index in torch.randperm(len(public), generator=generator).split(16):
            z = model(normalize(public.batch(index), task.views.first))[1]
            value = loss(z / z.norm(dim=1, keepdim=True), index)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses += [float(value.detach())] * len(index)
        means.append(sum(losses) / len(losses))
    return means


@pytest.mark.parametrize("distance", ["mse", "cosine"])
def test_feddf_distils_step_by_step(open_tiny: Open, distance: str):
    federation = open_tiny("feddf")
    task, public = federation.task, federation._server_public
    taught = torch.nn.functional.normalize(rows(len(public), 6, 9).float())
    method = FedDF(distil_epochs=2, distil_batch=16, distance=distance)
    student, expected = linear(dim=6), linear(dim=6)
    metrics = method.distil(student, taught, Server(1, public, task, seeded()))

    def loss(units: Tensor, index: Tensor) -> Tensor:
        cosines = [a @ b / (a.norm() * b.norm()) for a, b in zip(units, taught[index], strict=True)]
        squares = [(a - b).square().mean() for a, b in zip(units, taught[index], strict=True)]
        return torch.stack(squares).mean() if distance == "mse" else 1 - torch.stack(cosines).mean()

    epochs = fit_by_hand(expected, torch.optim.Adam(expected.parameters(), lr=1e-3), public, task, loss, 2)
    assert metrics["steps"] == 2 * 3  # 45 samples in batches of 16, 16 and 13
    assert [metrics["loss_first"], metrics["loss"]] == pytest.approx(epochs, rel=1e-5)  # float32
    for found, other in zip(student.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=2e-5)  # six steps of 1e-3 by Adam
    assert (student.projector.weight - linear(dim=6).projector.weight).abs().mean() > 1e-3


def test_fedmd_digests_the_consensus_of_the_public_samples_and_nothing_else(open_tiny: Open):
    """One pass over the public data in batches of 16, from the client's own weights, with its own optimizer."""
    federation = open_tiny("fedmd", "training.optimizer={name: sgd, lr: 0.5, weight_decay: 0, momentum: 0}")
    task, public = federation.task, federation._server_public
    weights = task.initial_weights()
    agreed = torch.nn.functional.normalize(rows(len(public), 24, 9).float())
    private = Shard(torch.zeros_like(public.images), public.rows)
    fitted, metrics = FedMD(digest_batch=16).digest(weights, agreed, client_of(task, private, public))
    expected = task.model(weights)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.5)
    (mean,) = fit_by_hand(
        expected, optimizer, public, task, lambda units, index: (units - agreed[index]).abs().mean(), 1
    )
    assert metrics["digest_loss"] == pytest.approx(mean, rel=1e-3)
    # Three float32 steps; what they moved is four orders above the tolerance.
    for name, value in frozen(expected.state_dict()).items():
        torch.testing.assert_close(fitted[name], value, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")
    assert (fitted["projector.2.weight"] - weights["projector.2.weight"]).abs().max() > 1e-4
    moved = {name for name, value in fitted.items() if not torch.equal(value, weights[name])}
    assert moved == set(weights)


def test_a_students_memory_is_not_touched_by_digesting(open_tiny: Open):
    federation = open_tiny("fedmd")
    public = federation._server_public
    weights = federation.task.initial_weights() | {"target.slow": torch.ones(3)}
    client = client_of(federation.task, public, public)
    fitted, _ = FedMD().digest(weights, torch.zeros(len(public), 24), client)
    assert set(weights) - set(fitted) == {"target.slow"}
