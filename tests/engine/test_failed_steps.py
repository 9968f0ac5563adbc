"""Steps that fail, disks that are full, late clients: what a run says, whom it drops, and that it can be resumed."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl import Observer
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import ClientError, Dropped, QuorumError
from rayfed_ssl.records.replay import replay
from rayfed_ssl.runs import Result, resume, run


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    """What `tests.faulty` reads."""
    path = tmp_path / "faults"
    path.touch()
    return path


@pytest.fixture
def config(tiny: Any, faults: Path) -> Config:
    config: Config = tiny("fedema", "method.name=tests.faulty:FaultyFedEMA", f"method.faults={faults}")
    return config


@pytest.fixture(scope="module")
def undisturbed(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(tiny("fedema"), tmp_path_factory.mktemp("runs") / "run").state_sha256


class Absences(Observer):
    """Keeps who was left out, and why."""

    def __init__(self) -> None:
        self.dropped: list[Dropped] = []

    def on_dropped(self, dropped: Dropped) -> None:
        self.dropped.append(dropped)


def rounds_of(directory: Path) -> list[int]:
    return [row["round"] for row in json.loads((directory / "run.json").read_text())["rounds"]]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise 2 1", "client 1 failed in round 2 .*asked to fail"),
        ("nan 2 0", "client 0 failed in round 2 .*not finite"),
        ("shape 2 0", "client 0 failed in round 2 .*does not fit the model"),
    ],
)
def test_a_failed_step_ends_a_run_which_can_be_resumed_and_the_step_replayed(
    fault: str, message: str, config: Config, faults: Path, tmp_path: Path, undisturbed: str
):
    faults.write_text(fault)
    with pytest.raises(ClientError, match=message):
        run(config, tmp_path / "run")
    assert rounds_of(tmp_path / "run") == [1]
    faults.write_text("")
    assert resume(tmp_path / "run").state_sha256 == undisturbed
    assert replay(tmp_path / "run", 2, 1, trust=True).metrics


@pytest.mark.parametrize("name", ["server-000002", "client-000002-000002"])
def test_a_full_disk_ends_a_run_which_can_be_resumed(
    name: str, tiny: Any, tmp_path: Path, undisturbed: str, monkeypatch: pytest.MonkeyPatch
):
    replace = os.replace

    def no_space(source: Any, target: Any) -> None:
        if name in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", no_space)
        with pytest.raises(OSError, match=f"No space left on device, .*{name}"):
            run(tiny("fedema"), tmp_path / "run")
    assert rounds_of(tmp_path / "run") == [1]
    assert resume(tmp_path / "run").state_sha256 == undisturbed


def test_a_client_whose_step_fails_is_dropped_where_the_run_says_so(config: Config, faults: Path, tmp_path: Path):
    faults.write_text("raise 1 1\nnan 1 1")
    absences, config = Absences(), Config.load(config.dump(), "engine.on_failure=drop")
    result: Result = run(config, tmp_path / "run", observer=absences)
    assert result.degraded
    (dropped,) = absences.dropped
    assert dropped.client == 1
    assert "asked to fail; to run this step alone" in dropped.reason


def test_a_deadline_drops_who_comes_after_a_late_step(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Late(Absences):
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def on_client(self, report: Any) -> None:
            self.now += 500.0

    late = Late()
    monkeypatch.setattr("rayfed_ssl.engine.local_executor.time", late)
    config = tiny("fedema", "rounds=1", "engine.deadline=400", "engine.quorum=0.1")
    assert run(config, tmp_path / "run", observer=late).degraded
    assert [dropped.client for dropped in late.dropped] == [1, 2]
    assert "engine.deadline=400 s" in late.dropped[0].reason


def test_a_round_below_its_quorum_fails_and_can_be_resumed(
    config: Config, faults: Path, tmp_path: Path, undisturbed: str
):
    faults.write_text("raise 2 0\nnan 2 2")
    config = Config.load(config.dump(), "engine.on_failure=drop", "engine.quorum=0.6")
    with pytest.raises(QuorumError, match=r"round 2 failed: 1 of 3 clients delivered, engine.quorum=0.6 asks for 2"):
        run(config, tmp_path / "run")
    faults.write_text("")
    result = resume(tmp_path / "run")
    assert (result.state_sha256, result.degraded) == (undisturbed, False)
