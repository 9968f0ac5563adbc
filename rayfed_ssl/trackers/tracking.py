"""The observer that keeps trackers up to date, stores what they have, and lets none of them stop a run or hold it up."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import Evaluation, Observer, RoundOutcome
from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.foreign.reading import read_json
from rayfed_ssl.records.metric_rows import Row, ledger_rows, metric_rows, score_rows
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.trackers import EndStatus, Tracker, configured_trackers
from rayfed_ssl.trackers.series import Points, points, total_bytes

PROGRESS = "trackers.json"
"""The trackers' ids and the last round that each has of each series, in the run's directory."""


NOTICE, PATIENCE, ABORTED = 3.0, 60.0, 10.0
"""Seconds at a run's end after which it says that it waits for trackers, and that it waits; the last if it was stopped."""


class Follower:
    """A tracker in a thread of its own, for which nothing waits while the run goes on.

    Attributes:
        failure: What it has raised; later calls are not made.
    """

    def __init__(self, open_tracker: Callable[[], Tracker]) -> None:
        self.failure: BaseException | None = None
        self._calls: SimpleQueue[Callable[[Tracker], None] | None] = SimpleQueue()
        # A daemon: its library may try for minutes, and the process is to end.
        self._thread = threading.Thread(target=self._follow, args=(open_tracker,), daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[Tracker], None] | None) -> None:
        """Add a call, which is made after those before; None is the end."""
        self._calls.put(call)

    def is_done(self, seconds: float) -> bool:
        """Wait until it has ended or failed, for so many seconds at most."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _follow(self, open_tracker: Callable[[], Tracker]) -> None:
        try:
            tracker = open_tracker()
            while (call := self._calls.get()) is not None:
                call(tracker)
        except BaseException as error:  # a library may exit
            self.failure = error


class Tracking(Observer):
    """Gives trackers the new rows of the record; comes after the record among a run's observers.

    Args:
        record: The run's record.
        config: The run's configuration; its trackers are installed.
        round: The committed round that the run resumes from, 0 at the start.
        warn: Is called once for a tracker that fails; the run continues without it.
    """

    def __init__(self, record: RunRecord, config: Config, round: int, warn: Callable[[str], None]) -> None:
        self._record, self._warn = record, warn
        path = record.directory / PROGRESS
        try:
            self._progress: dict[str, dict[str, Any]] = dict(read_json(path)) if path.is_file() else {}
        except (OSError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is damaged ({reason(error)}): delete it, and trackers log anew") from None
        self._lock, self._is_closed, self._total_bytes = threading.Lock(), False, dict[str, float]()
        self._followers = {
            name: Follower(partial(self._open, name, config, round)) for name in configured_trackers(config)
        }
        if self._followers:
            self._log_rows(record.metrics, record.ledger)

    def on_commit(self, outcome: RoundOutcome) -> None:
        """Log the round's losses, times and bytes."""
        self._log_rows(metric_rows(outcome), ledger_rows(outcome))

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Log the scores."""
        self._log_rows(score_rows(evaluations), [])

    def close(self, status: EndStatus, seconds: float) -> None:
        """Close all trackers; one that does not answer within so many seconds is left behind."""
        begun, is_noticed = time.monotonic(), False
        last = begun + seconds
        for follower in self._followers.values():
            follower.submit(lambda tracker: tracker.close(status))
            follower.submit(None)
        for name, follower in self._followers.items():
            if not (is_noticed or follower.is_done(begun + NOTICE - time.monotonic())):
                is_noticed = True
                self._warn(f"waiting for {name}, which has not taken all yet, for at most {seconds:.0f} s")
            if not follower.is_done(last - time.monotonic()):
                follower.failure = TimeoutError(f"no answer within {seconds:.0f} s")
        with self._lock:
            self._is_closed = True
        self._report()

    def _open(self, name: str, config: Config, round: int) -> Tracker:
        earlier = self._progress.get(name, {})
        # A tracker's library is imported now and not before.
        module = import_module(f"rayfed_ssl.trackers.{name}")
        tracker: Tracker = module.open_tracker(self._record.directory, config, round, earlier.get("identity"))
        logged: dict[str, int] = dict(earlier.get("logged", {})) if tracker.continues else {}
        if tracker.rewinds:
            logged = {series: min(last, round) for series, last in logged.items()}
        self._save(name, {"identity": tracker.identity, "logged": logged})
        return tracker

    def _log_rows(self, metrics: Sequence[Row], ledger: Sequence[Row]) -> None:
        """Log new rows of the record."""
        self._report()
        if not self._followers:
            return
        series = points(metrics)
        for round, totals in total_bytes(ledger, self._total_bytes).items():
            series[round] = series.get(round, {}) | totals
            self._total_bytes = dict(totals)
        series = dict(sorted(series.items()))
        for name, follower in self._followers.items():
            follower.submit(partial(self._log, name, series))

    def _log(self, name: str, series: Points, tracker: Tracker) -> None:
        """Log what a tracker does not have; a round counts as logged once the tracker has taken it."""
        progress: dict[str, Any] = self._progress[name]
        logged = dict(progress["logged"])
        try:
            for round, values in series.items():
                if new := {key: value for key, value in values.items() if logged.get(key, -1) < round}:
                    tracker.log(round, new)
                    logged |= dict.fromkeys(new, round)
        finally:
            self._save(name, progress | {"logged": logged})

    def _save(self, name: str, progress: dict[str, Any]) -> None:
        with self._lock:
            if self._is_closed:  # it answers after it was left behind, when another process may follow the run
                return
            self._progress[name] = progress
            write_atomically(self._record.directory / PROGRESS, json.dumps(self._progress, indent=1).encode())

    def _report(self) -> None:
        """Say which trackers have failed; the run continues without them."""
        for name, follower in list(self._followers.items()):
            if (error := follower.failure) is not None:
                del self._followers[name]
                cause = (str(error).strip().splitlines() or [""])[0]
                self._warn(
                    f"{name} failed and is no longer used ({type(error).__name__}: {cause}); the record is complete, and "
                    f"`rayfed-ssl resume {self._record.directory} engine.trackers=[{name}]` logs what is missing"
                )


@contextmanager
def tracked(record: RunRecord, config: Config, round: int, warn: Callable[[str], None]) -> Iterator[Tracking]:
    """Let trackers follow a run, and close them with how it ended."""
    tracking = Tracking(record, config, round, warn)
    status: EndStatus = "failed"
    seconds = ABORTED
    try:
        yield tracking
        seconds = PATIENCE
        status = "interrupted" if record.manifest.finished is None else "finished"  # a paused run is to be resumed
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        tracking.close(status, seconds)
