"""What the trials of a sweep have come to, from `trials.parquet` alone: values and their spread, the best, the front."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from tune.sweeps.definition.spaces import Point, Value
from tune.sweeps.definition.sweep import BYTES, Goal, Sweep
from tune.sweeps.results.trial_table import Row

STATES = ("complete", "stopped", "failed", "waiting")


@dataclass(frozen=True)
class Measured:
    """What a trial has come to by one goal.

    Attributes:
        values: One for each seed, in the order of the sweep's.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds, n - 1; None of a single one."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class TrialResult:
    """A trial with its runs.

    Attributes:
        number: From 0.
        point: Its values.
        derived: What follows from them.
        state: One of STATES.
        reason: Why it was stopped or failed, in one line.
        seeds: Of its runs; none where the settings are impossible.
        runs: Their directories, relative to the sweep's.
        reached: Rounds that each of its runs has come to.
        rounds: Rounds of a whole run.
        bytes: That crossed clients' boundaries, mean over seeds.
        seconds: That rounds took, by run.
        measured: What it has come to by the goals' names; of a complete trial alone.
    """

    number: int
    point: Point
    derived: Point
    state: str
    reason: str
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    reached: int
    rounds: int | None
    bytes: float
    seconds: Mapping[str, float]
    measured: Mapping[str, Measured]

    @property
    def label(self) -> str:
        """Its point in words."""
        return named(self.point)

    def value(self, name: str) -> Value:
        """Give the value of a parameter; a `KeyError` where the trial does not have it."""
        return self.point[name] if name in self.point else self.derived[name]

    def has(self, name: str) -> bool:
        """Whether the trial has a parameter."""
        return name in self.point or name in self.derived


def results_of(sweep: Sweep, rows: Iterable[Row]) -> tuple[TrialResult, ...]:
    """Collect the rows of each trial, in the order of their numbers."""
    by_trial: dict[int, list[Row]] = {}
    for row in rows:
        by_trial.setdefault(row["trial"], []).append(row)
    return tuple(_result(sweep, by_trial[number]) for number in sorted(by_trial))


def _result(sweep: Sweep, rows: Sequence[Row]) -> TrialResult:
    first, runs = rows[0], [row for row in rows if row["run"] is not None]
    values = {name: json.loads(text) for name in sweep.space.names if (text := first.get(f"param.{name}")) is not None}
    chosen = {one.name for one in sweep.space.free}
    return TrialResult(
        number=first["trial"],
        point={name: value for name, value in values.items() if name in chosen},
        derived={name: value for name, value in values.items() if name not in chosen},
        state=first["state"],
        reason=first["reason"] or "",
        seeds=tuple(row["seed"] for row in runs),
        runs=tuple(row["run"] for row in runs),
        reached=min((row["round"] for row in runs), default=0),
        rounds=runs[0]["rounds"] if runs else None,
        bytes=fmean(row["bytes"] for row in runs) if runs else 0.0,
        seconds={row["run"]: row["seconds"] for row in runs},
        measured=_measured(sweep.goals, runs) if first["state"] == "complete" else {},
    )


def _measured(goals: Sequence[Goal], runs: Sequence[Row]) -> dict[str, Measured]:
    found = {}
    for goal in goals:
        values = [row.get(goal.score if goal.score in BYTES else f"score.{goal.score}") for row in runs]
        numbers = tuple(float(value) for value in values if value is not None and math.isfinite(value))
        if numbers and len(numbers) == len(values):
            found[goal.score] = Measured(numbers)
    return found


def best_of(trials: Iterable[TrialResult], goal: Goal) -> TrialResult | None:
    """Find the best complete trial by a goal; of equal ones the first."""
    scored = [trial for trial in trials if goal.score in trial.measured]
    return min(scored, key=lambda trial: (cost(trial, goal), trial.number), default=None)


def cost(trial: TrialResult, goal: Goal) -> float:
    """Write a trial's value so that less is better."""
    return goal.cost(trial.measured[goal.score].mean)


def front_of(trials: Iterable[TrialResult], goals: Sequence[Goal]) -> tuple[TrialResult, ...]:
    """Find the trials that no other beats in all goals, the best by the first goal first; of equal ones the first stays."""
    scored = [trial for trial in trials if all(goal.score in trial.measured for goal in goals)]
    costs = {trial.number: tuple(cost(trial, goal) for goal in goals) for trial in scored}

    def is_beaten(trial: TrialResult) -> bool:
        own = costs[trial.number]
        return any(
            all(theirs <= mine for theirs, mine in zip(costs[other.number], own, strict=True))
            and (costs[other.number] != own or other.number < trial.number)
            for other in scored
            if other is not trial
        )

    return tuple(
        sorted((trial for trial in scored if not is_beaten(trial)), key=lambda one: (costs[one.number], one.number))
    )


def number_of(sweep: Sweep) -> int:
    """Count the trials that a sweep comes to."""
    if sweep.search == "grid":
        return len(sweep.space.grid())
    assert sweep.trials is not None, "sweep files are checked"
    return sweep.trials


def unit_of(score: str) -> str:
    """Name a score's unit: "bytes", "percent" of a score in [0, 1], or "" for a diagnostic."""
    if score in BYTES:
        return "bytes"
    return "" if score.startswith("diag_") else "percent"


def heading(score: str) -> str:
    """Name a score with its unit, for the head of a table or an axis."""
    return f"{score} (%)" if unit_of(score) == "percent" else score


def described(measured: Measured, score: str, sign: str = "") -> str:
    """Write mean ± standard deviation for people: "71.20 ± 0.31", "1.23 MB".

    Args:
        measured: What was measured.
        score: By which score.
        sign: What stands behind a percentage.
    """
    mean, std, unit = measured.mean, measured.std, unit_of(score)
    if unit == "bytes":
        return _bytes(mean, std)
    scale, precise = (100, ".2f") if unit == "percent" else (1, ".4g")
    spread = "" if std is None else f" ± {format(scale * std, precise if scale == 100 else '.2g')}"
    return f"{format(scale * mean, precise)}{spread}{sign * (unit == 'percent')}"


def _bytes(mean: float, std: float | None) -> str:
    factor, unit = next(((f, u) for f, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if mean >= f), (1.0, "B"))
    digits = 0 if unit == "B" else 2
    spread = f" ± {std / factor:.{digits}f}" if std else ""  # equal runs of several seeds send the same number of bytes
    return f"{mean / factor:.{digits}f}{spread} {unit}"


def label(value: Value) -> str:
    """Write a parameter's value for people."""
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def named(point: Point) -> str:
    """Write a point for people: "rounds=4, system=FLESD"."""
    return ", ".join(f"{name}={label(value)}" for name, value in point.items())


def worded(trial: TrialResult, goals: Sequence[Goal]) -> str:
    """Write what a trial has come to: "linear 71.20 ± 0.31%, bytes 1.23 MB"."""
    measured: list[tuple[str, Any]] = [(g.score, trial.measured[g.score]) for g in goals if g.score in trial.measured]
    return ", ".join(f"{score} {described(found, score, '%')}" for score, found in measured)
