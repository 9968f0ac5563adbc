"""A sweep that begins with the best of another: what is taken, from which trial, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from tests.conftest import tiny_tree
from tune.sweeps.execution.directory import SweepDirectory
from tune.sweeps.execution.runner import run_sweep_here
from tune.sweeps.execution.trial_table import read_rows, write_rows
from tune.sweeps.results.inherited_settings import inherited_settings, origin_of
from tune.sweeps.results.summary import summarize_sweep

FIRST: dict[str, Any] = {
    "space": {
        "system": {"variants": {"plain": {}, "wide": {"set": {"training.batch": 16}}}},
        "rounds": [1, 2],
    },
    "seeds": 2,
    "maximize": "knn",
}
SECOND: dict[str, Any] = {
    "space": {"method.weighting": ["samples", "uniform"]},
    "begin": {"sweep": "first", "where": {"system": "wide"}, "take": ["rounds", "training.batch"]},
}


def write(folder: Path, name: str, tree: dict[str, Any], **changes: Any) -> str:
    recipe = folder / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(tiny_tree("fedavg") | {"data": {"name": "digits", "train_limit": 60}}))
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"recipe": str(recipe)} | tree | changes, sort_keys=False))
    return str(file)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SweepDirectory:
    """A sweep of four trials and two seeds that has been run, without Ray."""
    folder = tmp_path_factory.mktemp("first")
    directory = SweepDirectory.create(folder / "sweep", write(folder, "first", FIRST), (), {}, "rayfed-ssl sweep first")
    run_sweep_here(directory)
    return directory


@pytest.fixture
def changed(finished: SweepDirectory, tmp_path: Path) -> Callable[..., Path]:
    """Copy the finished sweep with other scores: changed({trial: score})."""

    def change(scores: dict[int, float], state: str = "complete") -> Path:
        copy = SweepDirectory(tmp_path / "copy", finished.record)
        copy.path.mkdir()
        (copy.path / "runs").symlink_to(finished.runs)
        copy.save()
        rows = read_rows(finished.path / "trials.parquet")
        for row in rows:
            row["score.knn"], row["state"] = scores[row["trial"]], state
        write_rows(rows, copy.path / "trials.parquet")
        return copy.path

    return change


def test_the_best_trial_that_matches_gives_its_settings(finished, tmp_path):
    means: dict[int, float] = {}
    for rounds in (1, 2):
        found = []
        for run in finished.runs.iterdir():
            record = RunRecord.open(run)
            config = record.config()
            if (config.rounds, config.training.batch) == (rounds, 16):
                found.append(record.scores(rounds)["global"]["knn"])
        assert len(found) == 2
        means[rounds] = fmean(found)
    best = max(means, key=lambda rounds: means[rounds])
    taken = inherited_settings(write(tmp_path, "second", SECOND), finished.path)
    assert taken == {"rounds": best, "training.batch": 16}


def test_the_mean_over_seeds_decides_and_of_equal_trials_the_first(changed, tmp_path):
    file = write(tmp_path, "second", SECOND)
    # Trials: plain 1, plain 2, wide 1, wide 2; the best of all is plain.
    assert inherited_settings(file, changed({0: 0.9, 1: 0.8, 2: 0.3, 3: 0.4}))["rounds"] == 2
    path = tmp_path / "copy" / "trials.parquet"
    rows = read_rows(path)
    for row in rows:
        row["score.knn"] = {2: (0.5, 0.1), 3: (0.3, 0.3)}.get(row["trial"], (0, 0))[row["seed"]]
    write_rows(rows, path)
    assert inherited_settings(file, path.parent)["rounds"] == 1


def test_less_is_better_where_the_other_sweep_minimizes(finished, tmp_path):
    file = {key: value for key, value in finished.record.file.items() if key != "maximize"} | {"minimize": "bytes_up"}
    copy = SweepDirectory(tmp_path / "copy", finished.record.model_copy(update={"file": file}))
    copy.path.mkdir()
    (copy.path / "runs").symlink_to(finished.runs)
    copy.save()
    write_rows(read_rows(finished.path / "trials.parquet"), copy.path / "trials.parquet")
    assert inherited_settings(write(tmp_path, "second", SECOND), copy.path)["rounds"] == 1


def test_a_reader_is_told_where_settings_come_from_and_what_chose_them(finished, tmp_path):
    file = write(tmp_path, "second", SECOND)
    taken = inherited_settings(file, finished.path)
    told = origin_of(finished.path, taken)
    assert told.endswith(
        f"training.batch=16: from the sweep first in {finished.path}, chosen by 6 held-out training samples."
    )
    begun = SweepDirectory.create(tmp_path / "mine", file, (), taken, "rayfed-ssl sweep second", told)
    assert told in summarize_sweep(begun).remarks
    assert origin_of(None, {}) == ""


def test_a_sweep_that_takes_nothing_begins_with_nothing(tmp_path):
    assert inherited_settings(write(tmp_path, "first", FIRST), None) == {}


def refused(file: str, begin: Path | None) -> str:
    with pytest.raises(ConfigError) as caught:
        inherited_settings(file, begin)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_needed_or_not_is_told_in_one_line(finished, tmp_path):
    assert "--begin" in refused(write(tmp_path, "first", FIRST), finished.path)
    told = refused(write(tmp_path, "second", SECOND), None)
    assert "takes rounds, training.batch from the best trial of first" in told
    assert "--begin DIR" in told
    assert "holds no sweep" in refused(write(tmp_path, "second", SECOND), tmp_path)


def test_another_sweep_is_refused(finished, tmp_path):
    other = SECOND["begin"] | {"sweep": "fourth"}
    assert "holds the sweep first, but fourth is needed" in refused(
        write(tmp_path, "second", SECOND, begin=other), finished.path
    )


def test_an_unfinished_sweep_is_refused(finished, tmp_path):
    copy = SweepDirectory(tmp_path / "copy", finished.record.model_copy(update={"finished": None}))
    copy.path.mkdir()
    copy.save()
    assert "is not finished: resume it with `rayfed-ssl sweep --resume" in refused(
        write(tmp_path, "second", SECOND), copy.path
    )


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_trials_that_are_not_complete_give_nothing(changed, tmp_path, state):
    path = changed({0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1}, state=state)
    assert refused(write(tmp_path, "second", SECOND), path).endswith("has no complete trial with system=wide")


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        ({"where": {"system": "narrow"}}, "has no complete trial with system=narrow"),
        ({"where": {"sistem": "wide"}}, "does not vary 'sistem': did you mean 'system'?"),
        ({"take": ["training.bach"]}, "have no key 'training.bach': did you mean 'training.batch'?"),
        ({"take": ["method.weighting"]}, "second varies method.weighting, so it cannot take it from first"),
    ],
)
def test_words_that_do_not_fit_are_named(finished, tmp_path, begin, told):
    file = write(tmp_path, "second", SECOND, begin=SECOND["begin"] | begin)
    assert told in refused(file, finished.path)
