"""Run the cells of a reproduction, each as a run of its own in one directory, and go on where an earlier call stopped.

DIR/runs/NAME/        a run, named for its system, its seed and a digest of its settings, so that equal cells share it
DIR/runs/.locks/NAME  held by the process that makes the run
DIR/logs/NAME.log     what it said, where runs are processes of their own
DIR/reproduction.json, DIR/table.md, figures
"""

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from actors.runs import draw_figures, make_executor
from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import BITS, Engine
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.reproduced import CellResult, measured
from rayfed_ssl.reproductions.definition import Cell, Reproduction

POLL_SECONDS = 0.5

Place = tuple[str, str, int]
"""Row, column and seed."""

Launch = Callable[[Config, Path, int | None], str | None]
"""Makes or resumes a run in a directory, holding a lock by its descriptor; returns why it failed, or None."""


@dataclass(frozen=True)
class Job:
    """A run that cells need.

    Attributes:
        name: Of its directory.
        config: What it runs.
        needs: Name of the run whose encoder it begins with.
    """

    name: str
    config: Config
    needs: str | None = None

    def placed(self, folder: Path) -> Config:
        """Say where the run is that this one begins with."""
        if self.needs is None:
            return self.config
        return Config.load(self.config.dump(), f"model.start={json.dumps(str((folder / self.needs).resolve()))}")


@dataclass
class Plan:
    """All runs of a reproduction, first runs before second ones, and which of them gives a cell's number."""

    jobs: dict[str, Job] = field(default_factory=dict)
    last: dict[Place, str] = field(default_factory=dict)

    def add(self, config: Config, needs: str | None = None) -> str:
        """Take a run in, unless one of the same settings is there."""
        name = run_name(config, needs)
        self.jobs.setdefault(name, Job(name, config, needs))
        return name


def run_name(config: Config, needs: str | None = None) -> str:
    """Name a run's directory for its system, its seed and all that decides its bits."""
    return f"{config.system}-s{config.seed}-{_digest(config, needs)}"


def _digest(config: Config, needs: str | None) -> str:
    """Digest of all that decides a run's bits; of how it is computed, only what is not as usual."""
    settings = {key: value for key, value in config.dump().items() if key != "engine"} | {"needs": needs}
    usual, engine = Engine().model_dump(mode="json"), config.dump()["engine"]
    if settings["data"]["validation"] is None:
        del settings["data"]["validation"]  # runs of earlier versions, which had no such key, keep their names
    settings |= {f"engine.{key}": engine[key] for key in BITS if engine[key] != usual[key]}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]


def plan(reproduction: Reproduction, seeds: Sequence[int], settings: Sequence[str]) -> Plan:
    """Resolve every cell.

    Raises:
        ConfigError: A cell's settings do not fit together.
    """
    made = Plan()
    for seed in seeds:
        for cell in reproduction.cells:
            try:
                made.last[cell.row, cell.column, seed] = _add_cell(made, cell, seed, settings)
            except ConfigError as error:
                raise ConfigError(f"{reproduction.name}, {cell.row}, {cell.column}: {error}") from None
    return made


def _add_cell(made: Plan, cell: Cell, seed: int, settings: Sequence[str]) -> str:
    first = cell.config(seed, *settings)
    second = cell.second(first, None, *settings)
    if second is None:
        return made.add(first)
    return made.add(second, None if cell.alone else made.add(first))


def finished(directory: Path) -> bool:
    """Whether a run came to its end."""
    if not (directory / "run.json").is_file():
        return False
    return RunRecord.open(directory, tables=False).summary["finished"] is not None


def in_process(config: Config, directory: Path, lock: int | None = None) -> str | None:
    """Make or resume a run in this process."""
    from rayfed_ssl.runs import resume, run

    try:
        if (directory / "run.json").is_file():
            resume(directory, executor=make_executor, draw=draw_figures)
        else:
            run(config, directory, executor=make_executor, draw=draw_figures)
    except Exception as error:  # a cell that fails, for whatever reason, must not keep the others from running
        return " ".join(f"{error}".split()) or type(error).__name__
    return None


class Processes:
    """Makes or resumes runs as processes of one core each.

    Args:
        logs: Directory for what they say.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: set[subprocess.Popen[bytes]] = set()

    def __call__(self, config: Config, directory: Path, lock: int | None = None) -> str | None:
        """Run to the end; the process keeps the lock, even if this one is killed."""
        self._logs.mkdir(parents=True, exist_ok=True)
        recipe, log = self._logs / f"{directory.name}.yaml", self._logs / f"{directory.name}.log"
        recipe.write_text(yaml.safe_dump(config.dump(), sort_keys=False))
        begun = (directory / "run.json").is_file()
        words = ["resume", str(directory)] if begun else ["run", str(recipe), "--out", str(directory)]
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tune.cli", *words, "--quiet", "engine.executor=local"],
                stdout=file,
                stderr=file,
                pass_fds=() if lock is None else (lock,),
            )
            self._running.add(process)
            code = process.wait()
            self._running.discard(process)
        if code == 0:
            return None
        lines = log.read_text(errors="replace").splitlines()
        told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines[-1:]
        return (told[-1] if told else f"ended with exit code {code}") + f" (see {log})"

    def stop(self) -> None:
        """End the processes, which keep what they have committed."""
        for process in list(self._running):
            process.terminate()


@dataclass
class Execution:
    """Runs the jobs of a plan.

    Args:
        plan: The runs.
        folder: Where they go.
        launch: Makes one.
        jobs: How many at a time.
        say: Is told the progress, a line a run.
    """

    plan: Plan
    folder: Path
    launch: Launch
    jobs: int = 1
    say: Callable[[str], None] = lambda line: None
    failures: dict[str, str] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Make what is missing; what fails is kept in `failures`, and what needs it is left out."""
        waiting = {name: job for name, job in self.plan.jobs.items() if not finished(self.folder / name)}
        self._total, self._started, self._done = len(waiting), time.perf_counter(), 0
        if len(waiting) < len(self.plan.jobs):
            self.say(f"{len(self.plan.jobs) - len(waiting)} of {len(self.plan.jobs)} runs are there already")
        if self.jobs == 1:
            for name in list(waiting):
                self._end(name, self._make(waiting[name]))
            return
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for name, reason in self._pooled(pool, waiting):
                    self._end(name, reason)
            except BaseException:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                if isinstance(self.launch, Processes):
                    self.launch.stop()
                raise

    def _pooled(self, pool: ThreadPoolExecutor, waiting: dict[str, Job]) -> Iterator[tuple[str, str | None]]:
        """Submit what may begin, and again whenever one has ended."""
        running: dict[Future[str | None], str] = {}
        while waiting or running:
            ready = [name for name, job in waiting.items() if job.needs not in (*waiting, *running.values())]
            running |= {pool.submit(self._make, waiting.pop(name)): name for name in ready}
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield running.pop(future), future.result()

    def _make(self, job: Job) -> str | None:
        if job.needs in self.failures:
            return f"needs {job.needs}, which failed"
        directory = self.folder / job.name
        with self._alone(job.name) as lock:
            if finished(directory):
                return None  # by another process, for which this one waited
            return self._begin(job, directory, lock)

    def _begin(self, job: Job, directory: Path, lock: int | None) -> str | None:
        if directory.exists() and not (directory / "run.json").is_file():
            shutil.rmtree(directory)  # it was stopped before its record began, and would not be an empty directory
        return self.launch(job.placed(self.folder), directory, lock)

    @contextmanager
    def _alone(self, name: str) -> Iterator[int | None]:
        """Wait for a run's lock, which a process of a call that was killed may still hold; give its descriptor."""
        try:
            import fcntl
        except ImportError:  # a system without file locks, where nobody waits
            yield None
            return
        place = self.folder / ".locks" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        told = False
        with place.open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not told:
                        self.say(f"{name} is being run by another process: waiting for it")
                    told = True
                if self._stopped.wait(POLL_SECONDS):
                    raise KeyboardInterrupt
            yield file.fileno()

    def _end(self, name: str, reason: str | None) -> None:
        if reason is not None:
            self.failures[name] = reason
        self._done += 1
        took = time.perf_counter() - self._started
        left = took / self._done * (self._total - self._done)
        end = "done" if reason is None else f"failed: {reason}"
        self.say(f"run {self._done} of {self._total}: {name} {end}; {took:.0f} s so far, about {left:.0f} s left")


def collect(
    reproduction: Reproduction,
    plan: Plan,
    folder: Path,
    seeds: Sequence[int],
    failures: Mapping[str, str],
    unlike: Mapping[tuple[str, str], str],
) -> tuple[CellResult, ...]:
    """Read the cells' numbers from the runs; `unlike` has the cells that differ in kind from the published ones."""
    results = []
    for cell in reproduction.cells:
        names = [plan.last[cell.row, cell.column, seed] for seed in seeds]
        ours, why = [], {}
        for seed, name in zip(seeds, names, strict=True):
            value = measured(cell, folder / name, reproduction.unit) if finished(folder / name) else None
            ours.append(value)
            if value is None:
                reason = failures.get(name) or ("was not run" if not finished(folder / name) else None)
                why[str(seed)] = reason or f"{name} has no score {cell.score!r}" + (
                    f" of {cell.take}" if cell.take else ""
                )
        runs = tuple(f"{folder.name}/{name}" for name in names)
        facts = (cell.row, cell.column, cell.score, cell.take, cell.published)
        results.append(CellResult(*facts, runs, tuple(ours), why, unlike.get((cell.row, cell.column))))
    return tuple(results)
