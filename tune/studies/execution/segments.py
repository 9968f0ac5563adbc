"""Segments of runs: running one, and answering those that are on disk already."""

import errno
import json
import math
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from actors.runs import make_executor
from rayfed_ssl.analysis.audit import audit
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.datasets import open_dataset
from rayfed_ssl.engine.round_loop import Observer
from rayfed_ssl.errors import BusyError, CheckpointError, ConfigError
from rayfed_ssl.records.audit_rows import audit_scores
from rayfed_ssl.records.run_record import RunRecord
from tune.studies.definition.schema import is_audit
from tune.studies.execution.scores import outcome_after
from tune.studies.search.search import Outcome, Search, Segment

BUSY_TIMEOUT = 120.0
"""Seconds that a segment waits for another process to release its run."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Errors that end a study, because the next trial would meet them too."""

PLACEMENT = ("executor", "actors", "cpus_per_actor", "gpus_per_actor", "mps")

BEFORE_A_RECORD = re.compile(
    r"checkpoints|checkpoints/lock|config\.yaml|(metrics|ledger)\.parquet|\.[a-z.]+\.[0-9a-f]{8}"
)
"""What a run writes before run.json, and drafts of it."""


def run_segment(config: Config, directory: Path, until: int) -> Outcome:
    """Run until after a round, from where the run is; the outcome has no scores."""
    from rayfed_ssl.runs import resume, run

    # Where it runs may have changed since it began: the number of actors, for one.
    engine = config.dump()["engine"]
    changes = [(f"engine.{key}", engine[key]) for key in PLACEMENT]
    deadline = time.monotonic() + BUSY_TIMEOUT
    try:
        while True:
            try:
                if (directory / "run.json").is_file():
                    resume(directory, *changes, observer=Observer(), executor=make_executor, until=until)
                else:
                    _remove_unbegun(directory)
                    run(config, directory, observer=Observer(), executor=make_executor, until=until)
                return Outcome()
            except BusyError:  # the process of an earlier attempt may still be ending
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
    except Exception as error:  # a trial that fails, for whatever reason, must not keep the others from running
        return Outcome(failure=" ".join(f"{error}".split()) or type(error).__name__, ends_study=_is_of_the_disk(error))


def _remove_unbegun(directory: Path) -> None:
    """Remove a run that was stopped before its record began; what else is there is left to be refused."""
    files = (file.relative_to(directory).as_posix() for file in directory.rglob("*"))
    if directory.is_dir() and all(map(BEFORE_A_RECORD.fullmatch, files)):
        shutil.rmtree(directory, ignore_errors=True)


def _is_of_the_disk(error: BaseException | None) -> bool:
    """Whether a full or broken disk is among the causes of an error: it says nothing about a trial."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome_of(config: Config, directory: Path, until: int, scores: tuple[str, ...], take: str | None) -> Outcome:
    """Run a segment and read its scores; that of an attack which does not fit the run is NaN."""
    outcome = run_segment(config, directory, until)
    if outcome.failure is not None:
        return outcome
    attacks = [name for name in scores if is_audit(name)]
    if not attacks or until < config.rounds:
        return outcome_after(directory, scores, take, until)
    try:
        audit(directory, {name.rpartition(".")[0]: {} for name in attacks}, required=False)
    except (ConfigError, CheckpointError) as error:
        return Outcome(failure=str(error))
    reached = audit_scores(directory, until)
    outcome = outcome_after(directory, [name for name in scores if name not in attacks], take, until)
    return Outcome({**outcome.scores, **{name: reached.get(name, math.nan) for name in attacks}}, outcome.failure)


class DataCheck:
    """Compares the data of runs on disk with those that are there now; opens each dataset once."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, str | None] = {}

    def confirm(self, directory: Path, config: Config) -> None:
        """Refuse a run that was made of other data; where they are not on this machine, nothing is compared."""
        key = json.dumps(config.dump()["data"], sort_keys=True)
        if key not in self._fingerprints:
            self._fingerprints[key] = None
            with suppress(ValueError, OSError):
                self._fingerprints[key] = open_dataset(config.data.name, **config.data_settings).fingerprint
        now, then = self._fingerprints[key], RunRecord.open(directory).manifest.data.fingerprint
        if now is not None and then != now:
            raise ConfigError(
                f"{directory} was made of other data than {config.data.name} has now (fingerprint {now[:12]} instead of "
                f"{then[:12]}): restore them, or start a new study; its runs are kept"
            )


@dataclass(eq=False)
class SegmentQueue:
    """The segments of a search that have to be run: those on disk are answered at once, equal ones run once.

    Args:
        search: Gives them and takes their outcomes.
        folder: Directory of runs.
        failures: Why segments failed earlier, by run and round. A search that adapts has seen these failures and so is
            answered with them again; others are tried once more.
        confirm: Refuses to take a run for the result of a configuration, with a `ConfigError`, which ends the study.
        on_end: Is called with each segment that ended, its outcome, and whether an earlier call had run it.
    """

    search: Search
    folder: Path
    failures: dict[str, str] = field(default_factory=dict)
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
                return segment
        return None

    def give_back(self, segment: Segment) -> None:
        """Put a segment back that was not started."""
        self._returned.append(segment)

    def _on_disk(self, segment: Segment) -> Outcome | None:
        """Read what an earlier call has given."""
        name = segment.run.name
        if self.search.study.adapts and (failure := self.failures.get(f"{name}@{segment.until}")) is not None:
            return Outcome(failure=failure)
        directory = self.folder / name
        whole = segment.until == segment.run.config.rounds
        try:
            outcome = outcome_after(directory, segment.scores, segment.take, segment.until, whole=whole)
        except ConfigError:
            return None  # a damaged record: running it says so
        if outcome.failure is not None:
            return None
        self.confirm(directory, segment.run.config)
        return outcome

    def done(self, name: str, outcome: Outcome) -> None:
        """Take the outcome of a run's segment, for all trials that wait for it; an OSError if it ends the study."""
        if outcome.ends_study:
            raise OSError(outcome.failure)
        for segment in self._running.pop(name):
            answer = outcome
            if outcome.failure is not None:
                self.failures[f"{name}@{segment.until}"] = outcome.failure
            elif not set(segment.scores) <= set(outcome.scores):  # the run is the first one of another trial
                answer = outcome_after(self.folder / name, segment.scores, segment.take, segment.until)
            self._answer(segment, answer)

    def _answer(self, segment: Segment, outcome: Outcome, on_disk: bool = False) -> None:
        self.on_end(segment, outcome, on_disk)
        self.search.done(segment, outcome)
        self.on_change()
