"""Settings at which FedMD is another method, bit for bit."""

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open, Tiny


def test_fedmd_begins_as_local_training(tiny: Tiny, open_tiny: Open):
    """Before there is a consensus; on the same shards."""
    settings = ("clients.models=[cnn, vgg9, cnn]",)
    federation = open_tiny("fedmd", *settings)
    (agreed,) = play(federation, 1)
    (alone,) = play(Federation(tiny("local", *settings), federation.dataset, federation.shards), 1)
    for client_id, result in agreed.results.items():
        assert digest(result.state.weights) == digest(alone.results[client_id].state.weights)
