"""Segments of runs: running one, and answering those that are on disk already."""

import errno
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from actors.runs import make_executor
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.datasets import open_dataset
from rayfed_ssl.engine.round_loop import Observer
from rayfed_ssl.errors import BusyError, ConfigError
from rayfed_ssl.records.run_record import RunRecord
from tune.studies.execution.scores import scores_after, why_none
from tune.studies.search.search import Outcome, Search, Segment

BUSY_TIMEOUT = 120.0
"""Seconds that a segment waits for another process to release its run."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Errors that end a study, because the next trial would meet them too."""


def run_segment(config: Config, directory: Path, until: int) -> str | None:
    """Run until after a round, from where the run is; returns why it failed, or None.

    Raises:
        OSError: The disk is full or broken, which is no result of this trial.
    """
    from rayfed_ssl.runs import resume, run

    deadline = time.monotonic() + BUSY_TIMEOUT
    try:
        while True:
            try:
                if (directory / "run.json").is_file():
                    # Where it runs may have changed since it began: the number of actors, for one.
                    resume(directory, *_placement(config), observer=Observer(), executor=make_executor, until=until)
                else:
                    shutil.rmtree(directory, ignore_errors=True)  # stopped before its record began
                    run(config, directory, observer=Observer(), executor=make_executor, until=until)
                return None
            except BusyError:  # the process of an earlier attempt may still be ending
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
    except Exception as error:  # a trial that fails, for whatever reason, must not keep the others from running
        if (disk_error := _disk_error(error)) is not None:
            raise disk_error from error
        return " ".join(f"{error}".split()) or type(error).__name__


def _disk_error(error: BaseException | None) -> OSError | None:
    """Find a full or broken disk among the causes of an error: it says nothing about a trial."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _placement(config: Config) -> Iterator[str]:
    for key in ("executor", "actors", "cpus_per_actor", "gpus_per_actor"):
        value = config.dump()["engine"][key]
        yield f"engine.{key}={'null' if value is None else value}"


def outcome_of(config: Config, directory: Path, until: int, scores: tuple[str, ...], take: str | None) -> Outcome:
    """Run a segment and read its scores; raises an OSError as `run_segment`."""
    failure = run_segment(config, directory, until)
    if failure is not None:
        return Outcome(failure=failure)
    values = scores_after(directory, scores, take, until)
    return Outcome(failure=why_none(directory, scores, take, until)) if values is None else Outcome(values)


@dataclass
class DataCheck:
    """Compares the data of runs on disk with those that are there now; opens each dataset once."""

    _fingerprints: dict[str, str | None] = field(default_factory=dict)

    def confirm(self, directory: Path, config: Config) -> None:
        """Refuse a run that was made of other data; where they are not on this machine, nothing is compared."""
        now = self._fingerprint(config)
        then = RunRecord.open(directory).manifest.data.fingerprint
        if now is not None and then != now:
            raise ConfigError(
                f"{directory} was made of other data than {config.data.name} has now (fingerprint {now[:12]} instead of "
                f"{then[:12]}): restore them, or start a new sweep; its runs are kept"
            )

    def _fingerprint(self, config: Config) -> str | None:
        key = json.dumps(config.dump()["data"], sort_keys=True)
        if key not in self._fingerprints:
            try:
                data = open_dataset(config.data.name, **config.data_settings)
                self._fingerprints[key] = data.fingerprint
            except (ValueError, OSError):
                self._fingerprints[key] = None
        return self._fingerprints[key]


@dataclass(eq=False)
class SegmentQueue:
    """The segments of a search that have to be run: those on disk are answered at once, equal ones run once.

    Args:
        search: Gives them and takes their outcomes.
        folder: Directory of runs.
        failures: Why segments failed earlier, by run and round. A search that adapts has seen these failures and so is
            answered with them again; others are tried once more.
        check: Refuses what the machines cannot run, with a `ConfigError`.
        confirm: Refuses to take a run for the result of a configuration, with a `ConfigError`, which ends the study.
        on_end: Is called with each segment that ended, its outcome, and whether an earlier call had run it.
    """

    search: Search
    folder: Path
    failures: dict[str, str] = field(default_factory=dict)
    check: Callable[[Config], object] = lambda config: None
    confirm: Callable[[Path, Config], None] = lambda directory, config: None
    on_end: Callable[[Segment, Outcome, bool], None] = lambda segment, outcome, on_disk: None
    on_change: Callable[[], None] = lambda: None
    _running: dict[str, list[Segment]] = field(default_factory=dict)
    _returned: list[Segment] = field(default_factory=list)
    _num_trials: int = 0

    def next(self) -> Segment | None:
        """Give a segment that has to be run; None if there is none now."""
        segment = self._returned.pop() if self._returned else self._new()
        if len(self.search.trials) > self._num_trials:
            self._num_trials = len(self.search.trials)
            self.on_change()
        return segment

    def _new(self) -> Segment | None:
        while (segment := self.search.next()) is not None:
            name = segment.run.name
            outcome = self._on_disk(segment)
            if outcome is not None:
                self._answer(segment, outcome, on_disk=True)
            elif name in self._running:
                self._running[name].append(segment)
            else:
                self._running[name] = [segment]
                refusal = self._refusal(segment.run.config)
                if refusal is None:
                    return segment
                self.done(name, Outcome(failure=refusal))
        return None

    def _refusal(self, config: Config) -> str | None:
        try:
            self.check(config)
        except (ValueError, OSError) as error:
            return "; ".join(str(error).splitlines()) or type(error).__name__
        return None

    def give_back(self, segment: Segment) -> None:
        """Put a segment back that was not started."""
        self._returned.append(segment)

    def _on_disk(self, segment: Segment) -> Outcome | None:
        """Read what an earlier call has given."""
        name = segment.run.name
        if self.search.study.adapts and (failure := self.failures.get(f"{name}@{segment.until}")) is not None:
            return Outcome(failure=failure)
        take, directory = segment.take, self.folder / name
        try:
            scores = scores_after(directory, segment.scores, take, segment.until, whole=segment.is_last)
        except ConfigError:
            return None  # a damaged record: running it says so
        if scores is None:
            return None
        self.confirm(directory, segment.run.config)
        return Outcome(scores)

    def done(self, name: str, outcome: Outcome) -> None:
        """Take the outcome of a run's segment, for all trials that wait for it."""
        for segment in self._running.pop(name):
            answer = outcome
            if outcome.failure is not None:
                self.failures[f"{name}@{segment.until}"] = outcome.failure
            elif not set(segment.scores) <= set(outcome.scores):  # the run is the first one of another trial
                scores = segment.scores, segment.take, segment.until
                answer = self._on_disk(segment) or Outcome(failure=why_none(self.folder / name, *scores))
            self._answer(segment, answer)

    def _answer(self, segment: Segment, outcome: Outcome, on_disk: bool = False) -> None:
        self.on_end(segment, outcome, on_disk)
        self.search.done(segment, outcome)
        self.on_change()


def run_here(queue: SegmentQueue) -> None:
    """Run all segments in this process, one after the other, each on the executor of its configuration."""
    while (segment := queue.next()) is not None:
        run, folder = segment.run, queue.folder
        config = run.placed(run.config, folder)
        outcome = outcome_of(config, folder / run.name, segment.until, segment.scores, segment.take)
        queue.done(run.name, outcome)
