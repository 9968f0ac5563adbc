"""Settings at which FedEMA is another method, bit for bit."""

import pytest

from rayfed_ssl.testing.trial import state_digests
from rayfed_ssl.training.state_parts import select
from rayfed_ssl.trees import Weights, digest
from tests.methods.conftest import BYOL, Played, check_same_averaging

pytestmark = pytest.mark.slow

LONG = ("rounds=3", *BYOL)


@pytest.mark.parametrize("settings", [LONG, (*LONG, "clients.number=4", "clients.fraction=0.67"), ("rounds=3",)])
def test_fedema_without_a_share_is_fedbyol(played: Played, settings: tuple[str, ...]):
    check_same_averaging(played("fedema", "method.scale=0", *settings), played("fedavg", *settings))


def test_fedema_with_a_share_is_not_fedbyol(played: Played):
    ours, theirs = played("fedema", *LONG), played("fedavg", *LONG)
    assert digest(ours[0].server) == digest(theirs[0].server), "in the first round nobody has anything to keep"
    assert digest(ours[1].server) != digest(theirs[1].server)


def test_fedema_that_keeps_everything_trains_as_clients_alone_do(played: Played):
    """Running statistics are the global ones, which training does not read."""

    def parameters(weights: Weights) -> Weights:
        trained = select(weights, ("encoder", "projector", "predictor"))
        return {name: value for name, value in trained.items() if value.is_floating_point()}

    kept, alone = played("fedema", "method.scale=1000000", *LONG), played("local", *LONG)
    for ours, theirs in zip(kept, alone, strict=True):
        for client_id, result in ours.results.items():
            own = theirs.results[client_id].state
            assert digest(parameters(result.state.weights)) == digest(parameters(own.weights))


def test_fedema_of_one_client_is_fedbyol(played: Played):
    """Its own model is the global one, so there is nothing to mix."""
    check_same_averaging(*(played(name, "partition=pooled", *LONG) for name in ("fedema", "fedavg")))


def test_selective_mixing_with_everybody_in_every_round_is_mixing(played: Played):
    always, selective = (played("fedema", *LONG, f"method.selective={s}") for s in ("false", "true"))
    assert state_digests(always) == state_digests(selective)
