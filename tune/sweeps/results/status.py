"""How far a sweep is, from its directory alone: it may run in another process or on another machine meanwhile."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from tune.sweeps.definition.sweep import Sweep
from tune.sweeps.execution.directory import SweepDirectory
from tune.sweeps.results.trial_results import STATES, TrialResult, best_of, named, number_of, results_of, worded
from tune.sweeps.results.trial_table import read_rows


@dataclass(frozen=True)
class Going:
    """A trial that is under way.

    Attributes:
        trial: Its number.
        point: Its values.
        rounds: Of a whole run.
        reached: The last round of each seed's run, by seed as a string; null where that has not begun.
    """

    trial: int
    point: Mapping[str, Any]
    rounds: int | None
    reached: Mapping[str, int | None]

    def line(self) -> str:
        """Write it for people."""
        far = [
            f"seed {seed} " + ("to come" if round is None else f"round {round} of {self.rounds}")
            for seed, round in self.reached.items()
        ]
        return f"trial {self.trial} ({named(self.point)}): {', '.join(far)}"


@dataclass(frozen=True)
class Status:
    """How far a sweep is.

    Attributes:
        name: The sweep's.
        title: What it shows.
        running: Whether a process of this machine runs it; null where the system cannot tell.
        finished: When it came to its end.
        trials: How many it comes to.
        states: State -> how many trials; those that are not chosen yet are waiting.
        going: Trials that are under way.
        others: Runs that have begun, of trials that are not in the table yet: directory -> round.
        best: The best complete trial by the first goal: its number, point and values (means over seeds), and all in words.
        seconds: That the rounds of all runs took.
        since: Seconds since the sweep began, until it ended.
        resume: The command to go on with; null where it is finished or runs.
    """

    name: str
    title: str
    running: bool | None
    finished: str | None
    trials: int
    states: Mapping[str, int]
    going: tuple[Going, ...]
    others: Mapping[str, int]
    best: Mapping[str, Any] | None
    seconds: float
    since: float
    resume: str | None

    def lines(self) -> list[str]:
        """Write it for people."""
        counted = ", ".join(f"{number} {state}" for state, number in self.states.items() if number)
        now = f"finished {self.finished}" if self.finished else ("running" if self.running else "not running")
        lines = [f"sweep {self.name}: {self.title}", f"{now}; {self.trials} trials: {counted}"]
        word = "under way" if self.running else "begun"
        lines += [f"{word}: {going.line()}" for going in self.going]
        lines += [f"{word}: {name}, round {round}" for name, round in self.others.items()]
        lines += [] if self.best is None else [f"best{' so far' * (not self.finished)}: {self.best['words']}"]
        until = "before the end" if self.finished else "ago"
        lines.append(f"rounds took {_duration(self.seconds)}; begun {_duration(self.since)} {until}")
        return lines + ([] if self.resume is None else [f"go on with: {self.resume}"])


def print_status(path: Path, as_json: bool) -> None:
    """Print how far a sweep is.

    Args:
        path: Its directory.
        as_json: Whether other programs read it.

    Raises:
        ConfigError: There is no sweep, or its files are damaged.
    """
    status = status_of(path)
    if as_json:
        typer.echo(json.dumps(asdict(status), indent=2))
        return
    for line in status.lines():
        typer.echo(line)


def status_of(path: Path) -> Status:
    """Read how far a sweep is.

    Raises:
        ConfigError: There is no sweep, or its files are damaged.
    """
    directory = SweepDirectory.open(path)
    sweep, content, table = directory.sweep, directory.content, path / "trials.parquet"
    trials = results_of(sweep, read_rows(table) if table.is_file() else [])
    runs = {run for trial in trials for run in trial.runs}
    rounds = _rounds(directory.runs)
    running, finished = directory.is_running(), content["finished"]
    best = best_of(trials, sweep.goals[0])
    return Status(
        name=sweep.name,
        title=sweep.title,
        running=running,
        finished=finished,
        trials=number_of(sweep),
        states=_states(sweep, trials),
        going=tuple(_going(trial, rounds) for trial in trials if _is_under_way(trial, rounds)),
        others={name: round for name, round in rounds.items() if name not in runs},
        best=None if best is None else _best(best, sweep),
        seconds=sum({run: took for trial in trials for run, took in trial.seconds.items()}.values()),
        since=_since(content["started"], finished),
        resume=None if finished or running else f"rayfed-ssl sweep --resume {shlex.quote(str(path))}",
    )


def _best(trial: TrialResult, sweep: Sweep) -> dict[str, Any]:
    values = {score: found.mean for score, found in trial.measured.items()}
    words = f"trial {trial.number} ({trial.label}): {worded(trial, sweep.goals)}"
    return {"trial": trial.number, "point": dict(trial.point), "values": values, "words": words}


def _states(sweep: Sweep, trials: Sequence[TrialResult]) -> dict[str, int]:
    states = {state: sum(trial.state == state for trial in trials) for state in STATES}
    states["waiting"] += number_of(sweep) - len(trials)
    return states


def _rounds(runs: Path) -> dict[str, int]:
    """Read the last round of each run that has begun, by its directory relative to the sweep's."""
    found = {}
    for file in sorted(runs.glob("*/run.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):  # a damaged record; going on says so
            rounds = json.loads(file.read_text())["rounds"]
            found[f"{runs.name}/{file.parent.name}"] = max((row["round"] for row in rounds), default=0)
    return found


def _is_under_way(trial: TrialResult, rounds: Mapping[str, int]) -> bool:
    return trial.state == "waiting" and any(run in rounds for run in trial.runs)


def _going(trial: TrialResult, rounds: Mapping[str, int]) -> Going:
    reached = {str(seed): rounds.get(run) for seed, run in zip(trial.seeds, trial.runs, strict=True)}
    return Going(trial.number, trial.point, trial.rounds, reached)


def _since(started: str, finished: str | None) -> float:
    end = datetime.now(UTC) if finished is None else datetime.fromisoformat(finished)
    return (end - datetime.fromisoformat(started)).total_seconds()


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
