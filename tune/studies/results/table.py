"""A sweep's results in the layout of a paper's table: which trial a cell shows, and how it is written.

Where more is varied than rows and columns show, a cell is the best trial over the others. Where a parameter runs over
a range, no two trials share a row, and the table is the list of the best trials instead.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tune.studies.definition.search_plan import Goal
from tune.studies.definition.space import Choice, Range, Variants, point_text, value_text
from tune.studies.definition.study import Study
from tune.studies.execution.trial_table import unit_of
from tune.studies.results.results import ScoreResult, TableCell, TableLine, TableResult, TrialResult
from tune.studies.results.trial_results import cost, heading

NO_TRIAL = "–"
"""The text of a cell without a trial."""

MAX_RANKED = 20
"""Trials in the list of the best."""

Key = str | None
"""A parameter's value as JSON; None where a trial does not have the parameter."""


@dataclass(frozen=True)
class Entry:
    """A trial as a place in a table or a figure shows it."""

    trial: TrialResult
    value: ScoreResult | None

    def cost(self, goal: Goal) -> tuple[float, int]:
        """Write its value so that less is better, and of equal ones the first trial is least."""
        assert self.value is not None
        return goal.cost(self.value.mean), self.trial.number


def title_of(goal: Goal) -> str:
    """Title a table of one goal."""
    return f"{heading(goal.score)}, {'more' if goal.maximize else 'less'} is better"


def markdown_lines(table: TableResult) -> list[str]:
    """Write a table as lines of Markdown, the best cell of each column bold."""
    rows = [
        [line.label, *(f"**{cell.text}**" if cell.best else cell.text for cell in line.cells)] for line in table.lines
    ]
    return [_row(table.head), "|---" * len(table.head) + "|", *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_of(study: Study, trials: Sequence[TrialResult], goal: Goal) -> TableResult:
    """Lay out the results by one goal."""
    row_name, column_name = study.table_rows, study.table_columns
    if any(name is not None and is_continuous(study, name) for name in (row_name, column_name)):
        return _ranking(study, trials, goal)
    places = places_of(study, trials, goal, (row_name, column_name))
    rows, columns = (keys_of(study, trials, name) for name in (row_name, column_name))
    best = {
        column: _best_place({(row, column): places.get((row, column), []) for row in rows}, goal) for column in columns
    }
    lines = [
        TableLine(
            label=_label(row_name, row),
            cells=[_cell(places.get((row, column), []), goal, (row, column) == best[column]) for column in columns],
        )
        for row in rows
    ]
    heads = [heading(goal.score) if column_name is None else _head(column_name, key) for key in columns]
    remarks = _chosen_parameters(study, places, goal)
    return TableResult(
        goal=goal.score, title=title_of(goal), head=[row_name or "", *heads], lines=lines, remarks=remarks
    )


def is_continuous(study: Study, name: str) -> bool:
    """Whether a parameter runs over a range."""
    return isinstance(study.space.parameters.get(name), Range)


def places_of(
    study: Study, trials: Iterable[TrialResult], goal: Goal, names: Sequence[str | None]
) -> dict[tuple[Key, ...], list[Entry]]:
    """Sort trials by their values of some parameters; None stands for no parameter."""
    places: dict[tuple[Key, ...], list[Entry]] = {}
    for trial in trials:
        place = tuple(key_of(trial, name) for name in names)
        places.setdefault(place, []).append(Entry(trial, trial.values.get(goal.score)))
    return places


def key_of(trial: TrialResult, name: str | None) -> Key:
    """Give a parameter's value as JSON."""
    return None if name is None else json.dumps(trial.point[name])


def keys_of(study: Study, trials: Sequence[TrialResult], name: str | None) -> list[Key]:
    """List what stands along an axis: a parameter's values in the order of the file, or of their size."""
    if name is None:
        return [None]
    parameter = study.space.parameters[name]
    values = parameter.values if isinstance(parameter, Choice | Variants) else ()
    listed: list[Key] = [json.dumps(value) for value in values]
    others = sorted(
        {key for trial in trials if (key := key_of(trial, name)) is not None and key not in listed}, key=_size
    )
    return [*listed, *others]


def _size(key: str) -> tuple[bool, float, str]:
    value = json.loads(key)
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0.0, key


def best_entry(entries: Iterable[Entry], goal: Goal) -> Entry | None:
    """Find what a place shows; of equal ones the first trial."""
    scored = [entry for entry in entries if entry.value is not None]
    return min(scored, key=lambda entry: entry.cost(goal), default=None)


def _cell(entries: Sequence[Entry], goal: Goal, is_best: bool) -> TableCell:
    if not entries:
        return TableCell(text=NO_TRIAL)
    best = best_entry(entries, goal)
    if best is not None and best.value is not None:
        return _score_cell(best.trial.number, best.value, goal, is_best)
    states = {entry.trial.state: entry.trial.number for entry in reversed(entries)}
    state = next(state for state in ("waiting", "stopped", "failed", "complete") if state in states)
    return TableCell(text="no score" if state == "complete" else state, trial=states[state])


def _score_cell(trial: int, value: ScoreResult, goal: Goal, is_best: bool) -> TableCell:
    text = value.over_seeds().text(unit_of(goal.score), symbol=False)
    return TableCell(text=text, trial=trial, mean=value.mean, std=value.std, best=is_best)


def _best_place(places: Mapping[tuple[Key, Key], Sequence[Entry]], goal: Goal) -> tuple[Key, Key] | None:
    """Find a column's best cell, of equal ones that of the first trial."""
    scored = {place: best for place, entries in places.items() if (best := best_entry(entries, goal)) is not None}
    return min(scored, key=lambda place: scored[place].cost(goal), default=None)


def _label(name: str | None, key: Key) -> str:
    return "all" if name is None or key is None else value_text(json.loads(key))


def _head(name: str, key: Key) -> str:
    """Head a column by its value, with the parameter's name unless the value is a text."""
    value = json.loads(key or "null")
    return value if isinstance(value, str) else f"{name}={value_text(value)}"


def _chosen_parameters(study: Study, places: Mapping[tuple[Key, ...], Sequence[Entry]], goal: Goal) -> list[str]:
    """Say which parameters have been chosen per cell, and how."""
    shared = [entries for entries in places.values() if len({entry.trial.number for entry in entries}) > 1]
    others = [
        name
        for name in study.space.names
        if name not in (study.table_rows, study.table_columns)
        and any(len({key_of(entry.trial, name) for entry in entries}) > 1 for entries in shared)
    ]
    if not others:
        return []
    best = [entry for entries in shared if (entry := best_entry(entries, goal)) is not None]
    chosen = [_choice(entry.trial, others) for entry in best]
    which = f": {'; '.join(dict.fromkeys(chosen))}" if chosen else ""
    return [f"Each cell is the best by {goal.score} over {' and '.join(others)}{which}."]


def _choice(trial: TrialResult, others: Sequence[str]) -> str:
    chosen = {name: value for name, value in trial.point.items() if name in others}
    rest = {name: value for name, value in trial.point.items() if name not in others}
    return point_text(chosen) + (f" at {point_text(rest)}" if rest else "") + f" (trial {trial.number})"


def _ranking(study: Study, trials: Sequence[TrialResult], goal: Goal) -> TableResult:
    """List the best trials with their values."""
    scored = [trial for trial in trials if goal.score in trial.values]
    ranked = sorted(scored, key=lambda trial: (cost(trial, goal), trial.number))
    lines = []
    for place, trial in enumerate(ranked[:MAX_RANKED]):
        values = [TableCell(text=value_text(trial.point[name])) for name in study.space.names]
        score = _score_cell(trial.number, trial.values[goal.score], goal, place == 0)
        lines.append(TableLine(label=str(trial.number), cells=[*values, score]))
    remarks = [f"The {MAX_RANKED} best of {len(ranked)} complete trials."] * (len(ranked) > MAX_RANKED)
    head = ["trial", *study.space.names, heading(goal.score)]
    return TableResult(goal=goal.score, title=title_of(goal), head=head, lines=lines, remarks=remarks)
