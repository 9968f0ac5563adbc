"""Settings at which L-DAWA is another method, bit for bit."""

import pytest

from rayfed_ssl.testing.trial import state_digests
from rayfed_ssl.trees import digest
from tests.methods.conftest import Played


@pytest.mark.slow
def test_ldawa_that_only_warms_up_is_fedavg(played: Played):
    settings = ("rounds=3", "method.weighting=uniform", "method.parts.batch_norm=local")
    ours, later = (played("ldawa", f"method.warm_up={rounds}", *settings) for rounds in (3, 2))
    assert state_digests(ours) == state_digests(played("fedavg", *settings))
    assert digest(later[1].server) == digest(ours[1].server)
    assert digest(later[2].server) != digest(ours[2].server)
