"""Settings at which FedDF is another method, bit for bit."""

from collections.abc import Callable

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest

Tiny = Callable[..., Config]


def played(config: Config, rounds: int | None = None) -> list[Round]:
    return play(Federation.open(config), rounds)


def uploaded(rounds: list[Round]) -> list[dict[int, str]]:
    return [{k: digest(upload.weights) for k, upload in round.uploads.items()} for round in rounds]


@pytest.mark.slow
@pytest.mark.parametrize("models", ["null", "[vgg9]"])
def test_feddf_without_distillation_is_fedavg_where_there_is_one_architecture(tiny: Tiny, models: str):
    settings = (f"clients.models={models}", *(() if models == "null" else ("model.encoder=vgg9",)))
    fused = played(tiny("feddf", "method.distil_epochs=0", "public=fraction:0.3", *settings))
    federation = Federation.open(tiny("feddf", "method.distil_epochs=0", *settings))
    plain = Federation(
        tiny("fedavg", *settings), federation.dataset, federation.shards
    )  # the same shards, which the public samples were taken from
    averaged = play(plain)
    assert uploaded(fused) == uploaded(averaged)
    for one, other in zip(fused, averaged, strict=True):
        assert digest(one.server.weights[other.server.architecture]) == digest(other.server.weights)


@pytest.mark.slow
def test_feddf_of_as_many_architectures_as_clients_averages_nothing(tiny: Tiny):
    (first, _) = played(tiny("feddf", "method.distil_epochs=0", "clients.models=[cnn, vgg9, alexnet]"))
    for upload in first.uploads.values():
        assert digest(first.server.weights[upload.architecture]) == digest(upload.weights)


@pytest.mark.slow
def test_an_ensemble_of_one_teacher_is_that_teacher(tiny: Tiny):
    """A student that starts as its only teacher, without batch-norm and dropout, has next to nothing to learn."""
    federation = Federation.open(tiny("feddf", "clients.models=[alexnet]", "method.distil_epochs=1"))
    (first,) = play(federation, 1)
    upload = {1: first.uploads[1]}
    outcome = federation.update_server(1, first.server_before, upload)
    # Teacher and student are the same function; MSE of unit rows is in squared float32 rounding until Adam moves.
    batch = "method.distil_batch=45"  # one step: the loss before any step
    whole = Federation.open(tiny("feddf", "clients.models=[alexnet]", "method.distil_epochs=1", batch))
    assert whole.update_server(1, first.server_before, upload).metrics["distil_loss"] < 1e-12
    assert outcome.metrics["distil_steps"] == 3
