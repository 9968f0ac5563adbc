"""What every objective does: on shards on which one may stumble, in any precision, after a pause, over many steps."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.objectives import (
    BYOL,
    AutoEncoder,
    DeepCluster,
    MoCo,
    Objective,
    OrchestraObjective,
    SimSiam,
    SwAV,
)
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


NAN = float("nan")

IMPOSSIBLE: dict[type[Objective], dict[str, list[float]]] = {
    MoCo: {"temperature": [0.0, NAN], "momentum": [1.01, -0.1], "queue_size": [0], "key_groups": [0]},
    BYOL: {"momentum": [1.01, NAN], "hidden": [0]},
    SimSiam: {"hidden": [0], "predictor_hidden": [0]},
    SwAV: {
        "temperature": [0.0],
        "epsilon": [-1.0],
        "prototypes": [1],
        **{name: [-1] for name in ("freeze_epochs", "queue_size", "queue_epoch")},
        "sinkhorn_iterations": [0],
    },
    DeepCluster: {"temperature": [0.0], "clusters": [1], "iterations": [0]},
    OrchestraObjective: {
        "temperature": [0.0],
        "momentum": [1.5],
        "clusters": [1],
        "local_clusters": [0],
        "memory": [31],
    },
    AutoEncoder: {"width": [0]},
}


@pytest.mark.parametrize(
    ("objective", "field", "value"),
    [
        (kind, field, value)
        for kind, fields in IMPOSSIBLE.items()
        for field, values in fields.items()
        for value in values
    ],
)
def test_impossible_settings_are_named(objective: type[Objective], field: str, value: float):
    with pytest.raises(ValueError, match=rf"objective\.{field} must .*got {value}"):
        objective(**{field: value})


@pytest.mark.parametrize("name", ["rotation", "autoencoder"])
def test_a_projection_width_has_no_meaning(open_tiny: Open, name: str):
    with pytest.raises(ConfigError, match=rf"model\.projection_dim has no meaning for objective={name}"):
        open_tiny("fedavg", f"objective={name}", "model.projection_dim=8")
