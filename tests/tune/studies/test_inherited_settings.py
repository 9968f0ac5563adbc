"""A sweep that begins with the best of another: what is taken, from which trial, and what is refused."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from tests.tune.studies.swept import begin, fabricate, write
from tune.studies.execution.directory import SweepDirectory
from tune.studies.execution.trial_table import read_rows, write_rows
from tune.studies.results.inherited_settings import inherited_settings, origin_of
from tune.studies.results.summary import summarize_sweep
from tune.studies.search.search import Segment

FIRST: dict[str, Any] = {
    "space": {
        "system": {"variants": {"plain": {}, "wide": {"set": {"training.batch": 16}}}},
        "rounds": [1, 2],
    },
    "seeds": 2,
    "maximize": "knn",
}
"""Trials: plain 1, plain 2, wide 1, wide 2."""

SECOND: dict[str, Any] = {
    "space": {"method.weighting": ["samples", "uniform"]},
    "begin": {"sweep": "first", "where": {"system": "wide"}, "take": ["rounds", "training.batch"]},
}
BEST_IS_WIDE_2 = [(0.9, 0.9), (0.8, 0.8), (0.3, 0.3), (0.5, 0.3)]
"""Of all trials the best is plain."""


def finish(folder: Path, tree: Mapping[str, Any], scores: Sequence[Sequence[float]]) -> Path:
    """Fabricate a finished sweep with the record of each run, and scores by trial and seed."""
    directory = begin(folder, tree, "first")

    def outcome(segment: Segment) -> dict[str, float]:
        run = directory.runs / f"{segment.trial}-{segment.seed}"
        RunRecord.create(run, Federation.open(segment.run.config))
        return {directory.sweep.goals[0].score: scores[segment.trial][segment.seed]}

    fabricate(directory, outcome)
    directory.record.finished = "2026-01-01T00:00:00+00:00"
    directory.save()
    return directory.path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish(tmp_path_factory.mktemp("first"), FIRST, BEST_IS_WIDE_2)


@pytest.fixture
def second(tmp_path: Path) -> Callable[..., str]:
    """Write the file of the second sweep: second(take=["rounds"])."""
    return lambda **changes: write(tmp_path, SECOND | {"begin": SECOND["begin"] | changes}, "second")


def test_the_best_trial_that_matches_by_its_mean_over_seeds_gives_its_settings(finished, second):
    assert inherited_settings(second(), finished) == {"rounds": 2, "training.batch": 16}


def test_of_equal_trials_the_first_counts(second, tmp_path):
    path = finish(tmp_path, FIRST, [(0, 0), (0, 0), (0.5, 0.25), (0.375, 0.375)])
    assert inherited_settings(second(), path)["rounds"] == 1


def test_less_is_better_where_the_other_sweep_minimizes(second, tmp_path):
    fewest = {key: value for key, value in FIRST.items() if key != "maximize"} | {"minimize": "diag_uniformity"}
    assert inherited_settings(second(), finish(tmp_path, fewest, BEST_IS_WIDE_2))["rounds"] == 1


def test_a_reader_is_told_where_settings_come_from_and_what_chose_them(finished, second, tmp_path):
    taken = inherited_settings(second(), finished)
    told = origin_of(finished, taken)
    assert told.endswith(
        f"training.batch=16: from the sweep first in {finished}, chosen by 8 held-out training samples."
    )
    begun = SweepDirectory.create(tmp_path / "mine", second(), (), taken, "rayfed-ssl sweep second", told)
    assert told in summarize_sweep(begun).remarks
    assert origin_of(None, {}) == ""


def test_a_sweep_that_takes_nothing_begins_with_nothing(tmp_path):
    assert inherited_settings(write(tmp_path, FIRST, "first"), None) == {}


def refused(file: str, begin: Path | None) -> str:
    with pytest.raises(ConfigError) as caught:
        inherited_settings(file, begin)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_needed_or_not_is_told_in_one_line(finished, second, tmp_path):
    assert "--begin" in refused(write(tmp_path, FIRST, "first"), finished)
    told = refused(second(), None)
    assert "takes rounds, training.batch from the best trial of first" in told
    assert "--begin DIR" in told
    assert "holds no sweep" in refused(second(), tmp_path)


def test_an_unfinished_sweep_is_refused(second, tmp_path):
    path = begin(tmp_path, FIRST, "first").path
    assert "is not finished: resume it with `rayfed-ssl sweep --resume" in refused(second(), path)


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_trials_that_are_not_complete_give_nothing(second, tmp_path, state):
    path = finish(tmp_path, FIRST, BEST_IS_WIDE_2)
    table = path / "trials.parquet"
    write_rows([row | {"state": state} for row in read_rows(table)], table)
    assert refused(second(), path).endswith("has no complete trial with system=wide")


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        ({"sweep": "fourth"}, "holds the sweep first, but fourth is needed"),
        ({"where": {"system": "narrow"}}, "has no complete trial with system=narrow"),
        ({"where": {"sistem": "wide"}}, "does not vary 'sistem': did you mean 'system'?"),
        ({"take": ["training.bach"]}, "have no key 'training.bach': did you mean 'training.batch'?"),
        ({"take": ["method.weighting"]}, "second varies method.weighting, so it cannot take it from first"),
    ],
)
def test_words_that_do_not_fit_are_named(finished, second, begin, told):
    assert told in refused(second(**begin), finished)
