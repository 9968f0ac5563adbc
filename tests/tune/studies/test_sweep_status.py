"""How far a sweep is, as `sweep --status` says it."""

import json
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.errors import ConfigError
from tests.tune.studies.swept import FRONT, begin
from tune.studies.execution.directory import SweepDirectory
from tune.studies.results.status import print_status, status_of
from tune.studies.results.summary import summarize_sweep


def test_a_finished_sweep_is_said_to_be_so(swept_grid):
    status = status_of(swept_grid.path)
    assert status.finished is not None
    assert (status.running, status.resume, status.started_trials) == (False, None, ())
    assert (status.trials, status.states) == (6, {"complete": 4, "stopped": 0, "failed": 2, "waiting": 0})
    lines = status.lines()
    assert lines[0] == "sweep grid: Rounds and systems"
    assert lines[1].startswith("finished 20")
    assert lines[1].endswith("; 6 trials: 4 complete, 2 failed")


def test_an_interrupted_sweep_says_what_is_under_way_and_how_to_go_on(swept_part, capsys):
    print_status(swept_part.path, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "not running; 6 trials: 1 complete, 5 waiting"
    assert lines[2] == "started: trial 1 (rounds=1, system=FedProx): seed 0 round 1 of 1, seed 1 waits"
    assert lines[3].startswith("best so far: trial 0 (rounds=1, system=FedAvg): linear ")
    assert lines[4].startswith("rounds took ")
    assert lines[5] == f"resume with: rayfed-ssl sweep --resume {swept_part.path}"


def test_while_a_process_holds_the_lock_it_is_running(swept_part):
    with swept_part.locked():
        status = status_of(swept_part.path)
        assert (status.running, status.resume) == (True, None)
        assert status.lines()[2].startswith("started: trial 1 ")
    assert status_of(swept_part.path).running is False
    with swept_part.locked():  # asking has left no lock behind
        pass


def test_runs_that_the_table_does_not_have_yet_are_seen(swept_part, tmp_path):
    copy = shutil.copytree(swept_part.path, tmp_path / "copy")
    (copy / "trials.parquet").unlink()
    status = status_of(copy)
    assert len(status.other_runs) == 3
    assert set(status.other_runs.values()) == {1}
    assert status.states["waiting"] == status.trials == 6


def test_a_damaged_record_keeps_nobody_from_looking(swept_part, tmp_path):
    copy = shutil.copytree(swept_part.path, tmp_path / "copy")
    records = sorted(copy.glob("runs/*/run.json"))
    for record, text in zip(records, ("{", "[]", '{"rounds": 3}'), strict=True):
        record.write_text(text)
    assert status_of(copy).other_runs == {}
    assert summarize_sweep(SweepDirectory.open(copy)).held_out == []


def test_a_sweep_that_has_just_begun_has_a_status(tmp_path):
    directory = begin(tmp_path, FRONT)
    status = status_of(directory.path)
    assert (status.best, status.started_trials, status.seconds) == (None, (), 0)
    assert status.states == {"complete": 0, "stopped": 0, "failed": 0, "waiting": 4}


def test_failures_are_forgotten_but_for_those_that_others_follow_from(tmp_path):
    directory = begin(tmp_path, FRONT | {"generation": 2, "trials": 5})
    record = directory.record
    record.points, record.runs = [{}] * 4, [["a"], ["b", "c"], ["d"], ["e"]]
    record.failures = {"a@1": "why", "c@2": "why", "d@1": "why", "e@1": "why"}
    assert directory.forget_last_failures() == {"a@1": "why", "c@2": "why"}
    record.points, record.runs = [{}] * 2, [["a"], ["b", "c"]]
    assert directory.forget_last_failures() == {}


@pytest.mark.parametrize(
    ("key", "value"), [("runs", None), ("directory", None), ("format", 99), ("points", {}), ("started", 5)]
)
def test_a_damaged_sweep_is_told_with_what_is_wrong(tmp_path, key, value):
    directory = begin(tmp_path, FRONT)
    content = directory.record.model_dump() | {key: value}
    (directory.path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"is damaged: {key}"):
        SweepDirectory.open(directory.path)


def test_a_table_of_something_else_is_damaged(swept_part, tmp_path):
    copy = shutil.copytree(swept_part.path, tmp_path / "copy")
    pq.write_table(pa.table({"round": [1]}), copy / "trials.parquet")
    with pytest.raises(ConfigError, match="it is no table of trials"):
        status_of(copy)


def test_json_holds_the_same(swept_front, capsys):
    print_status(swept_front.path, as_json=True)
    plain = json.loads(capsys.readouterr().out)
    assert plain["states"]["complete"] == plain["trials"] == 4
    assert plain["best"]["text"].startswith(f"trial {plain['best']['trial']} (training.optimizer.lr=")
    assert set(plain["best"]["values"]) == {"knn", "bytes"}
    assert plain["seconds"] > 0


def test_a_status_loads_neither_ray_nor_torch_nor_optuna(swept_grid):
    code = (
        "import sys; from pathlib import Path; from tune.studies.results.status import print_status\n"
        "print_status(Path(sys.argv[1]), False)\n"
        "assert not {'ray', 'torch', 'optuna'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code, swept_grid.path], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("sweep grid: ")
    assert SweepDirectory.open(swept_grid.path).record.finished in ended.stdout
