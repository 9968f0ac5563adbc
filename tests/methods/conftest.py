"""Tiny runs that the tests of methods share, and what opens and plays them."""

from collections.abc import Callable
from functools import cache

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest

Tiny = Callable[..., Config]
Open = Callable[..., Federation]
Played = Callable[..., list[Round]]

BYOL = ("objective=byol", "objective.hidden=32")
MOCO = ("objective=moco", "objective.queue_size=50")


@pytest.fixture(scope="session")
def played(open_tiny: Open) -> Played:
    """Play a tiny run, once in a session: played("fedprox", "method.mu=1")."""
    return cache(lambda name, *overrides: play(open_tiny(name, *overrides)))


def check_same_averaging(ours: list[Round], theirs: list[Round]) -> None:
    """Check that servers, uploads and what FedAvg keeps at the clients (with BYOL the target) have the same bits."""
    for one, other in zip(ours, theirs, strict=True):
        assert digest(one.server) == digest(other.server)
        assert digest(one.uploads) == digest(other.uploads)
        for client_id, result in one.results.items():
            kept = getattr(result.state, "averaging", result.state)
            assert digest(kept) == digest(other.results[client_id].state)
