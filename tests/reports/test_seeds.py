"""Runs over seeds: who belongs together, and mean, spread and number."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.formats import MeanStd
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.seeds import by_seed
from rayfed_ssl.reports.summary import Summary, summarize
from rayfed_ssl.runs import run

Tiny = Callable[..., Config]


@pytest.fixture(scope="module")
def summaries(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> list[Summary]:
    """Two seeds of one setting, one of another; the second seed was computed and watched otherwise."""
    folder = tmp_path_factory.mktemp("runs")
    settings = [
        ("fedavg", "seed=1"),
        ("fedavg", "seed=0", "evaluation.every=1", "engine.actors=1"),
        ("local", "seed=1"),
    ]
    directories = [
        run(tiny(name, "rounds=1", *words), folder / str(number)).directory
        for number, (name, *words) in enumerate(settings)
    ]
    return [summarize(RunRecord.open(directory)) for directory in directories]


def test_runs_that_differ_in_their_seed_alone_are_one_setting(summaries: list[Summary]):
    fedavg, local = by_seed(summaries)
    assert (fedavg.seeds, local.seeds) == ((0, 1), (1,))
    values = [summaries[number].scores["global"]["linear"] for number in (0, 1)]
    mean = sum(values) / 2
    # The sample standard deviation of two values is their distance over the root of 2.
    assert fedavg.scores["linear"] == MeanStd(
        pytest.approx(mean), pytest.approx(abs(values[0] - values[1]) / 2**0.5), 2
    )
    assert not fedavg.minimum


def test_without_a_global_encoder_there_are_mean_and_minimum_of_clients(summaries: list[Summary]):
    _, local = by_seed(summaries)
    values = [scores["knn"] for scores in summaries[2].scores.values()]
    assert local.scores["knn"] == MeanStd(pytest.approx(sum(values) / 3), None, 1)
    assert local.minimum["knn"] == MeanStd(min(values), None, 1)


def test_a_seed_that_comes_twice_is_refused(summaries: list[Summary]):
    twice = replace(summaries[0], directory=Path("copy"))
    with pytest.raises(ConfigError, match=r"and copy are one setting with one seed, 1: name one"):
        by_seed([summaries[0], twice])


def test_where_the_data_lie_does_not_count_but_what_they_are_does(summaries: list[Summary]):
    one, two = summaries[:2]
    elsewhere = two.config.model_copy(update={"data": two.config.data.model_copy(update={"path": Path("elsewhere")})})
    assert len(by_seed([one, replace(two, config=elsewhere)])) == 1
    assert len(by_seed([one, replace(two, fingerprint="other")])) == 2


def test_a_run_without_scores_lowers_n(summaries: list[Summary]):
    (group,) = by_seed([replace(summaries[0], scores={}), summaries[1]])
    assert (group.seeds, group.scores["linear"].n) == ((0, 1), 1)


def test_runs_from_encoders_of_several_seeds_belong_together(tiny: Tiny, summaries: list[Summary], tmp_path: Path):
    made = []
    for seed, start in ((1, summaries[0]), (0, summaries[1])):
        words = ("objective=supervised", "model.projection_dim=null", f"model.start={start.directory}", f"seed={seed}")
        made.append(summarize(run(tiny("fedavg", "rounds=1", *words), tmp_path / str(seed)).record))
    (group,) = by_seed(made)
    assert group.seeds == (0, 1)
    assert group.scores["supervised"].n == 2


def test_a_run_that_was_stopped_early_is_no_draw_of_the_finished_ones(summaries: list[Summary]):
    finished, stopped = by_seed([summaries[1], replace(summaries[0], rounds=0, finished=False)])
    assert (finished.seeds, stopped.seeds) == ((0,), (1,))
