"""How far a sweep is, from its directory alone: it may run in another process or on another machine meanwhile."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rayfed_ssl.formats import duration
from rayfed_ssl.reading import read_json
from tune.studies.definition.schema import Sweep
from tune.studies.definition.space import point_text
from tune.studies.execution.directory import SweepDirectory
from tune.studies.results.sweep_results import TrialResult
from tune.studies.results.trial_results import STATES, best_of, read_results, scores_text
from tune.terminal import echo, print_json


@dataclass(frozen=True)
class TrialStatus:
    """A trial that has started and not ended, of so many `rounds`.

    Attributes:
        reached: The last round of each seed's run, by seed as a string; null where that has not started.
    """

    trial: int
    point: Mapping[str, Any]
    rounds: int | None
    reached: Mapping[str, int | None]

    def line(self) -> str:
        """Write it for people."""
        runs = [
            f"seed {seed} " + ("waits" if round is None else f"round {round} of {self.rounds}")
            for seed, round in self.reached.items()
        ]
        return f"trial {self.trial} ({point_text(self.point)}): {', '.join(runs)}"


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is.

    Attributes:
        running: Whether a process of this machine runs it; null where that cannot be found out.
        trials: How many it has in all.
        states: State -> number of trials; those that are not chosen yet are waiting.
        started_trials: Trials that have started and not ended.
        other_runs: Runs that have started, of trials that are not in the table yet: directory -> round.
        best: The best complete trial by the first goal: number, point, values (means over seeds), and all as text.
        seconds: That the rounds of all runs took.
        age: Seconds since the sweep started, until it ended.
        resume: The command to resume with; null where it is finished or runs.
    """

    name: str
    title: str
    running: bool | None
    finished: str | None
    trials: int
    states: Mapping[str, int]
    started_trials: tuple[TrialStatus, ...]
    other_runs: Mapping[str, int]
    best: Mapping[str, Any] | None
    seconds: float
    age: float
    resume: str | None

    def lines(self) -> list[str]:
        """Write it for people."""
        counts = ", ".join(f"{number} {state}" for state, number in self.states.items() if number)
        state = f"finished {self.finished}" if self.finished else ("running" if self.running else "not running")
        lines = [f"sweep {self.name}: {self.title}", f"{state}; {self.trials} trials: {counts}"]
        lines += [f"started: {trial.line()}" for trial in self.started_trials]
        lines += [f"started: {name}, round {round}" for name, round in self.other_runs.items()]
        lines += [] if self.best is None else [f"best{' so far' * (not self.finished)}: {self.best['text']}"]
        until = "before the end" if self.finished else "ago"
        lines.append(f"rounds took {duration(self.seconds)}; started {duration(self.age)} {until}")
        return lines + ([] if self.resume is None else [f"resume with: {self.resume}"])


def print_status(path: Path, as_json: bool) -> None:
    """Print how far a sweep is, for people or as JSON."""
    status = status_of(path)
    if as_json:
        print_json(asdict(status))
        return
    for line in status.lines():
        echo(line)


def status_of(path: Path) -> SweepStatus:
    """Read how far a sweep is."""
    directory = SweepDirectory.open(path)
    sweep, record = directory.sweep, directory.record
    trials = read_results(directory, sweep)
    runs = {run for trial in trials for run in trial.runs}
    rounds = _rounds(directory.runs)
    running, finished = directory.is_running(), record.finished
    end = datetime.now(UTC) if finished is None else datetime.fromisoformat(finished)
    best = best_of(trials, sweep.goals)
    resume = record.command if not sweep.goals else f"rayfed-ssl sweep --resume {shlex.quote(str(path))}"
    return SweepStatus(
        name=sweep.name,
        title=sweep.heading,
        running=running,
        finished=finished,
        trials=sweep.num_trials,
        states=_states(sweep, trials),
        started_trials=tuple(_started(trials, rounds)),
        other_runs={name: round for name, round in rounds.items() if name not in runs},
        best=None if best is None else _best(best, sweep),
        seconds=sum({run: seconds for trial in trials for run, seconds in trial.seconds.items()}.values()),
        age=(end - datetime.fromisoformat(record.started)).total_seconds(),
        resume=None if finished or running else resume,
    )


def _best(trial: TrialResult, sweep: Sweep) -> dict[str, Any]:
    values = {score: value.mean for score, value in trial.values.items()}
    text = f"trial {trial.number} ({trial.label}): {scores_text(trial)}"
    return {"trial": trial.number, "point": dict(trial.point), "values": values, "text": text}


def _states(sweep: Sweep, trials: Sequence[TrialResult]) -> dict[str, int]:
    states = {state: sum(trial.state == state for trial in trials) for state in STATES}
    states["waiting"] += sweep.num_trials - len(trials)
    return states


def _rounds(runs: Path) -> dict[str, int]:
    """Read the last round of each run that has started, by its directory relative to the sweep's."""
    last = {}
    for file in sorted(runs.glob("*/run.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):  # a damaged record; resuming reports it
            rounds = read_json(file)["rounds"]
            last[f"{runs.name}/{file.parent.name}"] = max((row["round"] for row in rounds), default=0)
    return last


def _started(trials: Iterable[TrialResult], rounds: Mapping[str, int]) -> Iterator[TrialStatus]:
    for trial in trials:
        if trial.state == "waiting" and any(run in rounds for run in trial.runs):
            reached = {str(seed): rounds.get(run) for seed, run in zip(trial.seeds, trial.runs, strict=True)}
            yield TrialStatus(trial.number, trial.point, trial.rounds, reached)
