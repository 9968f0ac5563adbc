"""Settings at which FedEMA is another method, bit for bit."""

from collections.abc import Callable

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import Round, play, state_digests
from rayfed_ssl.training.state_parts import select
from rayfed_ssl.trees import Weights, digest

Tiny = Callable[..., Config]

BYOL = ("objective=byol", "objective.hidden=32")

LONG = ("rounds=3", *BYOL)


def played(config: Config) -> list[Round]:
    return play(Federation.open(config))


def servers(rounds: list[Round]) -> list[str]:
    return [digest(round.server) for round in rounds]


def uploads(rounds: list[Round]) -> list[str]:
    return [digest(round.uploads) for round in rounds]


def targets(rounds: list[Round]) -> list[str]:
    """What FedAvg keeps at the clients: with BYOL the slow encoder."""
    return [
        digest({k: getattr(result.state, "averaging", result.state) for k, result in round.results.items()})
        for round in rounds
    ]


def parameters(weights: Weights, *parts: str) -> Weights:
    return {name: value for name, value in select(weights, parts).items() if value.is_floating_point()}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [LONG, (*LONG, "clients.number=4", "clients.fraction=0.67"), ("rounds=3",)])
def test_fedema_without_a_share_is_fedbyol(tiny: Tiny, settings: tuple[str, ...]):
    ours, theirs = played(tiny("fedema", "method.scale=0", *settings)), played(tiny("fedavg", *settings))
    assert (servers(ours), uploads(ours), targets(ours)) == (servers(theirs), uploads(theirs), targets(theirs))


@pytest.mark.slow
def test_fedema_with_a_share_is_not_fedbyol(tiny: Tiny):
    ours, theirs = played(tiny("fedema", *LONG)), played(tiny("fedavg", *LONG))
    assert servers(ours)[0] == servers(theirs)[0], "in the first round nobody has anything to keep"
    assert servers(ours)[1] != servers(theirs)[1]


@pytest.mark.slow
def test_fedema_that_keeps_everything_trains_as_clients_alone_do(tiny: Tiny):
    """Running statistics are the global ones, which training does not read."""
    kept, alone = played(tiny("fedema", "method.scale=1000000", *LONG)), played(tiny("local", *LONG))
    for ours, theirs in zip(kept, alone, strict=True):
        for client_id, result in ours.results.items():
            own = [result.state.weights, theirs.results[client_id].state.weights]
            first, second = (parameters(weights, "encoder", "projector", "predictor") for weights in own)
            assert digest(first) == digest(second)


@pytest.mark.slow
def test_fedema_of_one_client_is_fedbyol(tiny: Tiny):
    """Its own model is the global one, so there is nothing to mix."""
    ours, theirs = (played(tiny(name, "partition=pooled", *LONG)) for name in ("fedema", "fedavg"))
    assert (servers(ours), uploads(ours), targets(ours)) == (servers(theirs), uploads(theirs), targets(theirs))


@pytest.mark.slow
def test_selective_mixing_with_everybody_in_every_round_is_mixing(tiny: Tiny):
    always, selective = (played(tiny("fedema", *LONG, f"method.selective={s}")) for s in ("false", "true"))
    assert state_digests(always) == state_digests(selective)
