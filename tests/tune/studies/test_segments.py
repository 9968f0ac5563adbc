"""Segments of runs: what an earlier call has run is answered and not run again."""

import errno
import json
from contextlib import ExitStack
from pathlib import Path

import cloudpickle
import pytest

from actors.cluster.machine import Node
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import ServerError
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from tests.tune.studies.swept import GRID, begin
from tests.tune.studies.test_search import KINDS, answer, sweep
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.resources import TrialResources
from tune.studies.execution.runner import run_study_here
from tune.studies.execution.scores import outcome_after
from tune.studies.execution.segments import DataCheck, SegmentQueue, run_segment
from tune.studies.execution.tune_trials import SegmentSearcher
from tune.studies.search.search import Outcome, Search


def explore(folder: Path, failures: dict[str, str], dies: int | None) -> list[tuple]:
    """Run a search whose runs leave nothing on disk; one of its trials dies."""
    search = Search(sweep(**KINDS["tpe"]))
    queue = SegmentQueue(search, folder, failures)
    while (segment := queue.next()) is not None:
        queue.done(segment.run.name, Outcome(failure="its process died") if segment.trial == dies else answer(segment))
    return [(trial.number, dict(trial.point), trial.state, trial.reason) for trial in search.trials]


def test_a_search_that_adapts_goes_on_with_the_failures_that_it_has_seen(tmp_path):
    failures: dict[str, str] = {}
    first = explore(tmp_path, failures, dies=2)
    assert explore(tmp_path, failures, dies=None) == first
    assert explore(tmp_path, {}, dies=None) != first


def test_what_ray_tune_gets_can_be_pickled_while_the_sweep_is_locked(tmp_path):
    directory = begin(tmp_path, GRID)
    with directory.locked():
        assert cloudpickle.loads(cloudpickle.dumps(directory)).path == directory.path


def test_a_run_that_was_not_scored_to_its_end_is_run_again(tmp_path, tiny):
    config = tiny("fedavg", "rounds=1")
    assert run_segment(config, tmp_path / "run", 1) == Outcome()
    assert outcome_after(tmp_path / "run", ["bytes"], None, 1, whole=True).failure is None
    summary = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(summary | {"finished": None}))
    assert outcome_after(tmp_path / "run", ["bytes"], None, 1).failure is None
    told = outcome_after(tmp_path / "run", ["bytes"], None, 1, whole=True).failure
    assert told == "run has not come to its end: resume the study"


@pytest.mark.parametrize("foreign", [None, "notes", "checkpoints/precious"])
def test_what_a_killed_start_left_is_removed_and_nothing_else(tmp_path, tiny, foreign):
    left = ["checkpoints/lock", "config.yaml", ".metrics.parquet.0123abcd", *([foreign] if foreign else [])]
    for name in left:
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).touch()
    failure = run_segment(tiny("fedavg", "rounds=1"), tmp_path / "run", 1).failure
    assert failure is None if foreign is None else "is not an empty directory" in str(failure)
    assert foreign is None or all((tmp_path / "run" / name).is_file() for name in left)


def test_a_score_that_is_not_there_is_named(tmp_path, tiny):
    assert run_segment(tiny("fedavg", "rounds=1"), tmp_path / "run", 1) == Outcome()
    for names, take, named in ((["bytes", "linear"], "mean", "linear of mean"), (["linear-moco"], None, "linear-moco")):
        told = outcome_after(tmp_path / "run", names, take, 1).failure
        assert told == f"run has no score {named} after round 1: see docs/sweeps.md, goals and take"


def test_a_segment_waits_for_a_process_that_is_ending(tmp_path, tiny, monkeypatch):
    config = tiny("fedavg", "rounds=2")
    assert run_segment(config, tmp_path / "run", 1) == Outcome()
    held = ExitStack()
    held.enter_context(RunRecord.open(tmp_path / "run").locked())
    monkeypatch.setattr("tune.studies.execution.segments.time.sleep", lambda seconds: held.close())
    assert run_segment(config, tmp_path / "run", 2) == Outcome()
    monkeypatch.setattr("tune.studies.execution.segments.BUSY_TIMEOUT", -1.0)
    with RunRecord.open(tmp_path / "run").locked():
        assert "another process is running" in str(run_segment(config, tmp_path / "run", 2).failure)


def test_runs_of_other_data_are_not_taken_for_these(tmp_path, tiny):
    assert run_segment(tiny("fedavg", "rounds=1"), tmp_path / "run", 1) == Outcome()
    DataCheck().confirm(tmp_path / "run", tiny("fedavg"))
    with pytest.raises(ConfigError, match="was made of other data than digits has now"):
        DataCheck().confirm(tmp_path / "run", tiny("fedavg", "data.train_limit=100"))
    DataCheck().confirm(tmp_path / "run", tiny("fedavg", "data={name: folder, path: /nowhere}"))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_is_no_result_of_a_trial(tmp_path, tiny, monkeypatch, wrapped):
    def full(*_: object, **__: object) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "there")
        except OSError as error:
            if wrapped:
                raise ServerError("states cannot be written") from error
            raise

    monkeypatch.setattr("rayfed_ssl.runs.run", full)
    outcome = run_segment(tiny("fedavg"), tmp_path / "run", 1)
    assert outcome.ends_study
    assert "No space left on device" in str(outcome.failure) or wrapped


def test_what_the_machines_cannot_carry_is_refused_alone_and_keeps_its_runs(tmp_path):
    class Small:
        def placed(self, config: Config) -> tuple[Config, list[dict[str, float]]]:
            if config.training.batch > 14:
                raise ConfigError("too much:", f"{config.training.batch}")
            return config, []

    search = Search(sweep(**KINDS["grid"]))
    searcher = SegmentSearcher(SegmentQueue(search, tmp_path), Small())
    asked = [searcher.suggest(name) for name in "abc"]
    assert {json.loads(segment["segment"])["config"]["training"]["batch"] for segment in asked} <= {8, 14}
    refused = [trial for trial in search.trials if trial.state == "failed"]
    assert refused
    assert all(trial.names and trial.reason == f"too much:; {trial.point['training.batch']}" for trial in refused)


def test_a_disk_error_ends_the_sweep_and_is_not_recorded(tmp_path):
    failures: dict[str, str] = {}
    searcher = SegmentSearcher(
        SegmentQueue(Search(sweep(**KINDS["tpe"])), tmp_path, failures), TrialResources([Node("large", cpus=8)])
    )
    assert "segment" in searcher.suggest("a")
    outcome = {"failure": "No space left on device", "ends_study": True}
    searcher.on_trial_complete("a", {"outcome": json.dumps(outcome)})
    assert isinstance(searcher.error, OSError)
    assert searcher.suggest("b") == "FINISHED"
    assert not failures


def test_equal_runs_of_several_trials_are_made_once_and_other_points_than_before_are_refused(tmp_path):
    rows = {"A": {}, "B": {"set": {"evaluation.knn.neighbors": 200}}}
    directory = begin(tmp_path, {"rows": rows, "maximize": "knn", "set": {"rounds": 1}})
    run_study_here(directory)
    first, second = directory.record.trials
    assert first.runs == second.runs
    assert len(list(directory.runs.iterdir())) == 1
    directory.record.trials[0] = first.model_copy(update={"point": {"row": "C"}})
    with pytest.raises(ConfigError, match=r"trial 0 was .*'C'.* and would now be .*'A'"):
        run_study_here(directory)


def test_more_seeds_are_run_beside_those_that_are_there(tmp_path):
    tree = {"space": {"rounds": [1, 2, 4]}, "maximize": "knn", "set": {"training.total_epochs": 2}}  # 4 is impossible
    directory, whole = begin(tmp_path, tree), begin(tmp_path / "whole", tree | {"seeds": 2})
    run_study_here(directory)
    before = {path: path.stat().st_mtime_ns for path in directory.runs.glob("*/run.json")}
    StudyDirectory.open(directory.path).add_seeds("seeds=2")
    again = StudyDirectory.open(directory.path)
    assert again.record.finished is None
    run_study_here(again)
    run_study_here(whole)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again.record.trials == whole.record.trials
    assert [len(trial.runs) for trial in again.record.trials] == [2, 2, 0]
    assert StudyDirectory.open(directory.path).record == again.record
    assert again.record.command == f"{whole.record.command.replace('/whole', '')} seeds=2"
    StudyDirectory.open(directory.path).add_seeds("seeds=[0, 1]")
    assert StudyDirectory.open(directory.path).record == again.record  # it stays finished


def test_seeds_that_would_change_what_was_run_are_refused_and_change_nothing(tmp_path):
    tree = {"space": {"rounds": [1, 2]}, "maximize": "knn", "seeds": 2}
    directory = begin(tmp_path, tree)
    with pytest.raises(ConfigError, match=r"has run the seeds \[0, 1\], and seeds=\[1, 2\] leaves some out"):
        directory.add_seeds("seeds=[1, 2]")
    searched = begin(tmp_path / "searched", tree | {"search": "tpe", "trials": 3})
    with pytest.raises(ConfigError, match="chosen by their means"):
        searched.add_seeds("seeds=3")
    assert {StudyDirectory.open(each.path).study.seeds for each in (directory, searched)} == {(0, 1)}
    directory.record.command = "rayfed-ssl benchmark cifar10"
    with pytest.raises(
        ConfigError, match="belongs to a benchmark: name more with --seeds in `rayfed-ssl benchmark cif"
    ):
        directory.add_seeds("seeds=3")


def test_files_that_no_run_has_written_are_not_removed_for_one(tiny, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").touch()
    outcome = run_segment(tiny("local", "rounds=1"), tmp_path / "run", 1)
    assert "is not an empty directory" in str(outcome.failure)
    assert (tmp_path / "run" / "precious").is_file()
