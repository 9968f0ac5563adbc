"""Local training: which batches are seen, which numbers are reported, what is left untouched."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.models import Model
from rayfed_ssl.objectives import SimCLR
from rayfed_ssl.training.batching import finite
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import Adam
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import digest

Open = Callable[..., Federation]


@dataclass(frozen=True, kw_only=True)
class BatchSize(SimCLR):
    """An objective whose loss is the number of samples in the batch, whatever the model does."""

    def loss(self, task: Task, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator) -> StepOutput:
        terms = super().loss(task, model, state, batch, generator)
        return replace(terms, loss=terms.loss * 0 + len(batch.images))


@dataclass(frozen=True, kw_only=True)
class Recording(SimCLR):
    """SimCLR that keeps a note of the images it was shown."""

    seen: list[Tensor]

    def loss(self, task: Task, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator) -> StepOutput:
        self.seen.append(batch.images.clone())
        return super().loss(task, model, state, batch, generator)


@pytest.fixture
def federation(open_tiny: Open) -> Federation:
    return open_tiny("flesd")


def fit(federation: Federation, num_samples: int, **settings: object) -> dict[str, float]:
    task = replace(federation.task, **settings)
    model = task.model(task.initial_weights())
    shard = Shard.of(federation.dataset.train.images, torch.arange(num_samples).numpy(), "cpu")
    return task.fit(model, shard, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("num_samples", "batch", "drop_last", "sizes"),
    [
        (10, 4, False, [4, 4, 2]),
        (10, 4, True, [4, 4]),
        (9, 4, False, [4, 4]),  # one sample has nothing to be contrasted with
        (8, 4, True, [4, 4]),
        (3, 4, False, [3]),
        (3, 4, True, [3]),  # a shard smaller than a batch is a batch
        (2, 2, False, [2]),
    ],
)
def test_the_batches_of_an_epoch(
    federation: Federation, num_samples: int, batch: int, drop_last: bool, sizes: list[int]
):
    seen: list[Tensor] = []
    settings = {"batch": batch, "drop_last": drop_last, "objective": Recording(seen=seen)}
    metrics = fit(federation, num_samples, epochs=2, **settings)
    assert [len(images) for images in seen] == sizes * 2
    assert metrics["steps"] == 2 * len(sizes)
    assert metrics["samples"] == 2 * sum(sizes)


def test_an_epoch_shows_every_sample_once_and_the_next_in_another_order(federation: Federation):
    seen: list[Tensor] = []
    fit(federation, 12, epochs=2, batch=4, objective=Recording(seen=seen))
    epochs = [[image.numpy().tobytes() for images in part for image in images] for part in (seen[:3], seen[3:])]
    shown = {image.tobytes() for image in federation.dataset.train.images[:12]}
    assert set(epochs[0]) == set(epochs[1]) == shown
    assert epochs[0] != epochs[1]


def test_the_reported_loss_is_the_mean_over_samples(federation: Federation):
    metrics = fit(federation, 10, epochs=1, batch=4, objective=BatchSize())
    assert metrics["loss"] == metrics["loss_first"] == (4 * 4 + 4 * 4 + 2 * 2) / 10


def test_terms_train_and_are_reported_apart_from_the_loss(federation: Federation):
    task, digests, metrics = replace(federation.task, epochs=1, batch=100), [], []
    shard = Shard.of(federation.dataset.train.images, torch.arange(10).numpy(), "cpu")
    start = task.initial_weights()
    size = 1000 * float(start["projector.0.weight"].square().sum())
    for terms in (
        (),
        (lambda model, projections: 1000 * model.projector[0].weight.square().sum(), lambda *_: torch.ones(())),
    ):
        model = task.model(start)
        metrics.append(task.fit(model, shard, torch.Generator().manual_seed(0), terms=terms))
        digests.append(digest(model.state_dict()))
    assert metrics[0]["loss"] == metrics[1]["loss"]  # one step: both losses are those of the first weights
    assert digests[0] != digests[1]
    assert "terms" not in metrics[0]
    assert metrics[1]["terms"] == pytest.approx(size + 1, rel=1e-6)


@pytest.mark.parametrize("num_samples", [0, 1])
def test_fewer_than_two_samples_are_refused(federation: Federation, num_samples: int):
    with pytest.raises(ValueError, match=f"at least 2 samples to train, got {num_samples}: lower clients.number"):
        fit(federation, num_samples)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_names_the_learning_rate(loss: float):
    descent = Adam(lr=0.25).over([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(ValueError, match=r"in epoch 3 at learning rate 0\.25: lower the learning rate"):
        finite(loss, "epoch 3", descent)
    assert finite(1.5, "epoch 3", descent) == 1.5


def test_projections_are_unit_rows_in_order_and_leave_the_model_as_it_was(federation: Federation):
    task, rows = federation.task, torch.arange(11)
    model = task.model(task.initial_weights())
    shard = Shard.of(federation.dataset.train.images, rows.numpy(), "cpu")
    before = digest(model.state_dict())
    projections = task.project(model, shard, batch=4)
    assert digest(model.state_dict()) == before
    assert model.training
    assert (projections.shape, projections.dtype) == ((11, 24), torch.float32)
    torch.testing.assert_close(projections.norm(dim=1), torch.ones(11), rtol=1e-6, atol=0)  # float32
    turned = Shard(shard.images, shard.rows.flip(0))
    # Other batches, other order of float32 sums.
    torch.testing.assert_close(task.project(model, turned, batch=11).flip(0), projections, rtol=0, atol=1e-5)


def test_everybody_starts_from_weights_that_the_seed_and_the_architecture_decide(open_tiny: Open):
    first, second = (open_tiny("fedavg", f"seed={seed}").task for seed in (0, 1))
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    assert digest(first.initial_weights()) == digest(first.initial_weights("cnn"))
    assert digest(first.initial_weights()) != digest(second.initial_weights())
    assert set(first.initial_weights("vgg9")) != set(first.initial_weights())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_architectures_go_round_by_client_id(open_tiny: Open):
    task = open_tiny("local", "clients.models=[cnn, vgg9]").task
    assert [task.architecture(client_id) for client_id in range(4)] == ["cnn", "vgg9", "cnn", "vgg9"]
    assert task.heterogeneous
    assert not open_tiny("local", "clients.models=[cnn]").task.heterogeneous
