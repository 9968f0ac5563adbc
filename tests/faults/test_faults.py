"""Faults on demand: how they are written, that they happen as often as asked, and what a run makes of them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl import ConfigError, Observer
from rayfed_ssl.engine.round_loop import ClientError, Listener, QuorumError
from rayfed_ssl.faults.injection import FaultyLocalExecutor
from rayfed_ssl.faults.schedule import FAULT_KINDS, Faults, RandomFaults, parse_fault
from rayfed_ssl.records.replay import replay
from rayfed_ssl.runs import Result, resume, run

COHORTS = {1: (0, 2, 5), 2: (1, 2, 3), 3: (0, 1, 2)}


def faults(*texts: str, **options: Any) -> Faults:
    return Faults(map(parse_fault, texts), 3, COHORTS.__getitem__, **{"possible": FAULT_KINDS, **options})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kill-acto:round=2", "unknown fault 'kill-acto': did you mean 'kill-actor'"),
        ("raise", "round is missing, write raise:round=2"),
        ("raise:round", "round: input should be a valid integer, unable to parse string as an integer, got ''"),
        ("raise:round=0", "round: input should be greater than 0, got '0'"),
        ("raise:round=1.5", "round: input should be a valid integer"),
        ("slow:round=1,seconds=inf", "seconds: input should be a finite number, got 'inf'"),
        ("slow:round=1,second=3", "slow has no 'second': did you mean 'seconds'"),
        ("sigterm:round=1,client=2", "sigterm has no 'client'"),
        ("random:seed=3", "rate is missing, write random:rate=0.1"),
        ("raise:round=1,client=2,round=3", "round is there twice, write --inject once for each fault"),
        ("random:rate=1.5", "rate: input should be less than or equal to 1, got '1.5'"),
    ],
)
def test_what_is_not_a_fault_is_refused_in_one_line(text: str, message: str):
    with pytest.raises(ConfigError) as caught:
        parse_fault(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith("--inject")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise:round=4", "the run has only 3 rounds"),
        ("raise:round=2,client=5", "client 5 takes no part in round 2, choose from 1, 2, 3"),
        ("kill-actor:round=1", "needs engine.executor=ray"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        Faults([parse_fault(text)], 3, COHORTS.__getitem__)


@pytest.mark.parametrize("text", ["slow:round=1,client=2,seconds=0.25", "kill-actor:round=2,client=3,times=2"])
def test_a_fault_is_written_as_it_is_read(text: str):
    assert str(parse_fault(text)) == text


class Reports(Observer):
    """Keeps what is said of faults and absences."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.warnings: list[str] = []
        self.dropped: list[tuple[int, str]] = []

    def on_fault(self, fault: str, row: Any) -> None:
        self.faults.append(fault)

    def on_dropped(self, dropped: Any) -> None:
        self.dropped.append((dropped.client, dropped.reason))

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def test_a_fault_happens_as_often_as_asked():
    due, reports = faults("kill-actor:round=2,client=3,times=2", "raise:round=2,client=3", "slow:round=1"), Reports()
    due.listener = Listener(reports)
    assert due.for_step(1, 2) == ()
    assert [fault.kind for fault in due.for_step(1, 0)] == ["slow"]  # without a client, the first of the cohort
    injected = [[fault.kind for fault in due.for_step(2, 3)] for _ in range(4)]
    assert injected == [["kill-actor"], ["kill-actor"], ["raise"], []]
    assert [text.partition(":")[0] for text in reports.faults] == ["slow", "kill-actor", "kill-actor", "raise"]
    due.warn_of_missed(4)
    assert reports.warnings == []
    due = faults("kill-actor:round=2,client=3,times=3", "random:rate=1")
    due.listener = Listener(reports)
    due.for_step(2, 3)
    due.warn_of_missed(1)
    assert reports.warnings == [], "its round is still to come"
    due.warn_of_missed(4)
    assert len(reports.warnings) == 1
    assert reports.warnings[0].startswith("--inject kill-actor:round=2,client=3,times=2 did not happen")


def test_random_faults_follow_from_the_seed_round_by_round():
    cohorts = [tuple(range(k, k + 5)) for k in range(40)]
    drawn = RandomFaults(0.3, 7).draw(cohorts)
    assert drawn == RandomFaults(0.3, 7).draw(cohorts)
    assert [fault for fault in drawn if fault.round <= 9] == RandomFaults(0.3, 7).draw(cohorts[:9])
    assert drawn != RandomFaults(0.3, 8).draw(cohorts)
    assert {fault.kind for fault in drawn} == {name for name, kind in FAULT_KINDS.items() if kind.survived}
    assert all(fault.client is None or fault.client in cohorts[fault.round - 1] for fault in drawn)
    assert 40 <= len(drawn) <= 100  # 72 expected of 40 rounds and 6 kinds
    assert RandomFaults(0, 7).draw(cohorts) == []


def play(config: Any, directory: Path, *texts: str, reports: Observer | None = None) -> Result:
    wanted = [parse_fault(text) for text in texts]
    return run(config, directory, observer=reports, executor=partial(FaultyLocalExecutor, faults=wanted))


@pytest.fixture(scope="module")
def undisturbed(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tiny("fedema"), tmp_path_factory.mktemp("runs") / "run").state_sha256


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "raise:round=2,client=1",
            ClientError,
            "client 1 failed in round 2 .*injected by --inject raise:round=2,client=1",
        ),
        ("nan:round=2", ClientError, "client 0 failed in round 2 .*not finite"),
        ("shape:round=2", ClientError, "client 0 failed in round 2 .*does not fit the model"),
        ("full-disk:round=2", OSError, "No space left on device: 'server-000002'"),
        ("full-disk:round=2,client=2", OSError, "No space left on device: 'client-000002-000002'"),
    ],
)
def test_what_ends_a_run_says_why_and_leaves_it_to_be_resumed(
    text: str, error: type[Exception], message: str, tiny: Any, tmp_path: Path, undisturbed: str
):
    with pytest.raises(error, match=message):
        play(tiny("fedema"), tmp_path / "run", text)
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [row["round"] for row in said["rounds"]] == [1]
    assert [row["kind"] for row in said["faults"]] == [text.partition(":")[0]]
    assert resume(tmp_path / "run").state_sha256 == undisturbed
    if error is ClientError:  # a fault is no part of a replay
        assert replay(tmp_path / "run", 2, 1).metrics


def test_a_slow_step_changes_nothing_and_a_missed_fault_warns(tiny: Any, tmp_path: Path, undisturbed: str):
    reports = Reports()
    config = tiny("fedema", "engine.on_failure=drop")
    result = play(config, tmp_path / "run", "slow:round=1,client=0,seconds=0", reports=reports)
    assert (result.state_sha256, result.degraded) == (undisturbed, False)
    assert not [warning for warning in reports.warnings if "inject" in warning]
    assert reports.faults == ["slow:round=1,client=0,seconds=0"]
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    assert said["faults"] == [{"kind": "slow", "round": 1, "client": 0, "seconds": 0.0}]
    result = play(config, tmp_path / "other", "raise:round=1,client=1", "nan:round=1,client=1", reports=reports)
    assert result.degraded
    assert reports.dropped[0][0] == 1
    assert "raise:round=1,client=1; to run this step alone" in reports.dropped[0][1]


def test_a_deadline_drops_who_comes_after_a_slow_step(tiny: Any, tmp_path: Path):
    reports = Reports()
    config = tiny("fedema", "rounds=1", "engine.deadline=0.4", "engine.quorum=0.1")
    result = play(config, tmp_path / "run", "slow:round=1,client=0,seconds=0.5", reports=reports)
    assert [client for client, _ in reports.dropped] == [1, 2]
    assert "engine.deadline=0.4 s" in reports.dropped[0][1]
    assert result.degraded


def test_a_round_below_its_quorum_fails_and_can_be_resumed(tiny: Any, tmp_path: Path, undisturbed: str):
    config = tiny("fedema", "engine.on_failure=drop", "engine.quorum=0.6")
    texts = ["raise:round=2,client=0", "nan:round=2,client=2"]
    with pytest.raises(QuorumError, match=r"round 2 failed: 1 of 3 clients delivered, engine.quorum=0.6 asks for 2"):
        play(config, tmp_path / "run", *texts)
    result = resume(tmp_path / "run")
    assert (result.state_sha256, result.degraded) == (undisturbed, False)
