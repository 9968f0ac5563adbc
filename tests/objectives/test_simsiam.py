"""SimSiam under the engine: its heads, what trains it, clients of all sizes."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.method import Client, Empty, Server
from rayfed_ssl.objectives import SimSiam
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
    return open_tiny("fedavg", "objective=simsiam", "objective.hidden=48", "objective.predictor_hidden=12")


def test_it_remembers_nothing(federation: Federation):
    model, state = started(federation.task, digits(federation, 4))
    assert SimSiam.parts == {"predictor": "averaged"}
    assert state.state_dict() == {}
    assert parts_of(model.state_dict()) == {"encoder", "projector", "predictor", "batch_norm"}


def test_under_fedavg_a_client_sends_its_predictor_and_keeps_nothing(federation: Federation):
    task, method = federation.task, federation.method
    client = Client(0, 1, digits(federation, 20), None, task, *[seeded(0)] * 2)
    server = Server(1, None, task, seeded(0))
    download = method.download(method.init_server(server), 0)
    upload, state, _ = method.update_client(download, method.init_client(client), client)
    assert parts_of(download.weights) == parts_of(upload.weights) == {"encoder", "projector", "predictor", "batch_norm"}
    assert state == Empty()


def test_gradients_come_through_the_predictor_only(federation: Federation):
    data = digits(federation, 6)
    model, state = started(federation.task, data)
    batch = first_batch(data, 6)
    federation.task.objective.loss(federation.task, model, state, batch, seeded(0)).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad()
    for parameter in model.part("predictor").parameters():
        parameter.data.zero_()
    # A predictor that says 0 whatever it sees lets no gradient through, and there is no other way to the encoder.
    federation.task.objective.loss(federation.task, model, state, batch, seeded(0)).loss.backward()
    assert not any(bool(parameter.grad.any()) for parameter in model.encoder.parameters() if parameter.grad is not None)


@pytest.mark.parametrize(
    ("objective", "projection_dim", "expected", "norms"),
    [
        (SimSiam(), None, [(2048, 256), (2048, 2048), (512, 2048), (2048, 512)], [2048, 2048, 512]),
        (SimSiam(hidden=48, predictor_hidden=12), 24, [(48, 256), (24, 48), (12, 24), (24, 12)], [48, 24, 12]),
        (
            SimSiam(output_norm=False, hidden=4096, predictor_hidden=4096),
            None,
            [(4096, 256), (2048, 4096), (4096, 2048), (2048, 4096)],
            [4096, 4096],
        ),
    ],
    ids=["paper", "small", "easyfl"],
)
def test_heads_are_the_papers_or_easyfls(
    federation: Federation,
    objective: SimSiam,
    projection_dim: int | None,
    expected: list[tuple[int, ...]],
    norms: list[int],
):
    weights = replace(federation.task, objective=objective, projection_dim=projection_dim).initial_weights()
    heads = {name: value for name, value in weights.items() if not name.startswith("encoder.")}
    assert [tuple(value.shape) for value in heads.values() if value.dim() == 2] == expected
    assert [len(value) for name, value in heads.items() if name.endswith("running_mean")] == norms
