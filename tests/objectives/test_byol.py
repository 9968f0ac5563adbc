"""BYOL under the engine: what it remembers, what trains it, clients of all sizes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.method import Client, Server
from rayfed_ssl.objectives import BYOL
from tests.objectives.local_rounds import (
    digits,
    first_batch,
    parts_of,
    seeded,
    started,
)

Open = Callable[..., Federation]


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedavg", "objective=byol", "objective.hidden=48")


def test_the_memory_is_a_local_target_without_predictor(federation: Federation):
    model, state = started(federation.task, digits(federation, 4))
    assert BYOL.parts == {"predictor": "averaged", "target": "local"}
    assert parts_of(model.state_dict()) == {"encoder", "projector", "predictor", "batch_norm"}
    assert parts_of(state.state_dict()) == {"target"}
    assert not any(parameter.requires_grad for parameter in state.parameters())
    own = model.state_dict()
    for name, value in state.target.state_dict().items():
        assert torch.equal(value, own[name])
        assert value.data_ptr() != own[name].data_ptr()
    assert not [name for name in state.target.state_dict() if name.startswith("predictor")]


def test_under_fedavg_a_client_sends_its_predictor_and_keeps_its_target(federation: Federation):
    task, method = federation.task, federation.method
    client = Client(0, 1, digits(federation, 20), None, task, *[seeded(0)] * 2)
    server = Server(1, None, task, seeded(0))
    download = method.download(method.init_server(server), 0)
    upload, state, _ = method.update_client(download, method.init_client(client), client)
    assert parts_of(download.weights) == parts_of(upload.weights) == {"encoder", "projector", "predictor", "batch_norm"}
    assert parts_of(state.kept) == {"target"}


def test_gradients_reach_all_online_parts_and_no_target(federation: Federation):
    data = digits(federation, 6)
    model, state = started(federation.task, data)
    output = federation.task.objective.loss(federation.task, model, state, first_batch(data, 6), seeded(0))
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in state.parameters())
    assert not output.updates


def test_a_loss_moves_no_target_but_its_batch_norm_sees_both_views(federation: Federation):
    data = digits(federation, 6)
    model, state = started(federation.task, data)
    before = {name: value.clone() for name, value in state.state_dict().items()}
    federation.task.objective.loss(federation.task, model, state, first_batch(data, 6), seeded(0))
    changed = {name.rpartition(".")[2] for name, value in state.state_dict().items() if not value.equal(before[name])}
    assert changed == {"running_mean", "running_var", "num_batches_tracked"}
    counts = [value for name, value in state.state_dict().items() if name.endswith("num_batches_tracked")]
    assert {int(count) for count in counts} == {2}


def test_the_target_lags_behind_the_online_network(federation: Federation):
    task, data = federation.task, digits(federation, 20)
    distances = []
    for momentum in (0.0, 0.9, 1.0):
        own = replace(task, objective=replace(task.objective, momentum=momentum))
        weights, _ = own.train(own.initial_weights(), "cnn", data, seeded(0), round=1)
        distances.append(float((weights["target.projector.0.weight"] - weights["projector.0.weight"]).norm()))
        if momentum == 1.0:
            assert torch.equal(weights["target.projector.0.weight"], own.initial_weights()["projector.0.weight"])
    assert distances[0] == 0 < distances[1] < distances[2]


def test_a_client_that_loses_its_target_is_another_client(federation: Federation):
    task, data = federation.task, digits(federation, 41)
    weights, _ = task.train(task.initial_weights(), "cnn", data, seeded(1), round=1)
    without = {name: value for name, value in weights.items() if not name.startswith("target.")}
    ends = [task.train(state, "cnn", data, seeded(2), round=2)[0] for state in (weights, without)]
    assert not torch.equal(ends[0]["projector.0.weight"], ends[1]["projector.0.weight"])


def shapes(federation: Federation, objective: BYOL, projection_dim: int | None) -> list[tuple[int, ...]]:
    task = replace(federation.task, objective=objective, projection_dim=projection_dim)
    weights = task.initial_weights()
    linear = [name for name, value in weights.items() if value.dim() == 2 and not name.startswith("encoder.")]
    return [tuple(weights[name].shape) for name in linear]


@pytest.mark.parametrize(
    ("objective", "projection_dim", "expected"),
    [
        (BYOL(), None, [(4096, 256), (2048, 4096), (4096, 2048), (2048, 4096)]),
        (BYOL(hidden=48), 24, [(48, 256), (24, 48), (48, 24), (24, 48)]),
        (BYOL(projector="linear"), None, [(256, 256), (4096, 256), (256, 4096)]),
        (BYOL(predictor="linear", hidden=48), 24, [(48, 256), (24, 48), (24, 24)]),
        (BYOL(projector="linear", predictor="linear"), 24, [(24, 256), (24, 24)]),
    ],
)
def test_the_predictor_is_as_wide_as_the_projections(
    federation: Federation, objective: BYOL, projection_dim: int | None, expected: list[tuple[int, ...]]
):
    assert shapes(federation, objective, projection_dim) == expected


def test_a_hidden_width_without_hidden_layers_is_refused():
    with pytest.raises(ValueError, match=r"objective\.hidden=48 has no meaning here.*leave it out"):
        BYOL(projector="linear", predictor="linear", hidden=48)


@pytest.mark.parametrize("objective", ["byol", "simsiam"])
def test_a_last_batch_of_a_few_samples_is_told(open_tiny: Open, objective: str):
    """Batch-norm over a few samples is noise, and these objectives live by batch-norm."""
    task = open_tiny("fedavg", f"objective={objective}", "objective.hidden=48").task
    task = replace(task, batch=64)
    (note,) = task.objective.check(task, [900, 64 * 3, 130, 700])  # they leave 4, 0, 2 and 60
    assert "2 of 4 clients ends in a batch of 2 to 4 samples" in note
    assert "training.drop_last=true" in note
    assert not task.objective.check(replace(task, drop_last=True), [900])
    assert not task.objective.check(
        task, [640, 641, 4, 2, 700]
    )  # nothing left over, one sample left out, no whole batch
