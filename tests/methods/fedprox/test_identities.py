"""Settings at which FedProx is another method, bit for bit."""

from collections.abc import Callable

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import play, state_digests

Tiny = Callable[..., Config]


def played(config: Config):
    return play(Federation.open(config))


@pytest.mark.parametrize("batch_norm", ["averaged", "local"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedprox_without_a_term_is_fedavg(tiny: Tiny, weighting: str, batch_norm: str):
    settings = (f"method.weighting={weighting}", f"method.parts.batch_norm={batch_norm}")
    prox = played(tiny("fedprox", "method.mu=0", *settings))
    assert state_digests(prox) == state_digests(played(tiny("fedavg", *settings)))


def test_fedprox_conventions_differ_by_a_factor_of_two(tiny: Tiny):
    ours = played(tiny("fedprox", "method.mu=0.25", "method.convention=flesd"))
    papers = played(tiny("fedprox", "method.mu=0.5", "method.convention=original"))
    assert state_digests(ours) == state_digests(papers)
