"""Settings at which FedU is another method, bit for bit."""

from rayfed_ssl.training.state_parts import select
from rayfed_ssl.trees import digest
from tests.methods.conftest import BYOL, Played, check_same_averaging

LONG = ("rounds=3", *BYOL)


def test_fedu_that_always_takes_the_global_predictor_is_fedbyol(played: Played):
    check_same_averaging(played("fedu", "method.threshold=1000000", *LONG), played("fedavg", *LONG))


def test_fedu_that_never_takes_the_global_predictor_keeps_it_local(played: Played):
    ours = played("fedu", "method.threshold=0", *LONG)
    theirs = played("fedavg", "method.parts.predictor=local", *LONG)
    for one, other in zip(ours, theirs, strict=True):
        first, second = (select(w, ("encoder", "projector")) for w in (one.server.weights, other.server.weights))
        assert digest(first) == digest(second)
        for client_id, result in one.results.items():
            own = select(result.state.predictor, ("predictor",))
            assert digest(own) == digest(select(other.results[client_id].state.kept, ("predictor",)))
