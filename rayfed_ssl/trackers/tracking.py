"""The observer that keeps trackers up to date, stores what they have, and lets none of them stop a run."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import Evaluation, Observer, RoundOutcome
from rayfed_ssl.records.metric_rows import Row, headline, ledger_rows, metric_rows, score_rows
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.trackers import Ending, Subject, Tracker, chosen, opener
from rayfed_ssl.trackers.series import Points, moved, points

PROGRESS = "trackers.json"
"""The trackers' ids and the last round that each has of each series, in the run's directory."""

FIGURES = "figures"


@dataclass
class _Followed:
    name: str
    tracker: Tracker
    logged: dict[str, int] = field(default_factory=dict)


class Tracking(Observer):
    """Gives trackers the new rows of the record; comes after the record among a run's observers.

    Args:
        record: The run's record.
        config: The run's configuration; its trackers are installed.
        round: The committed round that the run resumes from, 0 at the start.
        report: Is called once for a tracker that fails; the run continues without it.
    """

    def __init__(self, record: RunRecord, config: Config, round: int, report: Callable[[str], None]) -> None:
        self._record = record
        self._report = report
        self._progress = _read_progress(record.directory / PROGRESS)
        self._followed: list[_Followed] = []
        self._moved: Mapping[str, float] = {}
        for name in chosen(config):
            self._attempt(name, partial(self._open, name, config, round))
        if self.is_active:
            self._gain(record.metrics, record.ledger)

    @property
    def is_active(self) -> bool:
        """Whether any tracker follows the run."""
        return bool(self._followed)

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Log the round's losses, times and bytes."""
        self._gain(metric_rows(outcome), ledger_rows(outcome))

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Log the scores."""
        self._gain(score_rows(evaluations), [])

    def finish(self, figures: Sequence[Path]) -> None:
        """Log the run's final scores and show its figures."""
        if not self.is_active:
            return
        last = self._record.last_round
        scores = self._record.scores(last)
        names = sorted({name for metrics in scores.values() for name in metrics})
        self._log({last: {f"final/{name}": score for name in names if (score := headline(scores, name)) is not None}})
        for followed in [f for f in self._followed if figures and f.logged.get(FIGURES) != last]:
            self._attempt(followed.name, partial(self._show, followed, last, figures))

    def close(self, ending: Ending) -> None:
        """Close all trackers."""
        for followed in list(self._followed):
            self._attempt(followed.name, partial(followed.tracker.close, ending))

    def _open(self, name: str, config: Config, round: int) -> None:
        earlier = self._progress.get(name, {})
        subject = Subject(self._record.directory, config.dump(), round, earlier.get("identity"))
        tracker = opener(name)(subject)
        logged: dict[str, int] = dict(earlier.get("logged", {})) if tracker.continues else {}
        if tracker.rewinds:
            logged = {series: min(last, round) for series, last in logged.items()}
        self._followed.append(_Followed(name, tracker, logged))

    def _gain(self, metrics: Sequence[Row], ledger: Sequence[Row]) -> None:
        """Log new rows of the record."""
        if not self.is_active:
            return
        gained = points(metrics)
        for round, values in moved(ledger, self._moved).items():
            gained[round] = gained.get(round, {}) | values
            self._moved = values
        self._log(dict(sorted(gained.items())))

    def _log(self, gained: Points) -> None:
        for followed in list(self._followed):
            self._attempt(followed.name, partial(self._log_to, followed, gained))

    def _log_to(self, followed: _Followed, gained: Points) -> None:
        _log_new(followed, gained)
        self._save_progress()

    def _show(self, followed: _Followed, round: int, figures: Sequence[Path]) -> None:
        followed.tracker.show(round, {path.stem: path for path in figures})
        followed.logged[FIGURES] = round
        self._save_progress()

    def _save_progress(self) -> None:
        for followed in self._followed:
            self._progress[followed.name] = {"identity": followed.tracker.identity, "logged": followed.logged}
        write_atomically(self._record.directory / PROGRESS, json.dumps(self._progress, indent=1).encode())

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        """Call a tracker; if it fails, the run continues without it."""
        try:
            action()
        except Exception as error:
            self._followed = [followed for followed in self._followed if followed.name != name]
            cause = (str(error).strip().splitlines() or [""])[0]
            self._report(
                f"{name} failed and is no longer used ({type(error).__name__}: {cause}); the record is complete, and "
                f"`rayfed-ssl resume {self._record.directory} engine.trackers=[{name}]` logs what is missing"
            )


def _log_new(followed: _Followed, gained: Points) -> None:
    """Log what the tracker does not have yet; a round counts as logged once the tracker has taken it."""
    for round, values in gained.items():
        new = {name: value for name, value in values.items() if followed.logged.get(name, -1) < round}
        if new:
            followed.tracker.log(round, new)
            followed.logged |= dict.fromkeys(new, round)


def _read_progress(path: Path) -> dict[str, Any]:
    """Read what trackers have; a missing or damaged file means nothing."""
    try:
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError):
        return {}


@contextmanager
def tracked(record: RunRecord, config: Config, round: int, report: Callable[[str], None]) -> Iterator[Tracking]:
    """Let trackers follow a run, and close them with how it ended."""
    tracking = Tracking(record, config, round, report)
    ending: Ending = "failed"
    try:
        yield tracking
        ending = "interrupted" if record.manifest.finished is None else "finished"  # a paused run is to be resumed
    except KeyboardInterrupt:
        ending = "interrupted"
        raise
    finally:
        tracking.close(ending)
