"""Sweeps on Ray: the same results whatever runs side by side, is killed or resumed; each run is made once."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import ray
import yaml

from actors.cluster.connect import start
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.machine.processor import NotPortableError
from rayfed_ssl.records.run_record import RunRecord
from tests.actors.conftest import killing
from tests.conftest import tiny_tree
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.runner import run_study, run_study_here
from tune.studies.run import StudyRequest

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SPACE = {"method.mu": {"log": [0.001, 10]}, "training.batch": {"integer": [16, 64]}}
ADAPTS = {
    "search": "tpe",
    "trials": 5,
    "generation": 3,
    "maximize": "knn",
    "stop": {"rule": "asha", "grace": 1, "reduction": 2},
}


@pytest.fixture(scope="module", autouse=True)
def cluster(own_cache: None) -> Iterator[None]:
    """Ray with four CPUs: the session's, unless somebody still holds a part of it, as the actors of a failed test do."""
    if ray.is_initialized() and not is_idle():
        ray.shutdown()
    started = start("local", num_cpus=4, timeout=200)
    yield
    started.stop()


def is_idle() -> bool:
    for _ in range(50):
        if ray.available_resources().get("CPU") == 4:
            return True
        time.sleep(0.2)
    return False


def write(directory: Path, **tree: Any) -> str:
    """Write a sweep file over a tiny recipe; returns its name."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tiny.yaml").write_text(yaml.safe_dump(tiny_tree("fedprox")))
    file = directory / "small.yaml"
    file.write_text(yaml.safe_dump({"recipe": str(directory / "tiny.yaml"), "space": SPACE} | tree))
    return str(file)


def begin(directory: Path, *overrides: str, **tree: Any) -> StudyDirectory:
    begun = StudyRequest(write(directory, **tree), "sweep", overrides, out=directory / "sweep").describe()
    begun.create()
    return begun


def result(directory: StudyDirectory) -> list[dict[str, Any]]:
    """The rows of a sweep, without times, and the digest of each run's final state."""
    rows: list[dict[str, Any]] = pq.read_table(directory.path / "trials.parquet").to_pylist()
    for row in rows:
        del row["seconds"]
        row["digest"] = None if row["run"] is None else digest(directory.path / row["run"])
    return rows


def digest(run: Path) -> str | None:
    file = run / "run.json"
    rounds = json.loads(file.read_text())["rounds"] if file.is_file() else []
    return rounds[-1]["state_sha256"] if rounds else None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the sweep that adapts gives in this process, one run after the other."""
    directory = begin(tmp_path_factory.mktemp("undisturbed"), **ADAPTS)
    run_study_here(directory)
    return result(directory)


def test_a_sweep_stops_some_trials_and_completes_others(undisturbed):
    assert {row["state"] for row in undisturbed} == {"complete", "stopped"}
    assert all(row["digest"] for row in undisturbed)
    assert all(row["round"] == (2 if row["state"] == "complete" else 1) for row in undisturbed)


def test_parallel_interrupted_and_killed_trials_give_the_same_results_and_make_no_run_twice(undisturbed, tmp_path):
    directory = begin(tmp_path, **ADAPTS)

    def interrupt(line: str) -> None:
        if "): complete" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(directory, concurrency=2, say=interrupt)
    done = [path.parent for path in directory.runs.glob("*/run.json") if RunRecord.open(path.parent).manifest.finished]
    before = {run: (run / "run.json").stat().st_mtime_ns for run in done}
    assert done
    assert is_idle()  # nothing is held for trials that were interrupted
    again = StudyDirectory.open(directory.path)
    assert again.record.finished is None
    with killing("ImplicitFunc.train", 1) as killed:
        run_study(again, concurrency=4)
    assert killed
    assert result(again) == undisturbed
    assert {run: (run / "run.json").stat().st_mtime_ns for run in done} == before
    record, lines = StudyDirectory.open(directory.path).record, list[str]()
    assert record.finished is not None
    run_study(StudyDirectory.open(directory.path), say=lines.append)  # runs nothing
    assert result(directory) == undisturbed
    assert StudyDirectory.open(directory.path).record == record
    assert not any("seed" in line for line in lines)


def test_trials_with_actors_of_their_own_never_wait_for_each_other_and_give_the_same_bits(tmp_path):
    space = {"method.mu": [0.1, 1.0, 3.0]}
    alone = begin(tmp_path / "alone", search="grid", space=space, maximize="knn", set={"rounds": 1})
    run_study_here(alone)
    federated = begin(
        tmp_path / "federated",
        *("engine.executor=ray", "engine.actors=2"),
        search="grid",
        space=space,
        maximize="knn",
        set={"rounds": 1},
    )
    run_study(federated, concurrency=4)  # four CPUs hold two federations of two actors
    assert result(federated) == result(alone)


def test_what_fails_outside_the_trials_ends_the_sweep_and_is_not_swallowed_by_tune(tmp_path):
    directory = begin(tmp_path, search="grid", space={"method.mu": [0.1]}, maximize="knn", set={"rounds": 1})

    def full(line: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        run_study(directory, concurrency=1, say=full)


def test_impossible_settings_fail_alone_and_what_a_machine_refused_another_may_run(tmp_path, monkeypatch):
    space = {"clients.number": [3, 100000], "engine.threads": [1, 64]}
    directory = begin(tmp_path, search="grid", space=space, maximize="knn", set={"rounds": 1})
    with monkeypatch.context() as refusing:
        refusing.setattr("rayfed_ssl.engine.federation.Federation.check_ready", refuse)
        run_study(directory, concurrency=1)
    assert directory.record.trials[0].reason == "the data are not mounted"
    again = StudyDirectory.open(directory.path)
    run_study(again)
    trials = again.record.trials
    assert [trial.state for trial in trials] == ["complete", "failed", "failed", "failed"]
    assert "a trial takes 64 cores, and no machine has more than 4: lower engine.threads" in trials[1].reason
    assert all("\n" not in trial.reason for trial in trials[1:])


def refuse(federation: object) -> None:
    raise ConfigError("the data are not mounted")


def test_two_processes_do_not_run_one_sweep(tmp_path):
    directory = begin(tmp_path, search="grid", space={"method.mu": [0.1]})
    with directory.locked(), pytest.raises(ConfigError, match="another process is running"):
        run_study(StudyDirectory.open(directory.path))


def test_a_sweep_that_was_killed_is_resumed_to_the_same_table(undisturbed, tmp_path):
    file, out = write(tmp_path, **ADAPTS), tmp_path / "sweep"
    command = [sys.executable, "-m", "tune.cli", "sweep"]
    process = subprocess.Popen(
        [*command, file, "--out", str(out), "--concurrency", "1"], stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 120
    assert process.stderr is not None
    while "round" not in process.stderr.readline():
        assert time.monotonic() < limit
    process.kill()
    process.wait()
    assert StudyDirectory.open(out).record.finished is None
    resumed = subprocess.run(
        [*command, "--resume", str(out), "--quiet"], capture_output=True, text=True, timeout=300, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    assert result(StudyDirectory.open(out)) == undisturbed


def test_a_sweep_whose_ray_died_ends_in_a_line(tmp_path):
    file, out = write(tmp_path, **ADAPTS), tmp_path / "sweep"
    process = subprocess.Popen(
        [sys.executable, "-m", "tune.cli", "sweep", file, "--out", str(out)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    process.stderr.readline()
    (raylet,) = [child for child in psutil.Process(process.pid).children() if child.name() == "raylet"]
    raylet.kill()
    message = process.stderr.read()
    assert process.wait(timeout=120) == 3
    assert re.search(r"error: Ray's [\w ]*raylet[\w ]* died: ", message)
    assert f"resume with: rayfed-ssl sweep --resume {out}" in message


def test_a_resumed_portable_sweep_asks_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as inside:
        inside.setattr("rayfed_ssl.machine.processor.is_portable", lambda: True)
        begun = begin(tmp_path, "engine.cpu=portable", "engine.precision=auto", search="random", trials=2)
    with pytest.raises(NotPortableError, match="must be set up before torch is imported"):
        run_study(begun)
