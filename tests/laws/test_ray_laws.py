"""Ray changes no bit: any number of actors, and the death of one, give every round's states as this process does."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.cluster.connect import start
from actors.executor import RayExecutor
from rayfed_ssl.config.schema import Config
from rayfed_ssl.testing.trial import Trace, simulate
from tests.actors.conftest import killing
from tests.laws.variants import VARIANTS

pytestmark = pytest.mark.ray

KINDS = ["fedprox", "fedca", "fedema", "flesd-mixed-models", "fedavg-private", "fedavg-lora"]
"""A variant for each kind of state: weights alone, public data, what clients keep, several models, a privacy budget, what
is frozen.
"""

TWO_ACTORS = (
    "fedavg-half-of-the-clients",
    "fedavg-krum-alie",
    "fedavg-bad-encoder",
    "fedavg-private",
    "fedavg-private-samples",
    "fedavg-lora",
    "fedavg-exact",
)


@pytest.fixture(scope="module", autouse=True)
def cluster(own_cache: None) -> Iterator[None]:
    """Ray with CPUs for three actors whatever the machine has; the session's, if there is one already."""
    started = start("local", num_cpus=4, timeout=200)
    yield
    started.stop()


def on_ray(config: Config, num_actors: int, directory: Path) -> Trace:
    engine = config.engine.model_copy(update={"executor": "ray", "actors": num_actors})
    return simulate(config.model_copy(update={"engine": engine}), directory, RayExecutor)


def check_same(trace: Trace, local: Trace) -> None:
    assert trace.digests == local.digests
    for expected, outcome in zip(local.outcomes, trace.outcomes, strict=True):
        assert outcome.server.metrics == expected.server.metrics
        for ours, theirs in zip(expected.clients, outcome.clients, strict=True):
            assert (theirs.client, theirs.metrics, theirs.ledger) == (ours.client, ours.metrics, ours.ledger)


@pytest.mark.slow
@pytest.mark.parametrize("variant", KINDS)
def test_one_actor_gives_the_bits_of_this_process(
    variant_config: Callable[[str], Config], variant: str, tmp_path: Path
):
    config = variant_config(variant)
    check_same(on_ray(config, 1, tmp_path / "ray"), simulate(config, tmp_path / "local"))


@pytest.mark.parametrize(
    "variant",
    [
        "flesd-mixed-models",
        *(pytest.param(name, marks=pytest.mark.slow) for name in TWO_ACTORS),
    ],
)
def test_two_actors_give_the_bits_of_this_process(
    variant_config: Callable[[str], Config], variant: str, tmp_path: Path
):
    config = variant_config(variant)
    check_same(on_ray(config, 2, tmp_path / "ray"), simulate(config, tmp_path / "local"))


@pytest.mark.parametrize("num_actors", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3))])
def test_secure_sums_have_the_bits_of_this_process(tiny: Callable[..., Config], num_actors: int, tmp_path: Path):
    config = tiny("fedavg", "privacy.secure_sum=true")
    check_same(on_ray(config, num_actors, tmp_path / "ray"), simulate(config, tmp_path / "local"))


@pytest.mark.slow
@pytest.mark.parametrize("variant", KINDS)
def test_three_actors_of_which_one_is_killed_give_the_bits_of_this_process(
    tiny: Callable[..., Config], variant: str, tmp_path: Path
):
    name, *overrides = VARIANTS[variant]
    config = tiny(name, *overrides, "training.epochs=4")  # a step is long enough to be hit
    with killing("ClientActor.update_client", times=1) as killed:
        trace = on_ray(config, 3, tmp_path / "ray")
    assert len(killed) == 1
    assert sum(outcome.retries for outcome in trace.outcomes) == 1
    check_same(trace, simulate(config, tmp_path / "local"))
