"""Legs on their way: what an earlier call came to is answered and not run again."""

import errno
import json
from contextlib import ExitStack
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from actors.cluster.machine import Node
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import ServerError
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from tests.tune.test_search import KINDS, answer, sweep
from tune.sweeps.execution.resources import Room
from tune.sweeps.execution.same_data import SameData
from tune.sweeps.execution.trial_configs import scores_after, why_none
from tune.sweeps.execution.trials import Legs, LegSearcher, make_leg
from tune.sweeps.results.rows import Known, _progress
from tune.sweeps.search.search import Outcome, Search


def explore(folder: Path, failures: dict[str, str], dies: int | None) -> list[tuple]:
    """Run a search whose runs leave nothing on disk; one of its trials dies."""
    search = Search(sweep(**KINDS["tpe"]))
    legs = Legs(search, folder, failures)
    while (leg := legs.next()) is not None:
        legs.done(leg.name, Outcome(failure="its process died") if leg.trial == dies else answer(leg))
    return [(trial.number, dict(trial.point), trial.state, trial.reason) for trial in search.trials]


def test_a_search_that_adapts_goes_on_with_the_failures_that_it_has_seen(tmp_path):
    failures: dict[str, str] = {}
    first = explore(tmp_path, failures, dies=2)
    assert explore(tmp_path, failures, dies=None) == first
    assert explore(tmp_path, {}, dies=None) != first


@pytest.mark.parametrize("kind", ["grid", "tpe"])
def test_what_the_machines_cannot_carry_is_refused_alone_and_keeps_its_runs(kind, tmp_path):
    def check(config: Config) -> None:
        if config.training.batch > 14:
            raise ConfigError(f"too much:\n{config.training.batch}")

    search = Search(sweep(**KINDS[kind]))
    legs = Legs(search, tmp_path, check=check)
    while (leg := legs.next()) is not None:
        assert leg.config.training.batch <= 14
        legs.done(leg.name, answer(leg))
    assert search.finished
    for trial in search.trials:
        batch = trial.point["training.batch"]
        assert trial.names
        assert batch <= 14 or trial.reason == f"too much:; {batch}"


def test_a_run_that_was_not_scored_to_its_end_is_run_again(tmp_path, tiny):
    config = tiny("fedavg", "rounds=1")
    assert make_leg(config, tmp_path / "run", 1) is None
    assert scores_after(tmp_path / "run", ["bytes"], None, 1, whole=True) is not None
    summary = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(summary | {"finished": None}))
    assert scores_after(tmp_path / "run", ["bytes"], None, 1) is not None
    assert scores_after(tmp_path / "run", ["bytes"], None, 1, whole=True) is None


def test_a_score_that_is_not_there_is_named(tmp_path, tiny):
    assert make_leg(tiny("fedavg", "rounds=1"), tmp_path / "run", 1) is None
    told = why_none(tmp_path / "run", ["bytes", "linear"], "mean", 1)
    assert told == "linear is of global in this method, which take: mean does not mean: leave take out"
    assert why_none(tmp_path / "run", ["linear-moco"], None, 1).startswith("run has no score linear-moco after round 1")


def test_a_leg_waits_for_a_process_that_is_on_its_way_out(tmp_path, tiny, monkeypatch):
    config = tiny("fedavg", "rounds=2")
    assert make_leg(config, tmp_path / "run", 1) is None
    held = ExitStack()
    held.enter_context(RunRecord.open(tmp_path / "run").locked())
    monkeypatch.setattr("tune.sweeps.execution.trials.time.sleep", lambda seconds: held.close())
    assert make_leg(config, tmp_path / "run", 2) is None
    monkeypatch.setattr("tune.sweeps.execution.trials.PATIENCE", -1.0)
    with RunRecord.open(tmp_path / "run").locked():
        assert "another process is running" in (make_leg(config, tmp_path / "run", 2) or "")


def test_runs_of_other_data_are_not_taken_for_these(tmp_path, tiny):
    assert make_leg(tiny("fedavg", "rounds=1"), tmp_path / "run", 1) is None
    SameData().confirm(tmp_path / "run", tiny("fedavg"))
    with pytest.raises(ConfigError, match="was made of other data than digits has now"):
        SameData().confirm(tmp_path / "run", tiny("fedavg", "data.train_limit=100"))
    SameData().confirm(tmp_path / "run", tiny("fedavg", "data={name: folder, path: /nowhere}"))


def test_scores_that_come_after_a_round_are_seen(tmp_path, tiny):
    assert make_leg(tiny("fedavg", "rounds=1", "evaluation.every=1"), tmp_path / "run", 1) is None
    later = tmp_path / "run" / "metrics.parquet"
    scored, summary = later.read_bytes(), (tmp_path / "run" / "run.json").read_bytes()
    table = pq.read_table(later)
    pq.write_table(table.filter(pc.not_equal(table["name"], "knn")), later)
    known: Known = {}
    before = _progress(tmp_path / "run", None, known)
    later.write_bytes(scored)
    after = _progress(tmp_path / "run", None, known)
    assert "score.knn" not in before
    assert "score.knn" in after
    assert (tmp_path / "run" / "run.json").read_bytes() == summary


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
    with pytest.raises(OSError, match="No space left on device"):
        make_leg(tiny("fedavg"), tmp_path / "run", 1)


def test_trouble_of_the_machine_ends_the_sweep_and_is_not_remembered(tmp_path):
    failures: dict[str, str] = {}
    searcher = LegSearcher(Legs(Search(sweep(**KINDS["tpe"])), tmp_path, failures), Room([Node("large", cpus=8)]))
    assert "leg" in searcher.suggest("a")
    searcher.on_trial_complete("a", {"trouble": json.dumps([errno.ENOSPC, "there"])})
    assert isinstance(searcher.error, OSError)
    assert searcher.suggest("b") == "FINISHED"
    assert not failures
