"""The state of a study: as `sweep --status` reads it from a directory, and as `--dry-run` foresees it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.errors import ConfigError
from tests.tune.studies.swept import FRONT, begin, write
from tune.studies.definition.files import read_study_file
from tune.studies.execution.directory import StudyDirectory, TrialRecord
from tune.studies.results.state import StudyState, state_before, state_of


def test_a_finished_study_says_so_and_lists_its_runs(swept_grid, capsys):
    state = state_of(swept_grid.path)
    assert (state.resume, state.trials, len(state.runs)) == (None, 6, 4 * 2 + 2)
    assert [run.state for run in state.runs].count("finished") == 8
    assert all(run.state.startswith("failed: ") for run in state.runs if not run.run)
    state.print(as_json=False)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "grid: Rounds and systems"
    assert second.startswith("finished 20")
    assert second.endswith("; 6 trials, 8 different runs, at most 12 rounds")


def test_an_interrupted_study_says_what_is_under_way_and_how_to_resume(swept_part):
    state = state_of(swept_part.path)
    assert state.state == "not running"
    assert state.resume == f"rayfed-ssl sweep --resume {swept_part.path}"
    assert [run.state for run in state.runs][:4] == ["finished", "finished", "finished", "to do"]


def test_while_a_process_holds_the_lock_it_is_running(swept_part):
    with swept_part.locked():
        state = state_of(swept_part.path)
        assert (state.state, state.resume) == ("running", None)
    assert state_of(swept_part.path).state == "not running"
    with swept_part.locked():  # asking has left no lock behind
        pass


def test_a_damaged_record_keeps_nobody_from_looking(swept_part, tmp_path):
    copy = shutil.copytree(swept_part.path, tmp_path / "copy")
    records = sorted(copy.glob("runs/*/run.json"))
    for record, text in zip(records, ("{", "[]", '{"rounds": 3}'), strict=True):
        record.write_text(text)
    assert state_of(copy).trials == 6


def test_failures_are_forgotten_but_for_those_that_others_follow_from(tmp_path):
    directory = begin(tmp_path, FRONT | {"generation": 2, "trials": 5})
    record = directory.record
    record.trials = [TrialRecord(point={}, runs=list(names)) for names in ("a", "bc", "d", "e")]
    record.failures = {"a@1": "why", "c@2": "why", "d@1": "why", "e@1": "why"}
    assert directory.forget_last_failures() == {"a@1": "why", "c@2": "why"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trials", None),
        ("directory", None),
        ("format", 99),
        ("trials.0.runs.0", [{"point": {}, "runs": [".."]}]),
        ("trials.0.point", [{"point": []}]),
        ("started", 5),
    ],
)
def test_a_damaged_study_is_one_line_with_what_is_wrong(tmp_path, key, value):
    directory = begin(tmp_path, FRONT)
    content = directory.record.model_dump() | {key.partition(".")[0]: value}
    (directory.path / "study.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"is damaged: {key}"):
        StudyDirectory.open(directory.path)


def test_json_holds_the_same_and_loads_neither_ray_nor_torch_nor_optuna(swept_grid):
    code = (
        "import sys; from pathlib import Path; from tune.studies.results.state import state_of\n"
        "state_of(Path(sys.argv[1])).print(True)\n"
        "assert not {'ray', 'torch', 'optuna'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code, swept_grid.path], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    plain = json.loads(ended.stdout)
    assert (plain["name"], plain["trials"], len(plain["runs"])) == ("grid", 6, 10)


def before(folder: Path, **tree: Any) -> StudyState:
    file = write(folder, tree, "small")
    return state_before(
        StudyDirectory.of(folder / "out", "small", read_study_file(file), (), "rayfed-ssl sweep small.yaml")
    )


def test_trials_runs_and_rounds_are_counted_and_equal_runs_once(tmp_path):
    systems = {"FedAvg": {}, "FedProx": {"set": {"method.name": "fedprox"}}}
    state = before(tmp_path, rows=systems, space={"rounds": [1, 2]}, seeds=2)
    assert (state.trials, len({run.run for run in state.runs})) == (4, 8)
    assert sum(run.rounds for run in state.runs) == 2 * 2 * (1 + 2)
    twins = {"A": {}, "B": {"set": {"evaluation.knn.neighbors": 200}}}
    state = before(tmp_path, rows=twins)
    assert (state.trials, len({run.run for run in state.runs})) == (2, 1)
    assert not (tmp_path / "out").exists()


def test_impossible_points_are_listed_with_their_reasons_and_are_an_error_alone(tmp_path):
    possible, impossible = before(tmp_path, space={"clients.number": [3, 1000]}).runs
    assert (possible.state, impossible.point) == ("to do", "clients.number=1000")
    assert impossible.state.startswith("impossible: ")
    assert "1000" in impossible.state
    with pytest.raises(ConfigError, match=r"no trial of small can be run: .*1000"):
        before(tmp_path, space={"clients.number": [1000, 2000]})


def test_points_of_a_search_are_drawn_at_random(tmp_path):
    tree = {
        "space": {"evaluation.knn.temperature": {"log": [0.01, 1]}},
        "search": {"name": "tpe", "n_startup_trials": 2},
    }
    state = before(tmp_path, **tree, trials=3, stop={"rule": "asha", "grace": 1, "reduction": 2})
    assert (state.trials, sum(run.rounds for run in state.runs)) == (3, 6)
