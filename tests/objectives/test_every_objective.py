"""What every objective does: on shards on which one may stumble, in any precision, after a pause, over many steps."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rayfed_ssl.engine.federation import Federation
from tests.objectives.local_rounds import digits, first_batch, resumed, seeded, started, undisturbed
from tests.objectives.small_shards import KINDS, check_finite, shard, train

Open = Callable[..., Federation]

OBJECTIVES = {
    "simclr": (),
    "byol": ("objective.hidden=48",),
    "moco": ("objective.queue_size=50",),
    "simsiam": ("objective.hidden=48", "objective.predictor_hidden=12"),
    "swav": ("objective.prototypes=6", "objective.queue_size=8", "objective.queue_epoch=0"),
    "deepcluster": ("objective.clusters=6",),
    "rotation": ("model.projection_dim=null",),
    "autoencoder": ("model.projection_dim=null",),
}
everywhere = pytest.mark.parametrize("name", OBJECTIVES)


def open_objective(open_tiny: Open, name: str, *overrides: str) -> Federation:
    return open_tiny("fedavg", f"objective={name}", *OBJECTIVES[name], *overrides)


@pytest.mark.parametrize("kind", KINDS)
@everywhere
def test_degenerate_clients_train_to_finite_weights(open_tiny: Open, name: str, kind: str):
    federation = open_objective(open_tiny, name, "training.epochs=2", "training.batch=4")
    weights, metrics = train(federation.task, shard(federation, kind))
    check_finite(weights)
    assert metrics["loss"] == metrics["loss"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@everywhere
def test_losses_and_projections_are_float32(open_tiny: Open, name: str, precision: str):
    task = (federation := open_objective(open_tiny, name, f"engine.precision={precision}")).task
    data = digits(federation, 8)
    model, state = started(task, data)
    output = task.objective.loss(task, model, state, first_batch(data, 8), seeded(0))
    assert output.loss.dtype == torch.float32
    assert output.projections.dtype == torch.float32
    assert output.projections.shape == (8, model.projection_dim)
    assert output.projections.requires_grad


@pytest.mark.parametrize("name", ["byol", "moco", "simsiam"])
def test_a_resumed_client_equals_an_undisturbed_one(open_tiny: Open, name: str):
    federation = open_objective(open_tiny, name)
    data = digits(federation, 41)
    first, second = undisturbed(federation.task, data), resumed(federation.task, data)
    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simclr", "byol", "simsiam", "swav", "rotation"])
def test_the_loss_falls(open_tiny: Open, name: str):
    federation = open_objective(open_tiny, name)
    task = replace(federation.task, epochs=10, batch=20)
    metrics = task.fit(task.model(task.initial_weights()), digits(federation, 60), seeded(0))
    assert metrics["loss"] < 0.9 * metrics["loss_first"]
