"""What a FedEMA client takes up again, and what FedEMA refuses."""

from dataclasses import replace

import pytest

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.method import Empty
from rayfed_ssl.methods import FedAvg, FedEMA, fedavg, fedema
from rayfed_ssl.methods.fedu import encoder_divergence
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest
from tests.methods.conftest import BYOL, Open


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedema", *BYOL)


@pytest.fixture(scope="module")
def rounds(federation: Federation) -> list[Round]:
    return play(federation, 2)


def as_fedavg(federation: Federation) -> Federation:
    return Federation.open(federation.config.model_copy(update={"method": FedAvg()}))


def test_the_first_participation_takes_the_global_model(federation: Federation, rounds: list[Round]):
    for client_id, result in rounds[0].results.items():
        plain = as_fedavg(federation).update_client(1, client_id, rounds[0].downloads[client_id], None)
        assert digest(result.upload) == digest(plain.upload)
        assert result.metrics["own_share"] == 0


def test_the_second_participation_keeps_tau(rounds: list[Round]):
    for result in rounds[1].results.values():
        assert result.metrics["own_share"] == pytest.approx(0.7, rel=1e-12)


def test_the_scale_is_fixed_at_the_first_divergence(rounds: list[Round]):
    for client_id, result in rounds[1].results.items():
        before = rounds[0].results[client_id].state
        assert result.state.scale == before.scale == 0.7 / before.divergence
        assert result.state.divergence != before.divergence


def test_divergence_is_measured_from_the_mixed_model(rounds: list[Round]):
    for client_id, result in rounds[1].results.items():
        state, received = rounds[0].results[client_id].state, rounds[1].downloads[client_id].weights
        mixed = fedema.mix(state.weights, received, 0.7 / state.divergence * state.divergence)
        assert result.state.divergence == encoder_divergence(mixed, result.upload.weights)
        assert result.state.divergence != encoder_divergence(received, result.upload.weights)


def test_a_client_starts_from_the_mixture(federation: Federation, rounds: list[Round]):
    state, download = rounds[0].results[1].state, rounds[1].downloads[1]
    share = fedema.own_share(state.scale, state.divergence)
    mixed = fedavg.Download(fedema.mix(state.weights, download.weights, share))
    plain = as_fedavg(federation).update_client(2, 1, mixed, state.averaging)
    assert digest(rounds[1].results[1].upload) == digest(plain.upload)
    assert digest(rounds[1].results[1].state.averaging) == digest(plain.state)


def test_a_client_that_has_not_moved_waits_with_its_scale():
    state = fedema.ClientState(Empty(), {}, None, 0.0, 1)
    assert FedEMA().resume(state, 2) == (Empty(), 0.0, None)


def test_a_constant_scale_takes_the_autoscalers_place():
    method = FedEMA(scale=0.5)
    kept, share, scale = method.resume(Empty(), 1)
    assert (kept, share, scale) == (Empty(), 0.0, 0.5)
    assert method.resume(fedema.ClientState(Empty(), {}, scale, 1.2, 1), 2)[1] == 0.6


TARGET = fedavg.ClientState({"target.encoder.conv1.weight": 1, "queue.keys": 2})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("selective", "last", "share", "kept"),
    [
        (False, 4, 0.25, TARGET),
        (False, 2, 0.25, TARGET),
        (True, 4, 0.25, TARGET),
        (True, 3, 0.0, fedavg.ClientState({"queue.keys": 2})),
        (True, 1, 0.0, fedavg.ClientState({"queue.keys": 2})),
    ],
)
def test_selective_mixes_only_what_is_a_round_old(selective: bool, last: int, share: float, kept: fedavg.ClientState):
    """In round 5, for a client that trained last in round `last`."""
    state = fedema.ClientState(TARGET, {}, 0.5, 0.5, last)
    assert FedEMA(selective=selective).resume(state, 5) == (kept, share, 0.5)


def test_after_a_pause_a_selective_client_starts_as_a_new_one_but_keeps_its_scale(
    federation: Federation, rounds: list[Round]
):
    method = replace(federation.method, selective=True)
    selective = Federation.open(federation.config.model_copy(update={"method": method}))
    state, download = rounds[0].results[0].state, rounds[1].downloads[0]
    paused = selective.update_client(3, 0, download, state)
    new = selective.update_client(3, 0, download, None)
    assert digest(paused.upload) == digest(new.upload)
    assert digest(paused.state.averaging) == digest(new.state.averaging)
    assert paused.state.scale == state.scale != new.state.scale


def test_a_warm_up_of_the_first_round_is_said_to_make_lambda_too_large(open_tiny: Open):
    def notes(*settings: str) -> str:
        return " ".join(open_tiny("fedema", *BYOL, "training.optimizer.schedule=warmup-cosine", *settings).notes)

    assert "set training.optimizer.schedule=cosine" in notes("rounds=10")
    assert "lambda" not in notes("rounds=5")
    assert "lambda" not in notes("rounds=10", "training.optimizer.warmup=0.01")
    assert "lambda" not in notes("rounds=10", "method.tau=0.1")
    assert "lambda" not in notes("rounds=10", "method.scale=1.0")
