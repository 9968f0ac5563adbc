"""The observer that keeps trackers up to date, stores what they have, and lets none of them stop a run."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import Evaluation, Observer, RoundOutcome
from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.reading import read_json
from rayfed_ssl.records.metric_rows import Row, headline, ledger_rows, metric_rows, score_rows
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.trackers import EndStatus, TrackedRun, Tracker, configured_trackers
from rayfed_ssl.trackers.series import Points, points, total_bytes

PROGRESS = "trackers.json"
"""The trackers' ids and the last round that each has of each series, in the run's directory."""

FIGURES = "figures"


@dataclass
class _OpenTracker:
    name: str
    tracker: Tracker
    logged: dict[str, int] = field(default_factory=dict)


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
        self._trackers: list[_OpenTracker] = []
        self._total_bytes: Mapping[str, float] = {}
        for name in configured_trackers(config):
            self._attempt(name, partial(self._open, name, config, round))
        if self.is_active:
            self._log_rows(record.metrics, record.ledger)

    @property
    def is_active(self) -> bool:
        """Whether any tracker follows the run."""
        return bool(self._trackers)

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Log the round's losses, times and bytes."""
        self._log_rows(metric_rows(outcome), ledger_rows(outcome))

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Log the scores."""
        self._log_rows(score_rows(evaluations), [])

    def finish(self, figures: Sequence[Path]) -> None:
        """Log the run's final scores and its figures."""
        last = self._record.last_round
        scores = self._record.scores(last)
        names = sorted({name for metrics in scores.values() for name in metrics})
        self._log({last: {f"final/{name}": score for name in names if (score := headline(scores, name)) is not None}})
        for open_tracker in list(self._trackers):
            if open_tracker.logged.get(FIGURES) != last:
                self._attempt(open_tracker.name, partial(self._log_figures, open_tracker, last, figures))

    def close(self, status: EndStatus) -> None:
        """Close all trackers."""
        for open_tracker in list(self._trackers):
            self._attempt(open_tracker.name, partial(open_tracker.tracker.close, status))

    def _open(self, name: str, config: Config, round: int) -> None:
        earlier = self._progress.get(name, {})
        run = TrackedRun(self._record.directory, config, round, earlier.get("identity"))
        # A tracker's library is imported now and not before.
        tracker = import_module(f"rayfed_ssl.trackers.{name}").open_tracker(run)
        logged: dict[str, int] = dict(earlier.get("logged", {})) if tracker.continues else {}
        if tracker.rewinds:
            logged = {series: min(last, round) for series, last in logged.items()}
        self._trackers.append(_OpenTracker(name, tracker, logged))

    def _log_rows(self, metrics: Sequence[Row], ledger: Sequence[Row]) -> None:
        """Log new rows of the record."""
        if not self.is_active:
            return
        series = points(metrics)
        for round, totals in total_bytes(ledger, self._total_bytes).items():
            series[round] = series.get(round, {}) | totals
            self._total_bytes = totals
        self._log(dict(sorted(series.items())))

    def _log(self, series: Points) -> None:
        for open_tracker in list(self._trackers):
            self._attempt(open_tracker.name, partial(self._log_new, open_tracker, series))

    def _log_new(self, open_tracker: _OpenTracker, series: Points) -> None:
        """Log what the tracker does not have; a round counts as logged once the tracker has taken it."""
        for round, values in series.items():
            new = {name: value for name, value in values.items() if open_tracker.logged.get(name, -1) < round}
            if new:
                open_tracker.tracker.log(round, new)
                open_tracker.logged |= dict.fromkeys(new, round)
        self._save_progress()

    def _log_figures(self, open_tracker: _OpenTracker, round: int, figures: Sequence[Path]) -> None:
        open_tracker.tracker.log_figures(round, {path.stem: path for path in figures})
        open_tracker.logged[FIGURES] = round
        self._save_progress()

    def _save_progress(self) -> None:
        for open_tracker in self._trackers:
            identity = open_tracker.tracker.identity
            self._progress[open_tracker.name] = {"identity": identity, "logged": open_tracker.logged}
        write_atomically(self._record.directory / PROGRESS, json.dumps(self._progress, indent=1).encode())

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        """Call a tracker; if it fails, the run continues without it."""
        try:
            action()
        except Exception as error:
            self._trackers = [open_tracker for open_tracker in self._trackers if open_tracker.name != name]
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
