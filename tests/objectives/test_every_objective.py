"""What every objective does: on shards on which one may stumble, in any precision, after a pause, over many steps."""

import re
from dataclasses import replace

import pytest
import torch

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Empty
from rayfed_ssl.objectives import (
    BYOL,
    OrchestraObjective,
)
from tests.objectives.local_rounds import (
    SETTINGS,
    Open,
    digits,
    first_batch,
    parts_of,
    resumed,
    started,
    train,
    undisturbed,
)
from tests.objectives.small_shards import KINDS, check_finite, shard
from tests.tensors import seeded

everywhere = pytest.mark.parametrize("name", SETTINGS)
with_target = pytest.mark.parametrize("name", ["byol", "dino", "ibot", "moco"])


@everywhere
def test_what_is_trained_travels_and_what_is_local_stays(open_objective: Open, name: str):
    federation = open_objective(name)
    rules = federation.task.objective.parts
    trained = {part for part, rule in rules.items() if rule == "averaged"}
    model, state = started(federation.task, digits(federation, 4))
    projector = set() if name in ("autoencoder", "mae") else {"projector"}
    statistics = set() if name in ("mae", "ibot") else {"batch_norm"}
    assert parts_of(model.state_dict()) == {"encoder"} | statistics | projector | trained
    assert parts_of(state.state_dict()) == set(rules) - trained
    download = federation.method.download(federation.init_server(), 0)
    result = federation.update_client(1, 0, download, None)
    assert parts_of(download.weights) == parts_of(result.upload.weights) == parts_of(model.state_dict())
    local = {part for part, rule in rules.items() if rule == "local"}
    assert parts_of(result.state.kept) == local if local else result.state == Empty()


@everywhere
def test_gradients_reach_all_that_is_trained_and_nothing_else(open_objective: Open, name: str):
    federation = open_objective(name)
    data = digits(federation, 6)
    model, state = started(federation.task, data)
    output = federation.task.objective.loss(federation.task, model, state, first_batch(data, 6), seeded())
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in state.parameters())


@with_target
def test_the_target_starts_as_a_copy_of_the_online_network(open_objective: Open, name: str):
    federation = open_objective(name)
    model, state = started(federation.task, digits(federation, 4))
    own, target = model.state_dict(), state.target.state_dict()
    assert {key.partition(".")[0] for key in target} == {"encoder", "projector"}
    assert all(
        torch.equal(value, own[key]) and value.data_ptr() != own[key].data_ptr() for key, value in target.items()
    )
    assert state.training


@with_target
def test_the_target_lags_behind_the_online_network(open_objective: Open, name: str):
    federation, distances = open_objective(name), []
    for momentum in (0.0, 0.9, 1.0):
        objective = replace(federation.task.objective, momentum=momentum)
        task = replace(federation.task, objective=objective)
        weights, _ = train(task, digits(federation, 20))
        target = weights["target.projector.0.weight"]
        distances.append(float((target - weights["projector.0.weight"]).norm()))
    assert torch.equal(target, task.initial_weights()["projector.0.weight"])
    assert distances[0] == 0 < distances[1] < distances[2]


@pytest.mark.parametrize("kind", KINDS)
@everywhere
def test_degenerate_clients_train_to_finite_weights(open_objective: Open, name: str, kind: str):
    federation = open_objective(name, "training.epochs=2", "training.batch=4")
    weights, _ = train(federation.task, shard(federation, kind))  # which refuses a loss that is not finite
    check_finite(weights)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@everywhere
def test_losses_and_projections_are_float32(open_objective: Open, name: str, precision: str):
    task = (federation := open_objective(name, f"engine.precision={precision}")).task
    data = digits(federation, 8)
    model, state = started(task, data)
    output = task.objective.loss(task, model, state, first_batch(data, 8), seeded())
    assert output.loss.dtype == output.projections.dtype == torch.float32
    assert output.projections.shape == (8, model.projection_dim)
    assert output.projections.requires_grad


@pytest.mark.parametrize("name", ["byol", "dino", "moco", "simsiam"])
def test_a_resumed_client_equals_an_undisturbed_one(open_objective: Open, name: str):
    federation = open_objective(name)
    data = digits(federation, 41)
    first, second = undisturbed(federation.task, data), resumed(federation.task, data)
    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)


TINY_BATCHES = (
    # Nothing is left of these, or one sample, which is left out, or there is no whole batch of 64.
    [640, 641, 4, 2, 700],
    [900, 192, 130, 700],  # 4, 0, 2 and 60 are left
    "2 of 4 clients ends in a batch of 2 to 4 samples.*training.drop_last=true",
)
NOTES = {
    "byol": TINY_BATCHES,
    "simsiam": TINY_BATCHES,
    # Two rounds of one epoch with both directions: 4 keys a sample.
    "moco": ([13, 20], [12, 20, 5], r"50 keys is not filled by 2 of 3 clients \(the smallest gives 20 keys in the run"),
    "swav": (
        [40, 7],
        [40, 6],
        r"^1 of 2 clients have no more samples than SwAV has prototypes \(6; the smallest has 6\)",
    ),
    "deepcluster": ([40, 7], [40, 6, 2], r"^2 of 3 clients .* than DeepCluster has clusters \(6; the smallest has 2\)"),
}
"""By objective: sizes of clients that are fine, sizes that are not, and what is said of these."""


@pytest.mark.parametrize("name", NOTES)
def test_clients_that_are_too_small_are_noted(open_objective: Open, name: str):
    fine, small, expected = NOTES[name]
    task = replace(open_objective(name).task, batch=64)
    assert task.objective.check(task, fine) == ()
    (note,) = task.objective.check(task, small)
    assert re.search(expected, note)
    if NOTES[name] is TINY_BATCHES:
        assert not task.objective.check(replace(task, drop_last=True), small)


@pytest.mark.parametrize(("name", "field"), [("swav", "prototypes"), ("deepcluster", "clusters")])
def test_more_groups_than_samples_are_refused(open_objective: Open, name: str, field: str):
    with pytest.raises(ConfigError, match=rf"objective.{field} must stay below .* got 100 and at most \d+ samples"):
        open_objective(name, f"objective.{field}=100")


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(
        ValueError, match=r"objective\.memory must hold at least two projections for each of 16 .* got 31"
    ):
        OrchestraObjective(memory=31)
    with pytest.raises(ValueError, match=r"objective\.hidden=48 has no meaning here.*leave it out"):
        BYOL(projector="linear", predictor="linear", hidden=48)


@pytest.mark.parametrize("name", ["rotation", "autoencoder", "mae"])
def test_a_projection_width_has_no_meaning(open_objective: Open, name: str):
    with pytest.raises(ConfigError, match=rf"model\.projection_dim has no meaning for objective={name}"):
        open_objective(name, "model.projection_dim=8")
