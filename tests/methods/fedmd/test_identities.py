"""Settings at which FedMD is another method, bit for bit."""

from collections.abc import Callable

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import digest

Tiny = Callable[..., Config]


def test_fedmd_begins_as_local_training(tiny: Tiny):
    """Before there is a consensus; on the same shards."""
    settings = ("clients.models=[cnn, vgg9, cnn]",)
    federation = Federation.open(tiny("fedmd", *settings))
    (agreed,) = play(federation, 1)
    (alone,) = play(Federation(tiny("local", *settings), federation.dataset, federation.shards), 1)
    assert {k: digest(r.state.weights) for k, r in agreed.results.items()} == {
        k: digest(r.state.weights) for k, r in alone.results.items()
    }
