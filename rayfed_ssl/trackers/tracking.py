"""The observer that keeps trackers up to date, remembers what they have, and lets none of them stop a run."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import Evaluation, Observer, RoundOutcome
from rayfed_ssl.records.metric_rows import Row, ledger_rows, metric_rows, score_rows
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import summarize
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.trackers import Ending, Subject, Tracker, chosen, opener
from rayfed_ssl.trackers.series import Points, moved, points

MEMORY = "trackers.json"
"""What trackers are known by and the last round that each has of each series, in the run's directory."""

FIGURES = "figures"


@dataclass
class _Followed:
    name: str
    tracker: Tracker
    logged: dict[str, int] = field(default_factory=dict)


class Tracking(Observer):
    """Hands trackers what the record has gained; stands after the record among a run's observers.

    Args:
        record: The run's record.
        config: What is run; its trackers are installed.
        round: The committed round that the run goes on from, 0 at the start.
        report: Is told once of a tracker that fails; the run goes on without it.
    """

    def __init__(self, record: RunRecord, config: Config, round: int, report: Callable[[str], None]) -> None:
        self._record = record
        self._report = report
        self._memory = _remembered(record.directory / MEMORY)
        self._followed: list[_Followed] = []
        self._moved: Mapping[str, float] = {}
        for name in chosen(config):
            self._attempt(name, partial(self._open, name, config, round))
        if self._followed:
            self._gain(record.metrics, record.ledger)

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Log the round's losses, times and bytes."""
        self._gain(metric_rows(outcome), ledger_rows(outcome))

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Log the scores."""
        self._gain(score_rows(evaluations), [])

    def finish(self) -> None:
        """Log the scores that the run ended with, and its figures."""
        if not self._followed:
            return
        summary = summarize(self._record)
        names = {name for scores in summary.scores.values() for name in scores}
        final = {f"final/{name}": score for name in sorted(names) if (score := summary.headline(name)) is not None}
        self._log({summary.rounds: final})
        for followed in [f for f in self._followed if f.logged.get(FIGURES) != summary.rounds]:
            self._attempt(followed.name, partial(self._show, followed, summary.rounds))

    def close(self, ending: Ending) -> None:
        """Let go of all trackers."""
        for followed in list(self._followed):
            self._attempt(followed.name, partial(followed.tracker.close, ending))

    def _open(self, name: str, config: Config, round: int) -> None:
        known = self._memory.get(name, {})
        subject = Subject(self._record.directory, config.dump(), round, known.get("identity"))
        tracker = opener(name)(subject)
        logged: dict[str, int] = dict(known.get("logged", {})) if tracker.continues else {}
        if tracker.rewinds:
            logged = {series: min(last, round) for series, last in logged.items()}
        self._followed.append(_Followed(name, tracker, logged))

    def _gain(self, metrics: Sequence[Row], ledger: Sequence[Row]) -> None:
        """Log rows that the record has gained."""
        if not self._followed:
            return
        gained = points(metrics)
        for round, values in moved(ledger, self._moved).items():
            gained[round] = gained.get(round, {}) | values
            self._moved = values
        self._log(dict(sorted(gained.items())))

    def _log(self, gained: Points) -> None:
        for followed in list(self._followed):
            self._attempt(followed.name, partial(self._hand_over, followed, gained))

    def _hand_over(self, followed: _Followed, gained: Points) -> None:
        _log_new(followed, gained)
        self._remember()

    def _show(self, followed: _Followed, round: int) -> None:
        from rayfed_ssl.reports.figures import draw_run  # matplotlib takes half a second

        followed.tracker.show(round, {path.stem: path for path in draw_run(self._record)})
        followed.logged[FIGURES] = round
        self._remember()

    def _remember(self) -> None:
        for followed in self._followed:
            self._memory[followed.name] = {"identity": followed.tracker.identity, "logged": followed.logged}
        write_atomically(self._record.directory / MEMORY, json.dumps(self._memory, indent=1).encode())

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        """Do something that another program's mood decides about; whatever it raises, the run goes on."""
        try:
            action()
        except Exception as error:
            self._followed = [followed for followed in self._followed if followed.name != name]
            cause = (str(error).strip().splitlines() or [""])[0]
            self._report(
                f"{name} failed and is left out from here on ({type(error).__name__}: {cause}); the record is complete, and "
                f"`rayfed-ssl resume {self._record.directory} engine.trackers=[{name}]` hands over what is missing"
            )


def _log_new(followed: _Followed, gained: Points) -> None:
    """Log what the tracker does not have yet; a round counts as logged once the tracker has taken it."""
    for round, values in gained.items():
        new = {name: value for name, value in values.items() if followed.logged.get(name, -1) < round}
        if new:
            followed.tracker.log(round, new)
            followed.logged |= dict.fromkeys(new, round)


def _remembered(path: Path) -> dict[str, Any]:
    """Read what trackers had; a file that is missing or damaged means that they had nothing."""
    try:
        known = json.loads(path.read_text())
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


@contextmanager
def tracked(record: RunRecord, config: Config, round: int, report: Callable[[str], None]) -> Iterator[Tracking]:
    """Let trackers follow what happens inside, and tell them how it ended."""
    tracking = Tracking(record, config, round, report)
    ending: Ending = "failed"
    try:
        yield tracking
        if record.summary["finished"] is None:
            ending = "interrupted"  # it pauses, to be resumed
        else:
            tracking.finish()
            ending = "finished"
    except KeyboardInterrupt:
        ending = "interrupted"
        raise
    finally:
        tracking.close(ending)
