"""The results of a study's trials, from `trials.parquet` alone: values and their spread, the best, the front."""

import json
import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.formats import DECISIVE, standard_error
from tune.studies.definition.schema import BYTES, TARGET, Goal
from tune.studies.definition.study import Study
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.trial_table import Row, read_rows, unit_of
from tune.studies.results.results import ScoreResult, TrialResult


def scores_text(trial: TrialResult) -> str:
    """Write a trial's values: "linear 71.20 ± 0.31%, bytes 1.23 MB"."""
    return ", ".join(f"{score} {value.over_seeds().text(unit_of(score))}" for score, value in trial.values.items())


def read_results(directory: StudyDirectory, study: Study) -> tuple[TrialResult, ...]:
    """Read the trials that a study has so far."""
    table = directory.path / "trials.parquet"
    try:
        return results_of(study, read_rows(table, study.num_trials * len(study.seeds)) if table.is_file() else [])
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{table} is no table of this study: resume the study, which writes it anew") from None


def results_of(study: Study, rows: Iterable[Row]) -> tuple[TrialResult, ...]:
    """Collect the rows of each trial, in the order of their numbers."""
    by_trial: dict[int, list[Row]] = {}
    for row in rows:
        by_trial.setdefault(row["trial"], []).append(row)
    return tuple(_result(study, by_trial[number]) for number in sorted(by_trial))


def _result(study: Study, rows: Sequence[Row]) -> TrialResult:
    first, runs = rows[0], [row for row in rows if row["run"] is not None]
    point = {name: json.loads(first[f"param.{name}"]) for name in study.space.names}
    cell, reason = study.cell(point), first["reason"] or ""
    if cell.score is None:
        ended, scores = (runs if first["state"] == "complete" else []), [goal.score for goal in study.goals]
    else:  # a cell shows what those of its runs have come to that have ended
        shown = first["state"] in ("complete", "failed")
        ended, scores = [row for row in runs if shown and row["round"] == row["rounds"]], [cell.score]
    values = {}
    for score in scores:
        each = {row["run"]: row.get(score if score in BYTES else f"score.{score}") for row in ended}
        finite = [float(value) for value in each.values() if value is not None and math.isfinite(value)]
        some = cell.score is not None and not TARGET.fullmatch(score)  # a mean of those that came to a target flatters
        if finite and (some or len(finite) == len(ended)):
            values[score] = ScoreResult.of(finite)
        if cell.score is not None and (missing := [run for run, value in each.items() if value is None]):
            of = f" of {cell.take}" if cell.take else ""
            reason = reason or f"{missing[0].rpartition('/')[2]} has no score {score!r}{of}"
    return TrialResult(
        number=first["trial"],
        label=study.label(point),
        point=point,
        state=first["state"],
        reason=reason,
        seeds=[row["seed"] for row in runs],
        runs=[row["run"] for row in runs],
        reached=min((row["round"] for row in runs), default=0),
        rounds=runs[0]["rounds"] if runs else None,
        bytes=fmean(row["bytes"] for row in runs) if runs else 0.0,
        seconds=fmean(row["seconds"] for row in runs) if runs else 0.0,
        samples=min((row["samples"] for row in runs), default=0),
        values=values,
        score=cell.score,
        take=cell.take,
    )


def best_of(trials: Iterable[TrialResult], goals: Sequence[Goal]) -> TrialResult | None:
    """Find the best complete trial by the first goal; of equal ones the first."""
    scored = [trial for trial in trials if goals and goals[0].score in trial.values]
    return min(scored, key=lambda trial: (cost(trial, goals[0]), trial.number), default=None)


def cost(trial: TrialResult, goal: Goal) -> float:
    """Write a trial's value so that less is better."""
    mean = trial.values[goal.score].mean
    return -mean if goal.maximize else mean


def error_of(first: TrialResult, second: TrialResult, score: str) -> float:
    """Standard error of the difference of two trials' accuracies; 0 of other scores, and of other data's (`transfer`)."""
    if unit_of(score) != "percent" or score.startswith("transfer"):
        return 0.0
    means = first.values[score].mean, second.values[score].mean
    return standard_error(*means, min(first.samples, second.samples))


def is_better(first: TrialResult, second: TrialResult, goal: Goal) -> bool:
    """Whether a trial is better than another by more than two standard errors."""
    return cost(second, goal) - cost(first, goal) > DECISIVE * error_of(first, second, goal.score)


def front_of(trials: Iterable[TrialResult], goals: Sequence[Goal]) -> tuple[TrialResult, ...]:
    """Find the Pareto front of several goals, the best by the first goal first; of equal trials the first stays."""
    if len(goals) < 2:
        return ()
    scored = [trial for trial in trials if all(goal.score in trial.values for goal in goals)]
    costs = {trial.number: tuple(cost(trial, goal) for goal in goals) for trial in scored}
    front: list[TrialResult] = []
    for trial in sorted(scored, key=lambda trial: (costs[trial.number], trial.number)):
        ends = [costs[other.number] for other in front]
        if not any(all(a <= b for a, b in zip(end, costs[trial.number], strict=True)) for end in ends):
            front.append(trial)
    return tuple(front)


def heading(score: str) -> str:
    """Name a score with its unit, for the head of a table or an axis."""
    return f"{score} (%)" if unit_of(score) == "percent" else score
