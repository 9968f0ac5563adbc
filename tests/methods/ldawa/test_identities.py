"""Settings at which L-DAWA is another method, bit for bit."""

from collections.abc import Callable

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import Round, play, state_digests
from rayfed_ssl.trees import digest

pytestmark = pytest.mark.slow

Tiny = Callable[..., Config]


def played(config: Config) -> list[Round]:
    return play(Federation.open(config))


def servers(rounds: list[Round]) -> list[str]:
    return [digest(round.server) for round in rounds]


def test_ldawa_that_only_warms_up_is_fedavg(tiny: Tiny):
    settings = ("rounds=3", "method.weighting=uniform", "method.parts.batch_norm=local")
    ours = played(tiny("ldawa", "method.warm_up=3", *settings))
    assert state_digests(ours) == state_digests(played(tiny("fedavg", *settings)))
    later = played(tiny("ldawa", "method.warm_up=2", *settings))
    assert servers(later)[:2] == servers(ours)[:2]
    assert servers(later)[2] != servers(ours)[2]
