"""Faults on Ray: the same results as without, or one line that says why not and a run that can be resumed."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import yaml

from actors.cluster.connect import Cluster
from actors.cluster.health import VITAL, Health
from actors.errors import ActorError, ClusterError
from actors.executor import RayExecutor
from actors.fault_injection import FaultyRayExecutor, fail_driver
from rayfed_ssl import Observer, runs
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import ClientError, QuorumError
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.faults.injection import FaultyLocalExecutor
from rayfed_ssl.faults.schedule import FAULT_KINDS, Faults, parse_fault
from rayfed_ssl.records.run_record import RunRecord

pytestmark = pytest.mark.ray

SURVIVED = [
    "kill-actor:round=1,client=0",
    "lose-upload:round=1,client=1",
    "slow:round=2,client=1,seconds=0.1",
]
SURVIVED_TWICE = [
    "kill-actor:round=2,client=2,times=2",
    "kill-server:round=2,times=2",
    "lose-upload:round=2,client=1,times=2",
    "full-store:round=1,client=2,times=2",
]


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
    """Runs of one federation on actors that stay between them."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.config = federation, federation.config
        self.executor = FaultyRayExecutor(federation)

    def __call__(self, federation: Federation) -> RayExecutor:
        return self.executor

    def run(self, directory: Path, *texts: str, events: Observer | None = None) -> Any:
        self._arm(texts)
        return runs.run(self.config, directory, observer=events, executor=self, federation=self.federation)

    def resume(self, directory: Path, *texts: str, events: Observer | None = None) -> Any:
        self._arm(texts)
        return runs.resume(directory, observer=events, executor=self)

    def _arm(self, texts: Sequence[str]) -> None:
        self.executor.faults = Faults(map(parse_fault, texts), self.config.rounds, self.federation.cohort, FAULT_KINDS)


@pytest.fixture(scope="module")
def make_runner(cluster: Cluster, open_tiny: Any) -> Iterator[Callable[..., Runner]]:
    """Make a runner; its actors end with the module's tests."""
    close = RayExecutor.close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayExecutor, "close", lambda executor: None)
        runners: list[Runner] = []

        def make(*options: str) -> Runner:
            runners.append(Runner(open_tiny("fedema", "engine.executor=ray", *options)))
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


def injected(directory: Path) -> list[str]:
    return [row["kind"] for row in json.loads((directory / "run.json").read_text()).get("faults", ())]


@pytest.mark.parametrize("texts", [SURVIVED, pytest.param([*SURVIVED, *SURVIVED_TWICE], marks=pytest.mark.slow)])
def test_what_a_run_survives_changes_no_bit(strict: Runner, undisturbed: str, tmp_path: Path, texts: list[str]):
    events = Events()
    result = strict.run(tmp_path / "run", *texts, events=events)
    assert (result.state_sha256, result.degraded) == (undisturbed, False)
    wanted = [fault.kind for fault in map(parse_fault, texts) for _ in range(fault.times)]
    assert sorted(injected(tmp_path / "run")) == sorted(wanted)
    assert events.retries == sum(kind in ("kill-actor", "lose-upload", "full-store") for kind in wanted)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("kill-actor:round=2,client=1,times=9", ClientError, "client 1 .*died in 3 of 3 attempts .Worker unexpectedly"),
        ("kill-server:round=2,times=9", ActorError, "the server actor died in 3 of 3 attempts"),
        ("full-store:round=2,client=1,times=9", ClusterError, "object store is full.*injected .* then resume the run"),
        ("full-disk:round=2", OSError, "No space left on device"),
        ("full-disk:round=2,client=0", OSError, "No space left on device"),
    ],
)
@pytest.mark.slow
def test_what_ends_a_run_leaves_it_to_be_resumed(
    text: str, error: type[Exception], message: str, strict: Runner, undisturbed: str, tmp_path: Path
):
    with pytest.raises(error, match=message):
        strict.run(tmp_path / "run", text)
    assert strict.resume(tmp_path / "run").state_sha256 == undisturbed


def test_clients_are_dropped_as_by_the_local_executor(lenient: Runner, tmp_path: Path):
    texts = ["raise:round=1,client=0", "nan:round=2,client=1", "shape:round=2,client=2", "nan:round=3,client=1"]
    expected, events = Events(), Events()
    make_local = partial(FaultyLocalExecutor, faults=[*map(parse_fault, texts)])
    local = runs.run(lenient.config, tmp_path / "local", observer=expected, executor=make_local)
    result = lenient.run(tmp_path / "ray", *texts, events=events)
    assert result.state_sha256 == local.state_sha256
    assert (events.dropped, events.clients) == (expected.dropped, expected.clients)
    assert events.clients == {1: [1, 2], 2: [0], 3: [0, 2]}
    assert result.degraded


@pytest.mark.slow
def test_a_deadly_client_is_quarantined_and_stays_out_after_a_resume(lenient: Runner, tmp_path: Path):
    events, later = Events(), Events()
    texts = ["kill-actor:round=1,client=1,times=9", "raise:round=2,client=0", "raise:round=2,client=2"]
    with pytest.raises(QuorumError, match=r"round 2 failed: 0 of 3 clients delivered, engine.quorum=0.3 asks for 1"):
        lenient.run(tmp_path / "run", *texts, events=events)
    assert "its actor died in 1 of 1 attempts" in events.dropped[1, 1]
    assert events.dropped[2, 1] == "quarantined since round 1"
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
    patient.run(tmp_path / "run", "slow:round=1,client=1,seconds=3600", events=events)
    assert "was not done within engine.deadline=400 s" in events.dropped[1, 1]
    assert events.clients == {1: [0, 2], 2: [0, 1, 2]}
    assert len(patient.executor._pool.actors) == 2


def test_a_ray_that_the_run_has_not_started_is_not_killed():
    due = Faults(map(parse_fault, ["kill-ray:round=1"]), 1, lambda round: (0,), FAULT_KINDS)
    with pytest.raises(ConfigError, match="works only on a Ray that the run has started"):
        fail_driver(due, 1, Health())


def test_a_head_that_does_not_answer_is_reported(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    cluster.health.check()
    assert set(cluster.health.vital) == set(VITAL.values())

    class Elsewhere:
        gcs_address = "127.0.0.1:1"

    monkeypatch.setattr(ray, "get_runtime_context", Elsewhere)
    with pytest.raises(ClusterError, match=r"Ray's head at 127.0.0.1:1 does not answer .* resume the run"):
        Health().check()


@pytest.mark.parametrize(
    ("executor", "text", "code", "message"),
    [
        ("ray", "kill-ray:round=2", 3, r"error: Ray's [\w ]*raylet[\w ]* died: "),
        ("local", "sigterm:round=2", 128 + signal.SIGTERM, "interrupted; resume with: rayfed-ssl resume"),
    ],
)
@pytest.mark.slow
def test_the_death_of_ray_and_sigterm_end_a_run_with_one_line(
    executor: str, text: str, code: int, message: str, strict: Runner, undisturbed: str, tmp_path: Path
):
    recipe, directory = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(strict.config.dump()))
    arguments = [str(recipe), f"engine.executor={executor}", "--out", str(directory), "--inject", text, "--quiet"]
    program = [sys.executable, "-m", "tune.cli", "run", *arguments]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == code, ended.stderr
    assert re.search(message, ended.stderr)
    assert "Traceback" not in ended.stderr
    assert injected(directory) == [text.partition(":")[0]]
    assert runs.resume(directory).state_sha256 == undisturbed


@pytest.fixture
def started(strict: Runner, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run on a Ray of its own that has finished a round, in `tmp_path / "run"`."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(strict.config.dump() | {"rounds": 40}))
    program = [sys.executable, "-m", "tune.cli", "run", str(recipe), "--out", str(tmp_path / "run")]
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
def test_sigterm_ends_a_run_whose_raylet_was_stopped_just_now(started: subprocess.Popen[str], tmp_path: Path):
    (raylet,) = [child for child in psutil.Process(started.pid).children() if child.name() == "raylet"]
    raylet.send_signal(signal.SIGSTOP)
    started.send_signal(signal.SIGTERM)
    messages = started.communicate(timeout=120)[1]
    assert started.returncode == 128 + signal.SIGTERM
    assert f"interrupted; resume with: rayfed-ssl resume {tmp_path / 'run'}" in messages
