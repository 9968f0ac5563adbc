"""Settings at which FedProx is another method, bit for bit."""

import pytest

from rayfed_ssl.testing.trial import state_digests
from tests.methods.conftest import Played


@pytest.mark.parametrize("batch_norm", ["averaged", "local"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedprox_without_a_term_is_fedavg(played: Played, weighting: str, batch_norm: str):
    settings = (f"method.weighting={weighting}", f"method.parts.batch_norm={batch_norm}")
    prox = played("fedprox", "method.mu=0", *settings)
    assert state_digests(prox) == state_digests(played("fedavg", *settings))


def test_fedprox_conventions_differ_by_a_factor_of_two(played: Played):
    ours = played("fedprox", "method.mu=0.25", "method.convention=flesd")
    papers = played("fedprox", "method.mu=0.5", "method.convention=original")
    assert state_digests(ours) == state_digests(papers)
