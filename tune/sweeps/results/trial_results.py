"""The results of a sweep's trials, from `trials.parquet` alone: values and their spread, the best, the front."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rayfed_ssl.formats import MeanStd, Unit
from tune.sweeps.definition.schema import BYTES, Goal, Sweep
from tune.sweeps.definition.space import Point, point_text
from tune.sweeps.execution.directory import SweepDirectory
from tune.sweeps.execution.trial_table import Row, read_rows

STATES = ("complete", "stopped", "failed", "waiting")


@dataclass(frozen=True)
class Measured:
    """The values of a score, one for each seed in the order of the sweep's."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return MeanStd.of(self.values).mean

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds, n - 1; None of a single one."""
        return MeanStd.of(self.values).std

    def text(self, score: str, symbol: bool = False) -> str:
        """Write mean ± standard deviation for people: "71.20 ± 0.31", "1.23 MB"."""
        return MeanStd.of(self.values).text(unit_of(score), symbol=symbol)


@dataclass(frozen=True)
class TrialResult:
    """A trial with its runs.

    Attributes:
        number: From 0.
        point: Its values.
        state: One of STATES.
        reason: Why it was stopped or failed, in one line.
        seeds: Of its runs; none where the settings are impossible.
        runs: Their directories, relative to the sweep's.
        reached: Rounds that each of its runs has reached.
        rounds: Rounds of a whole run.
        bytes: That crossed clients' boundaries, mean over seeds.
        seconds: That rounds took, by run.
        measured: Its values by the goals' names; of a complete trial alone.
    """

    number: int
    point: Point
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
        """Its point for people."""
        return point_text(self.point)

    def scores_text(self, goals: Sequence[Goal]) -> str:
        """Write its values: "linear 71.20 ± 0.31%, bytes 1.23 MB"."""
        scores = [goal.score for goal in goals if goal.score in self.measured]
        return ", ".join(f"{score} {self.measured[score].text(score, symbol=True)}" for score in scores)


def read_results(directory: SweepDirectory, sweep: Sweep) -> tuple[TrialResult, ...]:
    """Read the trials that a sweep has so far.

    Raises:
        ConfigError: Its table is damaged.
    """
    table = directory.path / "trials.parquet"
    return results_of(sweep, read_rows(table) if table.is_file() else [])


def results_of(sweep: Sweep, rows: Iterable[Row]) -> tuple[TrialResult, ...]:
    """Collect the rows of each trial, in the order of their numbers."""
    by_trial: dict[int, list[Row]] = {}
    for row in rows:
        by_trial.setdefault(row["trial"], []).append(row)
    return tuple(_result(sweep, by_trial[number]) for number in sorted(by_trial))


def _result(sweep: Sweep, rows: Sequence[Row]) -> TrialResult:
    first, runs = rows[0], [row for row in rows if row["run"] is not None]
    return TrialResult(
        number=first["trial"],
        point={name: json.loads(first[f"param.{name}"]) for name in sweep.space.names},
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
    measured = {}
    for goal in goals:
        values = [row.get(goal.score if goal.score in BYTES else f"score.{goal.score}") for row in runs]
        finite = tuple(float(value) for value in values if value is not None and math.isfinite(value))
        if finite and len(finite) == len(values):
            measured[goal.score] = Measured(finite)
    return measured


def best_of(trials: Iterable[TrialResult], goals: Sequence[Goal]) -> TrialResult | None:
    """Find the best complete trial by the first goal; of equal ones the first."""
    if not goals:
        return None
    scored = [trial for trial in trials if goals[0].score in trial.measured]
    return min(scored, key=lambda trial: (cost(trial, goals[0]), trial.number), default=None)


def cost(trial: TrialResult, goal: Goal) -> float:
    """Write a trial's value so that less is better."""
    return goal.cost(trial.measured[goal.score].mean)


def front_of(trials: Iterable[TrialResult], goals: Sequence[Goal]) -> tuple[TrialResult, ...]:
    """Find the Pareto front, the best by the first goal first; of equal trials the first stays."""
    scored = [trial for trial in trials if all(goal.score in trial.measured for goal in goals)]
    costs = {trial.number: tuple(cost(trial, goal) for goal in goals) for trial in scored}

    def is_dominated(trial: TrialResult) -> bool:
        own = costs[trial.number]
        return any(
            all(a <= b for a, b in zip(costs[other.number], own, strict=True))
            and (costs[other.number] != own or other.number < trial.number)
            for other in scored
            if other is not trial
        )

    front = (trial for trial in scored if not is_dominated(trial))
    return tuple(sorted(front, key=lambda trial: (costs[trial.number], trial.number)))


def unit_of(score: str) -> Unit:
    """Name a score's unit: "bytes", "percent" of a score in [0, 1], or "" for a diagnostic."""
    if score in BYTES:
        return "bytes"
    return "" if score.startswith("diag_") else "percent"


def heading(score: str) -> str:
    """Name a score with its unit, for the head of a table or an axis."""
    return f"{score} (%)" if unit_of(score) == "percent" else score
