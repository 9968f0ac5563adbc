"""Settings at which FedU is another method, bit for bit."""

from collections.abc import Callable

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.training.state_parts import select
from rayfed_ssl.trees import digest

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


def test_fedu_that_always_takes_the_global_predictor_is_fedbyol(tiny: Tiny):
    ours, theirs = played(tiny("fedu", "method.threshold=1000000", *LONG)), played(tiny("fedavg", *LONG))
    assert (servers(ours), uploads(ours), targets(ours)) == (servers(theirs), uploads(theirs), targets(theirs))


def test_fedu_that_never_takes_the_global_predictor_keeps_it_local(tiny: Tiny):
    ours = played(tiny("fedu", "method.threshold=0", *LONG))
    theirs = played(tiny("fedavg", "method.parts.predictor=local", *LONG))
    for one, other in zip(ours, theirs, strict=True):
        first, second = (select(w, ("encoder", "projector")) for w in (one.server.weights, other.server.weights))
        assert digest(first) == digest(second)
        for client_id, result in one.results.items():
            own = select(result.state.predictor, ("predictor",))
            assert digest(own) == digest(select(other.results[client_id].state.kept, ("predictor",)))
