"""FedU, FedEMA, FedFoA and L-DAWA at the settings where they are another method, bit for bit."""

from collections.abc import Callable

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import Round, play, state_digests
from rayfed_ssl.training.state_parts import select
from rayfed_ssl.trees import Weights, digest

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


def parameters(weights: Weights, *parts: str) -> Weights:
    return {name: value for name, value in select(weights, parts).items() if value.is_floating_point()}


@pytest.mark.parametrize("settings", [LONG, (*LONG, "clients.number=4", "clients.fraction=0.67"), ("rounds=3",)])
def test_fedema_without_a_share_is_fedbyol(tiny: Tiny, settings: tuple[str, ...]):
    ours, theirs = played(tiny("fedema", "method.scale=0", *settings)), played(tiny("fedavg", *settings))
    assert (servers(ours), uploads(ours), targets(ours)) == (servers(theirs), uploads(theirs), targets(theirs))


def test_fedema_with_a_share_is_not_fedbyol(tiny: Tiny):
    ours, theirs = played(tiny("fedema", *LONG)), played(tiny("fedavg", *LONG))
    assert servers(ours)[0] == servers(theirs)[0], "in the first round nobody has anything to keep"
    assert servers(ours)[1] != servers(theirs)[1]


def test_fedema_that_keeps_everything_trains_as_clients_alone_do(tiny: Tiny):
    """Running statistics are the global ones, which training does not read."""
    kept, alone = played(tiny("fedema", "method.scale=1000000", *LONG)), played(tiny("local", *LONG))
    for ours, theirs in zip(kept, alone, strict=True):
        for client_id, result in ours.results.items():
            own = [result.state.weights, theirs.results[client_id].state.weights]
            first, second = (parameters(weights, "encoder", "projector", "predictor") for weights in own)
            assert digest(first) == digest(second)


def test_fedema_of_one_client_is_fedbyol(tiny: Tiny):
    """Its own model is the global one, so there is nothing to mix."""
    ours, theirs = (played(tiny(name, "partition=pooled", *LONG)) for name in ("fedema", "fedavg"))
    assert (servers(ours), uploads(ours), targets(ours)) == (servers(theirs), uploads(theirs), targets(theirs))


def test_selective_mixing_with_everybody_in_every_round_is_mixing(tiny: Tiny):
    always, selective = (played(tiny("fedema", *LONG, f"method.selective={s}")) for s in ("false", "true"))
    assert state_digests(always) == state_digests(selective)


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


def test_ldawa_that_only_warms_up_is_fedavg(tiny: Tiny):
    settings = ("rounds=3", "method.weighting=uniform", "method.parts.batch_norm=local")
    ours = played(tiny("ldawa", "method.warm_up=3", *settings))
    assert state_digests(ours) == state_digests(played(tiny("fedavg", *settings)))
    later = played(tiny("ldawa", "method.warm_up=2", *settings))
    assert servers(later)[:2] == servers(ours)[:2]
    assert servers(later)[2] != servers(ours)[2]


BASES = {
    "local": (),
    "local-mixed-models": ("clients.models=[cnn, vgg9, cnn]",),
    "fedavg": (),
    "fedprox": ("method.base.mu=0.1",),
    "fedu": BYOL,
    "fedema": (*BYOL, "objective.projector=linear"),
    "flesd": (
        "public=fraction:0.3",
        "method.base.queue_size=32",
        "method.base.distil_batch=16",
        "method.base.distil_epochs=2",
        "method.base.refill=first",
    ),
    "ldawa": ("method.base.warm_up=1",),
    "fedca": ("public=fraction:0.3", "method.base.dictionary_size=40", "method.base.align_epochs=2"),
    "fcl": ("objective={name: moco, queue_size: 50}", "method.base.features=24"),
    "fedmd-mixed-models": ("public=fraction:0.3", "method.base.digest_batch=16", "clients.models=[cnn, vgg9, cnn]"),
    "feddf-mixed-models": (
        "public=fraction:0.3",
        "method.base.distil_batch=16",
        "method.base.distil_epochs=2",
        "clients.models=[cnn, vgg9, cnn]",
    ),
    "orchestra": (
        "objective={name: orchestra, clusters: 6, local_clusters: 4, memory: 16}",
        "method.base.global_steps=20",
    ),
}


def base_of(settings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(setting.replace("method.base.", "method.") for setting in settings)


def check_same_as_base(ours: list[Round], theirs: list[Round]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert digest(one.server.base) == digest(other.server)
        for client_id, result in one.results.items():
            assert digest(result.upload.base) == digest(other.uploads[client_id])
            assert digest(result.state) == digest(other.results[client_id].state)


@pytest.mark.parametrize("base", BASES)
def test_fedfoa_without_strength_is_its_base(tiny: Tiny, base: str):
    name, settings = base.removesuffix("-mixed-models"), BASES[base]
    nothing = ("method.strength=0", "method.warm_up=0")
    ours = played(tiny("fedfoa", f"method.base={name}", *nothing, *settings))
    check_same_as_base(ours, played(tiny(name, *base_of(settings))))


def test_fedfoa_that_only_warms_up_is_its_base(tiny: Tiny):
    ours = played(tiny("fedfoa", "method.base=fedavg", "method.strength=100", "method.warm_up=2"))
    check_same_as_base(ours, played(tiny("fedavg")))


def test_fedfoa_of_one_client_is_its_base(tiny: Tiny):
    settings = ("partition=pooled", "rounds=3")
    ours = played(tiny("fedfoa", "method.base=fedavg", "method.strength=100", "method.warm_up=0", *settings))
    check_same_as_base(ours, played(tiny("fedavg", *settings)))


def test_fedfoa_acts_from_the_round_after_the_warm_up_on(tiny: Tiny):
    ours = played(tiny("fedfoa", "method.base=fedavg", "method.strength=1", "method.warm_up=1", "rounds=3"))
    theirs = played(tiny("fedavg", "rounds=3"))
    assert digest(ours[0].server.base) == digest(theirs[0].server)
    assert digest(ours[1].server.base) != digest(theirs[1].server)
