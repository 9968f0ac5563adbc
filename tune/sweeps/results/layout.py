"""A sweep's results in the layout of a paper's table: which trial a cell shows, and how it is written.

Where more is varied than rows and columns show, a cell is the best trial over the rest. Where a parameter runs over a range,
no two trials share a row, and the table is the list of the best trials instead.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tune.sweeps.definition.spaces import Choice, Range, Value
from tune.sweeps.definition.sweep import Goal, Sweep
from tune.sweeps.results.trial_results import Measured, TrialResult, described, heading, label, named

SEED = "seed"
"""What a layout calls the seeds, which are no parameter."""

NOTHING = "–"
"""What a cell says for which there is no trial."""

LISTED = 20
"""Trials in the list of the best."""

Key = str | None
"""A parameter's value as JSON; None where a trial does not have the parameter."""


@dataclass(frozen=True)
class Entry:
    """A trial, or one of its seeds, as a place in a table or a figure shows it."""

    trial: TrialResult
    measured: Measured | None

    def cost(self, goal: Goal) -> tuple[float, int]:
        """Write its value so that less is better, and of equal ones the first trial is least."""
        assert self.measured is not None
        return goal.cost(self.measured.mean), self.trial.number


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
        text: What it says.
        trial: Number of the trial that it shows.
        measured: What that has come to.
        is_best: Whether no cell of its column is better.
    """

    text: str
    trial: int | None = None
    measured: Measured | None = None
    is_best: bool = False

    def plain(self) -> dict[str, Any]:
        """The cell as JSON."""
        mean, std = (None, None) if self.measured is None else (self.measured.mean, self.measured.std)
        return {"text": self.text, "trial": self.trial, "mean": mean, "std": std, "best": self.is_best}


@dataclass(frozen=True)
class Table:
    """A table of one goal.

    Attributes:
        goal: Which.
        head: Headings.
        lines: A label and cells each.
        remarks: What a reader has to know, a line each.
    """

    goal: Goal
    head: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{heading(self.goal.score)}, {'more' if self.goal.maximize else 'less'} is better"

    def plain(self) -> dict[str, Any]:
        """The table as JSON."""
        lines = [{"label": name, "cells": [cell.plain() for cell in cells]} for name, cells in self.lines]
        remarks = list(self.remarks)
        return {
            "goal": self.goal.score,
            "title": self.title,
            "head": list(self.head),
            "lines": lines,
            "remarks": remarks,
        }

    def text(self) -> list[list[str]]:
        """The lines as text."""
        return [[name, *(cell.text for cell in cells)] for name, cells in self.lines]

    def markdown(self) -> list[str]:
        """The table as lines of Markdown, the best cell of each column bold."""
        lines = [
            [name, *(f"**{cell.text}**" if cell.is_best else cell.text for cell in cells)] for name, cells in self.lines
        ]
        return [_row(self.head), "|---" * len(self.head) + "|", *map(_row, lines)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_of(sweep: Sweep, trials: Sequence[TrialResult], goal: Goal) -> Table:
    """Lay out the results by one goal."""
    layout = sweep.layout
    shown = [name for name in (layout.rows, layout.columns) if name is not None]
    if any(is_continuous(sweep, name) for name in shown):
        return _ranking(sweep, trials, goal)
    places = places_of(sweep, trials, goal, (layout.rows, layout.columns))
    rows, columns = (keys_of(sweep, trials, name) for name in (layout.rows, layout.columns))
    cells = {place: _cell(entries, goal) for place, entries in places.items()}
    best = {
        column: _best({row: cells[row, column] for row in rows if (row, column) in cells}, goal) for column in columns
    }
    lines = tuple(
        (
            _label(layout.rows, row),
            tuple(
                replace(cells[row, column], is_best=(row,) == best[column]) if (row, column) in cells else Cell(NOTHING)
                for column in columns
            ),
        )
        for row in rows
    )
    heads = [heading(goal.score) if layout.columns is None else _head(layout.columns, key) for key in columns]
    return Table(goal, (layout.rows or "", *heads), lines, tuple(_over_others(sweep, places, goal)))


def is_continuous(sweep: Sweep, name: str) -> bool:
    """Whether a parameter runs over a range, or follows from others of which one does."""
    ranges = {one.name for one in sweep.space.free if isinstance(one, Range)}
    chosen = {one.name for one in sweep.space.free}
    return name in ranges or (name in sweep.space.names and name not in chosen and bool(ranges))


def places_of(
    sweep: Sweep, trials: Iterable[TrialResult], goal: Goal, names: Sequence[str | None]
) -> dict[tuple[Key, ...], list[Entry]]:
    """Sort trials by their values of some parameters; None stands for no parameter."""
    found: dict[tuple[Key, ...], list[Entry]] = {}
    for trial in trials:
        measured = trial.measured.get(goal.score)
        if SEED not in names:
            place = tuple(key_of(trial, name) for name in names)
            found.setdefault(place, []).append(Entry(trial, measured))
            continue
        for index, seed in enumerate(sweep.seeds):
            place = tuple(str(seed) if name == SEED else key_of(trial, name) for name in names)
            own = None if measured is None else Measured((measured.values[index],))
            found.setdefault(place, []).append(Entry(trial, own))
    return found


def key_of(trial: TrialResult, name: str | None) -> Key:
    """Give a parameter's value as JSON."""
    return json.dumps(trial.value(name)) if name is not None and trial.has(name) else None


def keys_of(sweep: Sweep, trials: Sequence[TrialResult], name: str | None) -> list[Key]:
    """List what stands along an axis: a parameter's values in the order of the file, or of their size."""
    if name is None:
        return [None]
    if name == SEED:
        return [str(seed) for seed in sweep.seeds]
    there = [key_of(trial, name) for trial in trials]
    known = next((one.values for one in sweep.space.free if one.name == name and isinstance(one, Choice)), ())
    listed: list[Key] = [json.dumps(value) for value in known]
    others = sorted({key for key in there if key is not None and key not in listed}, key=_size)
    return [*listed, *others, *([None] if None in there else [])]


def _size(key: str) -> tuple[bool, float, str]:
    value = json.loads(key)
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0.0, key


def best_entry(entries: Iterable[Entry], goal: Goal) -> Entry | None:
    """Find what a place shows; of equal ones the first trial."""
    scored = [entry for entry in entries if entry.measured is not None]
    return min(scored, key=lambda entry: entry.cost(goal), default=None)


def _cell(entries: Sequence[Entry], goal: Goal) -> Cell:
    best = best_entry(entries, goal)
    if best is not None and best.measured is not None:
        return Cell(described(best.measured, goal.score), best.trial.number, best.measured)
    states = {entry.trial.state: entry.trial.number for entry in reversed(entries)}
    state = next(state for state in ("waiting", "stopped", "failed", "complete") if state in states)
    return Cell("no score" if state == "complete" else state, states[state])


def _best(cells: Mapping[Key, Cell], goal: Goal) -> tuple[Key] | None:
    """Find the row of a column's best cell, of equal ones that of the first trial; a row may be called None."""
    scored = [
        (goal.cost(cell.measured.mean), cell.trial, row)
        for row, cell in cells.items()
        if cell.measured is not None and cell.trial is not None
    ]
    return (min(scored, key=lambda one: one[:2])[2],) if scored else None


def _label(name: str | None, key: Key) -> str:
    if name is None:
        return "all"
    return NOTHING if key is None else label(json.loads(key))


def _head(name: str, key: Key) -> str:
    """Head a column by its value, with the parameter's name unless the value is a word."""
    value: Value = None if key is None else json.loads(key)
    if key is None:
        return f"no {name}"
    return value if isinstance(value, str) else f"{name}={label(value)}"


def _over_others(sweep: Sweep, places: Mapping[tuple[Key, ...], Sequence[Entry]], goal: Goal) -> list[str]:
    """Say which parameters have been chosen per cell, and how."""
    shared = [entries for entries in places.values() if len({entry.trial.number for entry in entries}) > 1]
    shown = (sweep.layout.rows, sweep.layout.columns)
    others = [
        one.name
        for one in sweep.space.free
        if one.name not in shown and any(len({key_of(entry.trial, one.name) for entry in e}) > 1 for e in shared)
    ]
    if not others:
        return []
    found = [best for entries in shared if (best := best_entry(entries, goal)) is not None]
    chosen = [_choice(entry.trial, others) for entry in found]
    which = f": {'; '.join(dict.fromkeys(chosen))}" if chosen else ""
    return [f"Each cell is the best by {goal.score} over {' and '.join(others)}{which}."]


def _choice(trial: TrialResult, others: Sequence[str]) -> str:
    own = {name: value for name, value in trial.point.items() if name in others}
    rest = {name: value for name, value in trial.point.items() if name not in others}
    return f"{named(own) or 'none'}" + (f" at {named(rest)}" if rest else "") + f" (trial {trial.number})"


def _ranking(sweep: Sweep, trials: Sequence[TrialResult], goal: Goal) -> Table:
    """List the best trials with their values."""
    names = [one.name for one in sweep.space.free]
    entries = [Entry(trial, trial.measured[goal.score]) for trial in trials if goal.score in trial.measured]
    ranked = sorted(entries, key=lambda entry: entry.cost(goal))[:LISTED]
    lines = []
    for place, entry in enumerate(ranked):
        values = (Cell(label(entry.trial.point[name]) if name in entry.trial.point else NOTHING) for name in names)
        assert entry.measured is not None
        shown = Cell(described(entry.measured, goal.score), entry.trial.number, entry.measured, place == 0)
        lines.append((str(entry.trial.number), (*values, shown)))
    remark = [f"The {LISTED} best of {len(entries)} complete trials."] * (len(entries) > LISTED)
    return Table(goal, ("trial", *names, heading(goal.score)), tuple(lines), tuple(remark))
