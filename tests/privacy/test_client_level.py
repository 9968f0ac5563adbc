"""Client-level privacy: what a client can move, how much noise there is, and what cannot be released."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Client
from rayfed_ssl.methods import FedAvg
from rayfed_ssl.methods.fedsc import Upload
from rayfed_ssl.privacy.client_level import next_clip, released, with_variances
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.testing import LAWS
from rayfed_ssl.testing.trial import Trial, play
from rayfed_ssl.trees import digest
from tests.laws.variants import VARIANTS

Tiny = Callable[..., Config]
Open = Callable[..., Federation]

UNIFORM = "method.weighting=uniform"


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Between floats alone: a counter is no part of it."""
    names = [name for name, value in one.items() if value.is_floating_point()]
    return math.sqrt(sum(float((one[name].double() - other[name].double()).square().sum()) for name in names))


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 9))
def test_no_client_moves_further_than_the_clip_norm(scale: float, clip: float, seed: int):
    random = generator(seed)
    origin = {name: torch.randn(size, generator=random) for name, size in (("a", 7), ("b", 300))}
    weights = {name: value + scale * torch.randn(value.shape, generator=random) for name, value in origin.items()}
    weights["count"], origin["count"] = torch.tensor(5), torch.tensor(3)
    upload, norm = released(weights, origin, clip, 0.0, random)
    assert norm == pytest.approx(distance(weights, origin))
    rounding = 1e-6 * math.sqrt(307) * max(1, scale)  # to float32, of 307 numbers of this size
    assert distance(upload, origin) <= clip + rounding
    assert upload["count"] == 3
    if norm <= clip:
        assert all(torch.allclose(upload[name], weights[name]) for name in ("a", "b"))


def test_values_are_clipped_themselves_and_keep_their_direction():
    value = torch.tensor([3.0, 4.0])
    assert torch.equal(released(value, None, 1.0, 0.0, generator(0))[0], torch.tensor([0.6, 0.8]))
    assert torch.equal(released(value, None, 5.0, 0.0, generator(0))[0], value)


def with_and_without_noise(tiny: Tiny, *settings: str) -> Iterator[tuple[Any, Any]]:
    """Uploads of a round's clients with z = 0.5 and without, at a clip norm of 2."""
    rounds = (play(Federation.open(tiny(*settings, f"privacy={{clip: 2.0, noise: {z}}}")), 1)[0] for z in (0.5, 0))
    return zip(*(round.uploads.values() for round in rounds), strict=True)


def test_the_noise_of_a_sum_is_z_times_the_clip_norm(tiny: Tiny):
    pairs = with_and_without_noise(tiny, "fedavg", UNIFORM, "clients.number=4", "method.parts.batch_norm=local")
    rows = [
        torch.cat([(noisy.weights[name].double() - value.double()).flatten() for name, value in quiet.weights.items()])
        for noisy, quiet in pairs
    ]
    flat = torch.stack(rows)
    number = flat.shape[1]
    limits = 5 / math.sqrt(2 * number)  # five standard errors of a standard deviation
    assert number > 10_000
    assert float(flat.sum(0).std()) == pytest.approx(0.5 * 2.0, rel=limits)
    assert float(flat[0].std()) == pytest.approx(0.5 * 2.0 / 2, rel=limits)
    assert abs(float(flat.mean())) < 5 * 0.5 / math.sqrt(4 * number)
    assert abs(float(torch.corrcoef(flat)[0, 1])) < 5 / math.sqrt(number)


def test_noise_above_what_it_hides_is_known_before_the_run(open_tiny: Open):
    federation = open_tiny("fedavg", UNIFORM, "clients.number=4", "privacy={clip: 2.0, noise: 0.5}")
    upload = next(iter(play(federation, 1)[0].uploads.values()))
    number = sum(value.numel() for value in upload.weights.values() if value.is_floating_point())
    warning = federation.method.noise_warning(federation.task)
    assert (
        f"is {0.5 * math.sqrt(number) / 4:.3g} times the signal at most (z sqrt(d) / m, {number:,} weights, 4"
        in warning
    )
    for method, z in (("fedavg", 0.001), ("flesd", 0.5)):
        quiet = open_tiny(method, *[UNIFORM] * (method == "fedavg"), f"privacy={{clip: 2.0, noise: {z}}}")
        assert quiet.method.noise_warning(quiet.task) is None


def test_a_value_has_all_the_noise_by_itself(tiny: Tiny):
    rows = []
    for noisy, quiet in with_and_without_noise(tiny, "flesd"):
        rows.append((noisy.representations.values - quiet.representations.values).flatten().double())
        assert float(quiet.representations.values.norm()) == pytest.approx(2.0, rel=1e-6)  # of float32
    noise = torch.cat(rows)
    assert float(noise.std()) == pytest.approx(1.0, rel=5 / math.sqrt(2 * len(noise)))


def floats(state: Any) -> str:
    return digest({name: value for name, value in state.weights.items() if value.is_floating_point()})


@pytest.mark.parametrize("more", ["", ", clip_quantile: 0.5"])
def test_a_wide_clip_without_noise_changes_no_bit(open_tiny: Open, more: str):
    """Moves are added in float64 to weights of float32, which gives these weights again; counters stay as they were."""
    plain = play(open_tiny("fedavg", UNIFORM))[-1].server
    clipped = play(open_tiny("fedavg", UNIFORM, f"privacy={{clip: 1000000.0{more}}}"))[-1].server
    assert floats(clipped.inner) == floats(plain)
    counters = [value for value in clipped.inner.weights.values() if not value.is_floating_point()]
    assert counters
    assert not any(counters)


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.9])
def test_the_clip_norm_converges_to_the_quantile(quantile: float):
    """Of norms that are uniform between 0 and 10, whose quantile is 10 times it."""
    random, clip, tail = generator(1), 0.1, []
    for round in range(400):
        norms = 10 * torch.rand(50, generator=random)
        clip = next_clip(clip, float((norms <= clip).double().mean()), quantile)
        tail += [clip] * (round >= 200)
    assert sum(tail) / len(tail) == pytest.approx(10 * quantile, rel=0.03)  # some standard errors of 200 rounds


def test_negative_variances_are_zero_after_the_mean():
    tree = {"encoder.bn.running_var": torch.tensor([-1.0, 2.0]), "encoder.bn.running_mean": torch.tensor([-1.0, 2.0])}
    assert with_variances(tree)["encoder.bn.running_var"].tolist() == [0, 2]
    assert with_variances(tree)["encoder.bn.running_mean"].tolist() == [-1, 2]


@pytest.mark.parametrize("law", ["inputs_are_not_written", "messages_are_plain", "states_survive_storage"])
@pytest.mark.parametrize("variant", ["fedavg-private", "fedsc-private"])
def test_a_private_method_obeys_laws(trials: dict[str, Trial], tiny: Tiny, variant: str, law: str):
    LAWS[law](trials.setdefault(variant, Trial(tiny(*VARIANTS[variant]))))


@pytest.mark.parametrize("law", ["resuming_changes_nothing", "order_is_irrelevant"])
def test_resuming_repeats_noise_and_budget(trials: dict[str, Trial], tiny: Tiny, law: str):
    LAWS[law](trials.setdefault("fedavg-private", Trial(tiny(*VARIANTS["fedavg-private"]))))


@pytest.fixture(scope="module")
def trials() -> dict[str, Trial]:
    """Trials by variant, each played once."""
    return {}


REFUSED = [
    (
        "fedavg",
        ["privacy.clip=1.0", "method.weighting=samples"],
        "method.weighting=samples: set method.weighting=uniform",
    ),
    (
        "fedca",
        ["privacy.clip=1.0"],
        r"dictionary \(rows of private samples\): set method.dictionary=false, or take",
    ),
    (
        "fcl",
        ["privacy.clip=1.0", "objective=moco", "objective.queue_size=50"],
        r"FCL as it is set .* features \(rows of private samples\): set method.fusion=false",
    ),
    ("feddf", ["privacy.clip=1.0"], "FedDF as it is set does not say so of weights"),
    ("ldawa", ["privacy.clip=1.0", UNIFORM], "LDAWA as it is set does not say so of weights"),
    ("orchestra", ["privacy.clip=1.0"], "Orchestra as it is set does not say so of local_centroids"),
    ("local", ["privacy.clip=1.0"], "LocalOnly has none: remove it"),
    (
        "fedmd",
        ["privacy.clip=1.0", "method.upload_format=int8"],
        "FedMD as it is set does not say so of representations: set method.upload_format=fp32",
    ),
    (
        "flesd",
        ["privacy.clip=1.0", "method.upload=similarities", "method.keep=0.5"],
        "largest_similarities: set method.keep=1.0",
    ),
    ("fedavg", [UNIFORM, "privacy.clip={encoder: 1.0}"], "names encoder, and what is released is weights"),
    (
        "fedavg",
        [UNIFORM, "privacy.clip=1.0", "objective=moco", "objective.queue_size=50", "method.parts.target=averaged"],
        "has no target at first: set method.parts.target=local",
    ),
    ("fedavg", ["privacy.noise=1.0"], "noise has no meaning without clip: set both or neither"),
    (
        "fedavg",
        ["privacy.clip=-1"],
        "privacy.clip: must be a number above 0, or one for each field of an upload, got -1",
    ),
]


@pytest.mark.parametrize(("name", "settings", "message"), REFUSED)
def test_what_has_no_bound_is_refused_in_one_line(open_tiny: Open, name: str, settings: list[str], message: str):
    with pytest.raises(ConfigError, match=message) as error:
        open_tiny(name, *settings)
    assert "\n" not in str(error.value)


class SendsMore(FedAvg):
    """Sends a field that it does not declare."""

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, dict[str, float]]:
        upload, next_state, metrics = super().update_client(download, state, client)
        return Upload(upload.weights, 7, torch.ones(3)), next_state, metrics


def test_a_field_that_is_not_declared_never_leaves_the_client(tiny: Tiny):
    config = tiny("fedavg", UNIFORM, "privacy.clip=1.0").model_copy(update={"method": SendsMore(weighting="uniform")})
    federation = Federation.open(config)
    with pytest.raises(RuntimeError, match="does not know how far one client can move correlation: remove"):
        federation.update_client(1, 0, federation.method.download(federation.init_server(), 0), None)
