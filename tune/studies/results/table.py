"""A study's results in the layout of a paper's table: which trial a cell shows, and how it is written.

Where more is varied than rows and columns show, a cell is the best trial over the others. Where a parameter runs over
a range, no two trials share a row, and the table is the list of the best trials instead.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from rayfed_ssl.formats import value_text
from rayfed_ssl.reports.table import MISSING, Cell, Table
from tune.studies.definition.schema import TARGET, Goal
from tune.studies.definition.space import Range, point_text
from tune.studies.definition.study import Study
from tune.studies.execution.trial_table import unit_of
from tune.studies.results.results import TrialResult
from tune.studies.results.trial_results import best_of, cost, heading

MAX_RANKED = 20
"""Trials in the list of the best."""

Key = str | None
"""A parameter's value as JSON; None where a trial does not have the parameter."""


def title_of(goal: Goal) -> str:
    """Title a table of one goal."""
    return f"{heading(goal.score)}, {'more' if goal.maximize else 'less'} is better"


def table_of(study: Study, trials: Sequence[TrialResult], goal: Goal) -> Table:
    """Lay out the results by one goal."""
    row_name, column_name = study.table_axes
    if any(name is not None and is_continuous(study, name) for name in study.table_axes):
        return _ranking(study, trials, goal)
    places = places_of(trials, study.table_axes)
    rows, columns = (keys_of(study, trials, name) for name in (row_name, column_name))
    best = {
        column: best_of([trial for trial in trials if key_of(trial, column_name) == column], [goal])
        for column in columns
    }
    lines = [
        [
            "all" if row_name is None or row is None else value_text(json.loads(row), short=True),
            *(_cell(places.get((row, column), []), goal, best[column]) for column in columns),
        ]
        for row in rows
    ]
    heads = [heading(goal.score) if column_name is None else _head(column_name, key) for key in columns]
    remarks = _chosen_parameters(study, places, goal)
    return Table.of(title_of(goal), [row_name or "", *heads], lines, goal=goal.score, remarks=remarks)


def is_continuous(study: Study, name: str) -> bool:
    """Whether a parameter runs over a range."""
    return isinstance(study.space.parameters.get(name), Range)


def places_of(trials: Iterable[TrialResult], names: Sequence[str | None]) -> dict[tuple[Key, ...], list[TrialResult]]:
    """Sort trials by their values of some parameters; None stands for no parameter."""
    places: dict[tuple[Key, ...], list[TrialResult]] = {}
    for trial in trials:
        places.setdefault(tuple(key_of(trial, name) for name in names), []).append(trial)
    return places


def key_of(trial: TrialResult, name: str | None) -> Key:
    """Give a parameter's value as JSON."""
    return None if name is None else json.dumps(trial.point[name])


def keys_of(study: Study, trials: Sequence[TrialResult], name: str | None) -> list[Key]:
    """List what stands along an axis: a parameter's values in the order of the file, those of a range by size."""
    if name is None:
        return [None]
    parameter = study.space.parameters[name]
    if isinstance(parameter, Range):
        return [json.dumps(value) for value in sorted({trial.point[name] for trial in trials})]
    return [json.dumps(value) for value in parameter.values]


def _cell(trials: Sequence[TrialResult], goal: Goal, best_of_column: TrialResult | None) -> Cell:
    if (best := best_of(trials, [goal])) is not None:
        value = best.values[goal.score].over_seeds()
        text = value.text(unit_of(goal.score), symbol=False)
        return Cell(text=text, mean=value.mean, best=best is best_of_column)
    states = {trial.state for trial in trials}
    state = next((state for state in ("waiting", "stopped", "failed", "complete") if state in states), MISSING)
    missing = "not reached" if TARGET.fullmatch(goal.score) else "no score"
    return Cell(text=missing if state == "complete" else state)


def _head(name: str, key: Key) -> str:
    """Head a column by its value, with the parameter's name unless the value is a text."""
    value = json.loads(key or "null")
    return value if isinstance(value, str) else f"{name}={value_text(value, short=True)}"


def _chosen_parameters(study: Study, places: Mapping[tuple[Key, ...], Sequence[TrialResult]], goal: Goal) -> list[str]:
    """Say which parameters have been chosen per cell, and how."""
    shared = [trials for trials in places.values() if len(trials) > 1]
    others = [
        name
        for name in study.space.names
        if name not in study.table_axes and any(len({key_of(trial, name) for trial in trials}) > 1 for trials in shared)
    ]
    if not others:
        return []
    chosen = [_choice(best, others) for trials in shared if (best := best_of(trials, [goal])) is not None]
    which = f": {'; '.join(chosen)}" if chosen else ""
    return [f"Each cell is the best by {goal.score} over {' and '.join(others)}{which}."]


def _choice(trial: TrialResult, others: Sequence[str]) -> str:
    chosen = {name: value for name, value in trial.point.items() if name in others}
    rest = {name: value for name, value in trial.point.items() if name not in others}
    return point_text(chosen) + (f" at {point_text(rest)}" if rest else "") + f" (trial {trial.number})"


def _ranking(study: Study, trials: Sequence[TrialResult], goal: Goal) -> Table:
    """List the best trials."""
    scored = [trial for trial in trials if goal.score in trial.values]
    ranked = sorted(scored, key=lambda trial: (cost(trial, goal), trial.number))
    remarks = [f"The {MAX_RANKED} best of {len(ranked)} complete trials."] * (len(ranked) > MAX_RANKED)
    table = trials_table(title_of(goal), study, ranked[:MAX_RANKED])
    return table.model_copy(update={"goal": goal.score, "remarks": remarks})


def trials_table(title: str, study: Study, trials: Sequence[TrialResult]) -> Table:
    """List trials with all that they have come to."""
    lines = []
    for trial in trials:
        reached = Cell(text=f"{trial.reached} of {trial.rounds}", mean=trial.reached)
        cells: list[object] = [f"{trial.number}: {trial.label}", trial.state, reached]
        for goal in study.goals:
            value = trial.mean(goal.score)
            missing = "not reached" if trial.state == "complete" and TARGET.fullmatch(goal.score) else "-"
            cells.append(missing if value is None else Cell.of(value, unit_of(goal.score)))
        lines.append([*cells, Cell.of(trial.bytes, "bytes"), trial.reason])
    head = ["trial", "state", "rounds", *(goal.score for goal in study.goals), "bytes a run", "why"]
    return Table.of(title, head, lines)
