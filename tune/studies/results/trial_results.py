"""The results of a study's trials, from the records of their runs: values and their spread, the best, the front."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from statistics import fmean

from rayfed_ssl.formats import DECISIVE, standard_error
from tune.studies.definition.schema import BYTES, TARGET, Goal
from tune.studies.definition.study import Study
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.scores import TrialRows
from tune.studies.execution.trial_table import Row, unit_of
from tune.studies.results.results import ScoreResult, TrialResult


def scores_text(trial: TrialResult) -> str:
    """Write a trial's values: "linear 71.20 ± 0.31%, bytes 1.23 MB"."""
    return ", ".join(f"{score} {value.over_seeds().text(unit_of(score))}" for score, value in trial.values.items())


def read_results(directory: StudyDirectory) -> tuple[TrialResult, ...]:
    """Read the trials that a study has so far from its runs' records."""
    study = directory.study
    return results_of(study, TrialRows(directory.runs).of(study, directory.record.trials))


def results_of(study: Study, rows: Iterable[Row]) -> tuple[TrialResult, ...]:
    """Collect the rows of each trial, which stand beside each other."""
    return tuple(_result(study, list(trial)) for _, trial in groupby(rows, key=itemgetter("trial")))


def _result(study: Study, rows: Sequence[Row]) -> TrialResult:
    first, runs = rows[0], [row for row in rows if row["run"] is not None]
    point, reason = first["point"], first["reason"]
    cell = study.cell(point)
    if cell.score is not None:  # a cell shows what those of its runs have come to that have ended
        ended, scores = [row for row in runs if first["state"] != "waiting" and row["finished"]], [cell.score]
    else:
        ended, scores = (runs if first["state"] == "complete" else []), [goal.score for goal in study.goals]
        if study.kind == "benchmark":
            scores = [name.removeprefix("score.") for name in first if name.startswith("score.")]
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
        digests=[row["state_sha256"] for row in runs],
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
