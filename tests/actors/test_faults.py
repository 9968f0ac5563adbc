"""Faults on Ray: the same results as without, or one line that says why not and a run that can be resumed."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import yaml

from actors.cluster.connect import Cluster
from actors.cluster.health import VITAL, Health
from actors.errors import ClusterError
from actors.executor import RayExecutor
from actors.injection import due_kills, parse_kill
from actors.runs import check_fits
from rayfed_ssl import Observer, runs
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import ClientError, QuorumError
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord

pytestmark = pytest.mark.ray


class Events(Observer):
    """Records which clients were dropped, why, and how often steps were repeated."""

    def __init__(self) -> None:
        self.dropped: dict[tuple[int, int], str] = {}
        self.clients: dict[int, list[int]] = {}
        self.retries = 0
        self._round = 0

    def on_round(self, round: int, cohort: Any) -> None:
        self._round = round

    def on_dropped(self, dropped: Any) -> None:
        self.dropped[self._round, dropped.client] = dropped.reason

    def on_round_end(self, outcome: Any) -> None:
        self.retries += outcome.retries
        self.clients[outcome.state.round] = [report.client for report in outcome.clients]


class Runner:
    """Runs of one federation on actors that stay between them; `faults` is the file of its failing steps."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.config = federation, federation.config
        self.executor = RayExecutor(federation)
        self.faults: Path = federation.config.method.faults  # type: ignore[attr-defined]

    def run(self, directory: Path, *kills: str, events: Observer | None = None) -> Any:
        self.executor.kills = due_kills(map(parse_kill, kills), self.federation)
        return runs.run(
            self.config, directory, observer=events, executor=lambda _: self.executor, federation=self.federation
        )

    def resume(self, directory: Path, events: Observer | None = None) -> Any:
        self.executor.kills.clear()
        return runs.resume(directory, observer=events, executor=lambda _: self.executor)


@pytest.fixture(scope="module")
def make_runner(
    cluster: Cluster, open_tiny: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Runner]]:
    """Make a runner; its actors end with the module's tests."""
    close = RayExecutor.close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayExecutor, "close", lambda executor: None)
        runners: list[Runner] = []

        def make(*options: str) -> Runner:
            faults = tmp_path_factory.mktemp("faults") / "faults"
            faults.touch()
            method = ("method.name=tests.faulty:FaultyFedEMA", f"method.faults={faults}")
            runners.append(Runner(open_tiny("fedema", "engine.executor=ray", *method, *options)))
            return runners[-1]

        yield make
    for runner in runners:
        close(runner.executor)


@pytest.fixture(scope="module")
def strict(make_runner: Callable[..., Runner]) -> Runner:
    return make_runner("engine.attempts=3", "engine.actors=1")


@pytest.fixture(scope="module")
def lenient(make_runner: Callable[..., Runner]) -> Runner:
    return make_runner(
        "engine.on_failure=drop", "engine.attempts=1", "engine.actors=1", "engine.quorum=0.3", "rounds=3"
    )


@pytest.fixture(scope="module")
def undisturbed(strict: Runner, tmp_path_factory: pytest.TempPathFactory) -> str:
    return runs.run(strict.config, tmp_path_factory.mktemp("runs") / "run").state_sha256


@pytest.mark.parametrize("text", ["raise:round=2", "kill-actor", "kill-actor:round=0", "kill-actor:round=1,seconds=2"])
def test_what_is_not_a_fault_is_refused_in_one_line(text: str):
    with pytest.raises(ConfigError, match=rf"^--inject {text}: write kill-actor:round=N\[,client=K\]\[,times=N\]$"):
        parse_kill(text)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("kill-actor:round=3", (), "the run has only 2 rounds"),
        ("kill-actor:round=2,client=7", (), "client 7 takes no part in round 2, choose from 0, 1, 2"),
        ("kill-actor:round=2,times=3", ("engine.executor=local",), "needs engine.executor=ray, got local"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(open_tiny: Any, text: str, options: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=f"^--inject {text}: .*{message}"):
        check_fits(open_tiny("fedema", "engine.executor=ray", *options), kills=[parse_kill(text)])


def test_actors_that_die_change_no_bit(strict: Runner, undisturbed: str, tmp_path: Path):
    events = Events()
    kills = ["kill-actor:round=1", "kill-actor:round=2,client=2,times=2"]
    result = strict.run(tmp_path / "run", *kills, events=events)
    assert (result.state_sha256, result.degraded, events.retries) == (undisturbed, False, 3)


def test_a_step_that_kills_each_actor_ends_the_run_which_can_be_resumed(
    strict: Runner, undisturbed: str, tmp_path: Path
):
    with pytest.raises(ClientError, match=r"client 1 .*died in 3 of 3 attempts .Worker unexpectedly"):
        strict.run(tmp_path / "run", "kill-actor:round=2,client=1,times=9")
    assert strict.resume(tmp_path / "run").state_sha256 == undisturbed


def test_clients_are_dropped_as_by_the_local_executor(lenient: Runner, tmp_path: Path):
    lenient.faults.write_text("raise 1 0\nnan 2 1\nshape 2 2\nnan 3 1\n")
    expected, events = Events(), Events()
    local = runs.run(lenient.config, tmp_path / "local", observer=expected)
    result = lenient.run(tmp_path / "ray", events=events)
    assert result.state_sha256 == local.state_sha256
    assert (events.dropped, events.clients) == (expected.dropped, expected.clients)
    assert events.clients == {1: [1, 2], 2: [0], 3: [0, 2]}
    assert result.degraded


@pytest.mark.slow
def test_a_deadly_client_is_quarantined_and_stays_out_after_a_resume(lenient: Runner, tmp_path: Path):
    events, later = Events(), Events()
    lenient.faults.write_text("raise 2 0\nraise 2 2\n")
    with pytest.raises(QuorumError, match=r"round 2 failed: 0 of 3 clients delivered, engine.quorum=0.3 asks for 1"):
        lenient.run(tmp_path / "run", "kill-actor:round=1,client=1,times=9", events=events)
    assert "its actor died in 1 of 1 attempts" in events.dropped[1, 1]
    assert events.dropped[2, 1] == "quarantined since round 1"
    lenient.faults.write_text("")
    result = lenient.resume(tmp_path / "run", events=later)
    assert later.dropped == {(2, 1): "quarantined since round 1", (3, 1): "quarantined since round 1"}
    assert result.degraded


class Clock(Events):
    """Lets the deadline of the first round pass when all clients but one are done, however fast the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead, self._reports = 0.0, 0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def on_round(self, round: int, cohort: Any) -> None:
        super().on_round(round, cohort)
        self.ahead, self._reports = 0.0, 0

    def on_client(self, report: Any) -> None:
        self._reports += 1
        if (self._round, self._reports) == (1, 2):
            self.ahead = 400.0


@pytest.mark.slow
def test_a_deadline_drops_a_straggler_and_its_actor_is_there_again(
    make_runner: Callable[..., Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    events, patient = Clock(), make_runner("engine.deadline=400", "engine.quorum=0.3", "engine.actors=2")
    monkeypatch.setattr("actors.dispatch.pool.time", events)
    patient.faults.write_text("sleep 1 1")
    patient.run(tmp_path / "run", events=events)
    assert "was not done within engine.deadline=400 s" in events.dropped[1, 1]
    assert events.clients == {1: [0, 2], 2: [0, 1, 2]}
    assert len(patient.executor._pool.actors) == 2


def test_a_head_that_does_not_answer_is_reported(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    cluster.health.check()
    assert set(cluster.health.vital) == set(VITAL.values())

    class Elsewhere:
        gcs_address = "127.0.0.1:1"

    monkeypatch.setattr(ray, "get_runtime_context", Elsewhere)
    with pytest.raises(ClusterError, match=r"Ray's head at 127.0.0.1:1 does not answer .* resume the run"):
        Health().check()


@pytest.fixture
def started(strict: Runner, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A run that has finished a round, in `tmp_path / "run"`; on a Ray of its own, or as the test's parameter says."""
    recipe, executor = tmp_path / "recipe.yaml", getattr(request, "param", "ray")
    recipe.write_text(yaml.safe_dump(strict.config.dump() | {"rounds": 40}))
    settings = [str(recipe), f"engine.executor={executor}", "--out", str(tmp_path / "run")]
    program = [sys.executable, "-m", "tune.cli", "run", *settings]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(line.startswith("round 1/") for line in process.stderr)
    yield process
    process.kill()
    process.wait(60)


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        *((name, signal.SIGKILL, rf"error: Ray's [\w ]*{log}[\w ]* died: ") for name, log in VITAL.items()),
        ("raylet", signal.SIGSTOP, "error: Ray's raylet was stopped by a signal: "),
    ],
)
@pytest.mark.slow
def test_any_vital_process_that_dies_or_stays_stopped_ends_a_run_in_one_line(
    started: subprocess.Popen[str], tmp_path: Path, name: str, number: signal.Signals, message: str
):
    (victim,) = [child for child in psutil.Process(started.pid).children(recursive=True) if child.name() == name]
    victim.send_signal(number)
    (line,) = [line for line in started.communicate(timeout=120)[1].splitlines() if not line.startswith("round ")]
    assert started.returncode == 3
    assert re.match(message, line)  # one that died may have taken others with it
    assert line.endswith(f"; resume with: rayfed-ssl resume {tmp_path / 'run'}")
    done = RunRecord.open(tmp_path / "run", tables=False).last_round
    resumed = runs.resume(tmp_path / "run", until=done + 1).state_sha256
    assert (
        resumed == runs.run(RunRecord.open(tmp_path / "run").config(), tmp_path / "whole", until=done + 1).state_sha256
    )


@pytest.mark.slow
@pytest.mark.parametrize("started", ["ray", "local"], indirect=True)
def test_sigterm_ends_a_run_even_if_its_raylet_was_stopped_just_now(started: subprocess.Popen[str], tmp_path: Path):
    for child in psutil.Process(started.pid).children():
        if child.name() == "raylet":
            child.send_signal(signal.SIGSTOP)
    started.send_signal(signal.SIGTERM)
    messages = started.communicate(timeout=120)[1]
    assert started.returncode == 128 + signal.SIGTERM
    assert f"interrupted; resume with: rayfed-ssl resume {tmp_path / 'run'}" in messages
