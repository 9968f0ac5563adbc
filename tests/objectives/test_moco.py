"""MoCo under the engine: what it remembers, what trains it, clients of all sizes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.method import Client, Server
from rayfed_ssl.objectives import MoCo
from rayfed_ssl.objectives.moco import MoCoState, queue_rows
from rayfed_ssl.training.objective import Head
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
    return open_tiny("fedavg", "objective=moco", "objective.queue_size=50")


def test_the_memory_is_a_reset_target_and_a_local_queue(federation: Federation):
    _, state = started(federation.task, digits(federation, 4))
    assert MoCo.parts == {"target": "reset", "queue": "local"}
    assert parts_of(state.state_dict()) == set(MoCo.parts)
    assert not any(parameter.requires_grad for parameter in state.parameters())
    assert state.training


def test_the_target_starts_as_the_query_encoder(federation: Federation):
    model, state = started(federation.task, digits(federation, 4))
    own = model.state_dict()
    for name, value in state.target.state_dict().items():
        assert torch.equal(value, own[name])
        assert value.data_ptr() != own[name].data_ptr()


def test_the_queue_starts_from_random_directions_of_the_generator(federation: Federation):
    data = digits(federation, 4)
    rows, again, other = (queue_rows(started(federation.task, data, seed)[1]) for seed in (0, 0, 1))
    assert (rows.shape, rows.dtype) == ((50, 24), torch.float32)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(50), rtol=1e-6, atol=0)  # float32
    assert torch.equal(rows, again)
    assert not torch.equal(rows, other)


def test_under_fedavg_a_client_keeps_its_queue_and_sends_neither_queue_nor_target(federation: Federation):
    task, method = federation.task, federation.method
    client = Client(0, 1, digits(federation, 20), None, task, *[seeded(0)] * 2)
    server = Server(1, None, task, seeded(0))
    download = method.download(method.init_server(server), 0)
    upload, state, _ = method.update_client(download, method.init_client(client), client)
    assert parts_of(upload.weights) == {"encoder", "projector", "batch_norm"}
    assert parts_of(state.kept) == {"queue"}


def test_gradients_reach_the_query_encoder_and_nothing_else(federation: Federation):
    data = digits(federation, 6)
    model, state = started(federation.task, data)
    output = federation.task.objective.loss(federation.task, model, state, first_batch(data, 6), seeded(0))
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in state.parameters())
    assert not output.updates["keys"].requires_grad


@pytest.mark.parametrize(("symmetric", "directions"), [(True, 2), (False, 1)])
@pytest.mark.parametrize(("num_samples", "batch"), [(20, 8), (5, 32), (2, 32)])
def test_every_batch_is_enqueued_whatever_its_size(
    federation: Federation, symmetric: bool, directions: int, num_samples: int, batch: int
):
    task = replace(federation.task, batch=batch, objective=replace(federation.task.objective, symmetric=symmetric))
    weights, metrics = task.train(task.initial_weights(), "cnn", digits(federation, num_samples), seeded(0), round=1)
    assert int(weights["queue.filled"]) == directions * num_samples == directions * metrics["samples"]
    assert bool(weights["queue.rows"].isfinite().all())


def test_a_queue_that_a_client_never_fills_keeps_its_random_directions_and_a_note_says_so(federation: Federation):
    task, data = federation.task, digits(federation, 5)
    fresh = queue_rows(started(task, data)[1])
    weights, _ = task.train(task.initial_weights(), "cnn", data, seeded(0), round=1)
    assert torch.equal(weights["queue.rows"][10:], fresh[10:])
    assert not torch.equal(weights["queue.rows"][:10], fresh[:10])
    # Two rounds of one epoch with both directions: 4 keys a sample.
    assert task.objective.check(task, [13, 20]) == ()
    (note,) = task.objective.check(task, [12, 20, 5])
    assert "queue of 50 keys is not filled by 2 of 3 clients (the smallest gives 20 keys in the run)" in note


def test_a_queue_smaller_than_a_batch_holds_the_last_keys(federation: Federation):
    data = digits(federation, 6)
    task = replace(federation.task, objective=replace(federation.task.objective, queue_size=7))
    model, state = started(task, data)
    output = task.objective.loss(task, model, state, first_batch(data, 6), seeded(0))
    task.objective.finish_step(task, model, state, output)
    keys = output.updates["keys"]
    assert keys.shape == (12, 24)
    assert torch.equal(queue_rows(state).roll(-(12 % 7), 0), keys[-7:])


def test_the_target_lags_behind_the_query_encoder(federation: Federation):
    task, data = federation.task, digits(federation, 20)
    distances = []
    for momentum in (0.0, 0.9, 1.0):
        own = replace(task, objective=replace(task.objective, momentum=momentum))
        weights, _ = own.train(own.initial_weights(), "cnn", data, seeded(0), round=1)
        online = weights["projector.2.weight"]
        distances.append(float((weights["target.projector.2.weight"] - online).norm()))
        if momentum == 1.0:
            assert torch.equal(weights["target.projector.2.weight"], own.initial_weights()["projector.2.weight"])
    assert distances[0] == 0 < distances[1] < distances[2]


@pytest.mark.slow
def test_the_loss_falls_on_a_queue_of_real_keys(federation: Federation):
    task = replace(federation.task, epochs=10, batch=20, objective=replace(federation.task.objective, queue_size=30))
    data = digits(federation, 60)
    model, state = started(task, data)
    task.fit(model, data, seeded(1), state=state, epochs=1)  # replaces the random directions
    metrics = task.fit(model, data, seeded(2), state=state)
    assert metrics["loss"] < 0.9 * metrics["loss_first"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_queries_and_keys_are_float32_unit_rows(open_tiny: Open, precision: str):
    federation = open_tiny("fedavg", "objective=moco", f"engine.precision={precision}")
    task, data = federation.task, digits(federation, 6)
    model, state = started(task, data)
    encoded = task.objective.encode(task, model, state, first_batch(data, 6), seeded(0))
    for rows in (encoded.queries, encoded.keys):
        assert (rows.shape, rows.dtype) == ((12, 24), torch.float32)
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(12), rtol=1e-6, atol=0)  # float32
    assert (encoded.projections.shape, encoded.projections.dtype) == ((6, 24), torch.float32)
    assert encoded.projections.requires_grad
    assert isinstance(state, MoCoState)


@pytest.mark.parametrize(
    ("projector", "layers"),
    [
        ("linear", ["Linear"]),
        ("mlp", ["Linear", "ReLU", "Linear"]),
        ("mlp-bn", ["Linear", "BatchNorm1d", "ReLU", "Linear"]),
    ],
)
def test_projectors_by_version(federation: Federation, projector: str, layers: list[str]):
    objective = MoCo(projector=projector)
    assert objective.head.dim == 128
    task = replace(federation.task, objective=objective, projection_dim=None)
    model = task.model(task.initial_weights())
    assert [type(layer).__name__ for layer in model.projector.modules()][-len(layers) :] == layers
    assert model.projection_dim == 128


def test_the_default_is_the_two_layer_head_of_fcl():
    assert MoCo().head == Head("fcl", 128)
