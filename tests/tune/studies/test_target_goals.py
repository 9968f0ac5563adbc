"""A study's goals may be the virtual time and the bytes after which kNN comes to an accuracy."""

import math
from pathlib import Path

import pytest

from rayfed_ssl import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import summarize
from tests.small_recipes import small
from tests.tune.studies.swept import result
from tune.studies.definition.files import load_study
from tune.studies.execution.runner import _scores_text
from tune.studies.execution.scores import bytes_of, outcome_after, read_progress
from tune.studies.execution.segments import run_segment
from tune.studies.results.table import table_of, trials_table
from tune.studies.search.optuna_study import check_study

CLOCK = ("clock=phones", "clock.devices.hours=24", "evaluation.every=1", "rounds=3", "clients.number=3")
GOALS = {"minimize": ["time_to:0.45", "bytes_to:.5"], "maximize": "knn"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("target") / "run"
    run_segment(small("fedsimclr", *CLOCK), directory, 3)
    return directory


def values(run: Path, name: str) -> dict[int, float]:
    return {row["round"]: row["value"] for row in RunRecord.open(run).metrics if row["name"] == name}


def test_a_target_is_reached_at_the_first_round_that_is_not_below_it(run: Path):
    knn, times = values(run, "knn"), values(run, "virtual_seconds")
    for text in {f"{value:.9f}" for value in (*knn.values(), min(knn.values()) / 2)}:
        names, target = (f"time_to:{text}", f"bytes_to:{text}"), float(text)
        first = next((round for round in knn if knn[round] >= target), None)
        outcome = outcome_after(run, names, None, 3)
        expected = (math.inf,) * 2 if first is None else (times[first], bytes_of(RunRecord.open(run), first)["bytes"])
        assert tuple(outcome.scores.values()) == expected
        assert tuple(read_progress(run, None, names)[f"score.{name}"] for name in names) == expected
        point = summarize(RunRecord.open(run)).reaching(target)
        assert (None if point is None else (point.virtual, point.bytes)) == (None if first is None else expected)


def test_what_is_never_reached_takes_for_ever_and_a_run_without_a_clock_has_no_time(run: Path, tmp_path: Path):
    assert outcome_after(run, ("time_to:.999",), None, 3).scores == {"time_to:.999": math.inf}
    run_segment(small("fedsimclr", "evaluation.every=1", "rounds=1", "clients.number=2"), tmp_path / "run", 1)
    outcome = outcome_after(tmp_path / "run", ("time_to:0.01",), None, 1)
    assert "has no score time_to:0.01" in str(outcome.failure)
    assert outcome_after(tmp_path / "run", ("bytes_to:0.01",), None, 1).scores["bytes_to:0.01"] > 0


def test_a_table_says_what_is_not_reached():
    study = load_study({"recipe": "digits", "space": {"rounds": [1, 2]}, "seeds": 2, **GOALS})
    found = [{"knn": [0.6, 0.7], "time_to:0.45": [3700, 3500], "bytes_to:.5": [2e6, 2e6]}]
    found += [{"knn": [0.6, 0.4], "time_to:0.45": [3700, math.inf], "bytes_to:.5": [2e6, math.inf]}]
    trials = [result(study, n, {"rounds": n + 1}, each) for n, each in enumerate(found)]
    by_score = {goal.score: [line[1].text for line in table_of(study, trials, goal).lines] for goal in study.goals}
    assert by_score["time_to:0.45"] == ["1 h 00 min ± 2 min 21 s", "not reached"]
    assert by_score["bytes_to:.5"] == ["2.00 MB", "not reached"]
    assert by_score["knn"] == ["65.00 ± 7.07", "50.00 ± 14.14"]
    assert [line[4].text for line in trials_table("", study, trials).lines] == [
        "1 h 00 min ± 2 min 21 s (n = 2)",
        "not reached",
    ]


def test_progress_says_that_a_target_is_not_reached():
    assert _scores_text([("time_to:0.45", math.inf), ("bytes_to:.5", math.inf), ("knn", 0.5)]) == (
        "time_to:0.45 not reached, bytes_to:.5 not reached, knn 50.00%"
    )


def test_a_cells_mean_is_not_of_the_seeds_alone_that_came_to_the_target():
    tree = {"recipe": "digits", "rows": {"A": None}, "columns": {"B": None}, "score": "time_to:0.45", "unit": "s"}
    study = load_study({**tree, "seeds": 2}, kind="reproduction")
    point = {"row": "A", "column": "B"}
    both, one = (result(study, 0, point, {"time_to:0.45": each}) for each in ([10.0, 20.0], [10.0, math.inf]))
    assert both.mean("time_to:0.45") is not None
    assert one.mean("time_to:0.45") is None


def test_virtual_time_needs_a_clock_before_anything_is_trained():
    study = load_study({"recipe": "digits", "space": {"rounds": [1]}, "minimize": "time_to:0.4", "maximize": []})
    with pytest.raises(ConfigError, match="time_to is of virtual time, and there is no clock: set clock=phones"):
        check_study(study)


@pytest.mark.parametrize("name", ["time_to:1.5", "time_to:45", "time_to", "time_to:knn"])
def test_a_target_that_is_no_accuracy_is_refused(name: str):
    study = load_study({"recipe": "digits", "space": {"rounds": [1]}, "minimize": name, "maximize": []})
    with pytest.raises(ConfigError, match=f"there is no score '{name}'"):
        check_study(study)
