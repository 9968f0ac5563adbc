"""The observer that keeps trackers up to date, stores what they have, and lets none of them stop a run."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import Evaluation, Observer, RoundOutcome
from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.reading import read_json
from rayfed_ssl.records.metric_rows import Row, ledger_rows, metric_rows, score_rows
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.trackers import EndStatus, Tracker, configured_trackers
from rayfed_ssl.trackers.series import Points, points, total_bytes

PROGRESS = "trackers.json"
"""The trackers' ids and the last round that each has of each series, in the run's directory."""


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
            self._progress: dict[str, Any] = dict(read_json(path)) if path.is_file() else {}
        except (OSError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is damaged ({reason(error)}): delete it, and trackers log anew") from None
        self._trackers: dict[str, Tracker] = {}
        self._total_bytes: Mapping[str, float] = {}
        for name in configured_trackers(config):
            with self._surviving(name):
                self._open(name, config, round)
        if self._trackers:
            self._log_rows(record.metrics, record.ledger)

    def on_commit(self, outcome: RoundOutcome) -> None:
        """Log the round's losses, times and bytes."""
        self._log_rows(metric_rows(outcome), ledger_rows(outcome))

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Log the scores."""
        self._log_rows(score_rows(evaluations), [])

    def close(self, status: EndStatus) -> None:
        """Close all trackers."""
        for name, tracker in list(self._trackers.items()):
            with self._surviving(name):
                tracker.close(status)

    def _open(self, name: str, config: Config, round: int) -> None:
        earlier = self._progress.get(name, {})
        # A tracker's library is imported now and not before.
        module = import_module(f"rayfed_ssl.trackers.{name}")
        tracker: Tracker = module.open_tracker(self._record.directory, config, round, earlier.get("identity"))
        logged: dict[str, int] = dict(earlier.get("logged", {})) if tracker.continues else {}
        if tracker.rewinds:
            logged = {series: min(last, round) for series, last in logged.items()}
        self._progress[name] = {"identity": tracker.identity, "logged": logged}
        self._trackers[name] = tracker

    def _log_rows(self, metrics: Sequence[Row], ledger: Sequence[Row]) -> None:
        """Log new rows of the record."""
        if not self._trackers:
            return
        series = points(metrics)
        for round, totals in total_bytes(ledger, self._total_bytes).items():
            series[round] = series.get(round, {}) | totals
            self._total_bytes = totals
        self._log(dict(sorted(series.items())))

    def _log(self, series: Points) -> None:
        """Log what each tracker does not have; a round counts as logged once the tracker has taken it."""
        for name, tracker in list(self._trackers.items()):
            logged = self._progress[name]["logged"]
            with self._surviving(name):
                for round, values in series.items():
                    if new := {key: value for key, value in values.items() if logged.get(key, -1) < round}:
                        tracker.log(round, new)
                        logged |= dict.fromkeys(new, round)
                self._save_progress()

    def _save_progress(self) -> None:
        write_atomically(self._record.directory / PROGRESS, json.dumps(self._progress, indent=1).encode())

    @contextmanager
    def _surviving(self, name: str) -> Iterator[None]:
        """Call a tracker; if it fails, the run continues without it."""
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
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
    try:
        yield tracking
        status = "interrupted" if record.manifest.finished is None else "finished"  # a paused run is to be resumed
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        tracking.close(status)
