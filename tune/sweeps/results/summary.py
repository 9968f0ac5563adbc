"""What a sweep has given: a table in the paper's layout, the best settings as a recipe, figures, and all of it as JSON.

`results.json`, beside `table.md`, `best.yaml` and `figures/`, has these keys:

    format     1
    name, title, source, notes    as in the sweep's file
    command    the command line that began it
    started, finished             when; `finished` is null where trials are missing
    goals      list of {score, maximize, unit}: unit is "percent" of a score in [0, 1], "bytes", or "" of a diagnostic
    take, selection, seeds        as in the sweep's file
    held_out   numbers of held-out training samples that scores are of, one for each dataset; empty if selection is test
    search     {name, settings, trials, generation, stop}: `trials` is how many the sweep comes to
    layout     {rows, columns, x, lines, panels}: parameters that table and figure show, or null
    states     state -> how many trials
    runs       how many runs there are; equal ones of several trials are one
    trials     list of {number, label, point, derived, state, reason, seeds, runs, reached, rounds, bytes, values}: `point`
               has the values that were chosen, `label` is the same in words, `derived` what follows; `runs` has a
               directory for each seed, relative to this file; `reached` the rounds that all of them have come to, of
               `rounds`; `bytes` is a mean over seeds; `values` maps a goal's score to {mean, std, each}, over and for each
               seed; std (n - 1) is null of one seed, and trials that are not complete have no values
    tables     one for each goal: {goal, title, head, lines, remarks}, a line being {label, cells} and a cell {text, trial,
               mean, std, best}: the trial that it shows, and whether no cell of its column is better
    best       {trial, point, values, recipe}, by the first goal; null where no trial is complete
    front      where there are several goals: numbers of the trials on the Pareto front, the best by the first goal first
    recipes    number of a trial on the front, as a string -> its recipe
    remarks    what a reader has to know, a line each
    figures    file names, PNG and SVG, relative to this file

Values are fractions and bytes; only texts are in percent.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from rayfed_ssl.storage.filesystem import write_atomically
from tune.sweeps.definition.sweep import Sweep
from tune.sweeps.execution.directory import SweepDirectory
from tune.sweeps.results.best_recipe import BEST, write_recipes
from tune.sweeps.results.layout import Table, table_of
from tune.sweeps.results.remarks import chosen_by, remarks_of
from tune.sweeps.results.run_facts import leaks_of, samples_of, summaries_of, versions_of
from tune.sweeps.results.trial_results import (
    STATES,
    TrialResult,
    best_of,
    front_of,
    named,
    number_of,
    results_of,
    unit_of,
    worded,
)
from tune.sweeps.results.trial_table import read_rows


@dataclass(frozen=True)
class SweepResult:
    """A sweep with what its trials have come to.

    Attributes:
        sweep: What was asked for.
        content: sweep.json.
        trials: By number.
        held_out: Numbers of samples that scores are of, where they are not of the test set.
        told: How something may have been trained on them, and what else the runs' records warn of, a line each.
        recipes: File names by number of a trial on the front.
        figures: File names.
        undrawn: Which figures could not be drawn, and why, a line each.
    """

    sweep: Sweep
    content: Mapping[str, Any]
    trials: tuple[TrialResult, ...]
    held_out: tuple[int, ...] = ()
    told: tuple[str, ...] = ()
    recipes: Mapping[int, str] = field(default_factory=dict)
    figures: tuple[str, ...] = ()
    undrawn: tuple[str, ...] = ()

    @property
    def best(self) -> TrialResult | None:
        """The best complete trial by the first goal; of equal ones the first."""
        return best_of(self.trials, self.sweep.goals[0])

    @property
    def front(self) -> tuple[TrialResult, ...]:
        """The Pareto front of several goals, the best by the first goal first."""
        return front_of(self.trials, self.sweep.goals) if len(self.sweep.goals) > 1 else ()

    @property
    def failures(self) -> list[str]:
        """A line for each trial that failed."""
        return [f"trial {t.number} ({named(t.point)}): {t.reason}" for t in self.trials if t.state == "failed"]

    @property
    def tables(self) -> list[Table]:
        """A table for each goal."""
        return [table_of(self.sweep, self.trials, goal) for goal in self.sweep.goals]

    @property
    def remarks(self) -> list[str]:
        """What a reader of the tables has to know, a line each."""
        finished = self.content["finished"] is not None
        begun = [line] if (line := self.content.get("begun_from")) else []
        own = remarks_of(self.sweep, self.trials, self.held_out, finished)
        return [*own, *begun, *self.told, *self.undrawn]

    def plain(self) -> dict[str, Any]:
        """The whole as JSON, as the module's text describes it."""
        sweep, best = self.sweep, self.best
        stop = None if sweep.stop is None else vars(sweep.stop)
        return {
            "format": 1,
            **{key: getattr(sweep, key) for key in ("name", "title", "source")},
            "notes": list(sweep.notes),
            **{key: self.content.get(key) for key in ("command", "started", "finished")},
            "goals": [{**vars(goal), "unit": unit_of(goal.score)} for goal in sweep.goals],
            "take": sweep.take,
            "selection": sweep.selection,
            "held_out": list(self.held_out),
            "seeds": list(sweep.seeds),
            "search": {"name": sweep.search, "settings": dict(sweep.sampler), "trials": number_of(sweep)}
            | {"generation": sweep.generation if sweep.adapts else None, "stop": stop},
            "layout": vars(sweep.layout),
            "states": {state: sum(trial.state == state for trial in self.trials) for state in STATES},
            "runs": len({run for trial in self.trials for run in trial.runs}),
            "trials": [_plain(trial) for trial in self.trials],
            "tables": [table.plain() for table in self.tables],
            "best": None if best is None else _plain_best(best),
            "front": [trial.number for trial in self.front],
            "recipes": {str(number): name for number, name in self.recipes.items()},
            "remarks": self.remarks,
            "figures": list(self.figures),
        }

    def write(self, directory: Path) -> None:
        """Write `results.json` and `table.md`."""
        text = json.dumps(self.plain(), indent=1, default=str)
        write_atomically(directory / "results.json", (text + "\n").encode())
        write_atomically(directory / "table.md", self.markdown().encode())

    def markdown(self) -> str:
        """The tables as Markdown."""
        text = [f"# {self.sweep.title}", ""]
        text += [f"{self.sweep.source}.", ""] if self.sweep.source else []
        text += [f"    {self.content.get('command') or 'rayfed-ssl sweep'}", ""]
        for table in self.tables:
            text += [f"## {table.title}", "", *table.markdown(), "", *(f"- {line}" for line in table.remarks)]
            text += [""] * bool(table.remarks)
        if self.front:
            text += ["## Pareto front", "", *(f"- {line}" for line in self.front_lines()), ""]
        return "\n".join(
            [*text, *(f"- {line}" for line in self.remarks), *(f"- {line}" for line in self.sweep.notes), ""]
        )

    def front_lines(self) -> list[str]:
        """The Pareto front, a trial a line."""
        return [f"trial {one.number} ({named(one.point)}): {worded(one, self.sweep.goals)}" for one in self.front]


def _plain(trial: TrialResult) -> dict[str, Any]:
    same = ("number", "label", "point", "derived", "state", "reason", "seeds", "runs", "reached", "rounds", "bytes")
    return {key: getattr(trial, key) for key in same} | {"values": _values(trial)}


def _values(trial: TrialResult) -> dict[str, Any]:
    return {
        score: {"mean": found.mean, "std": found.std, "each": list(found.values)}
        for score, found in trial.measured.items()
    }


def _plain_best(trial: TrialResult) -> dict[str, Any]:
    return {"trial": trial.number, "point": trial.point, "values": _values(trial), "recipe": BEST}


def read_result(directory: SweepDirectory) -> SweepResult:
    """Read what a sweep has come to so far.

    Raises:
        ConfigError: Its table is damaged.
    """
    sweep, file = directory.sweep, directory.path / "trials.parquet"
    trials = results_of(sweep, read_rows(file) if file.is_file() else [])
    runs = summaries_of(directory.path, trials)
    told = versions_of(runs)
    if sweep.selection == "test":
        return SweepResult(sweep, directory.content, trials, told=tuple(told))
    return SweepResult(sweep, directory.content, trials, samples_of(runs), (*leaks_of(runs), *told))


def write_results(directory: SweepDirectory) -> SweepResult:
    """Write tables, recipes and figures of a sweep, as far as it is; the same rows give the same files.

    Raises:
        ConfigError: Its table is damaged.
    """
    result = read_result(directory)
    chosen = chosen_by(result.sweep, result.held_out)
    recipes = write_recipes(directory.path, result.sweep, result.best, result.front, chosen)
    result = replace(result, recipes=recipes)
    result.write(directory.path)  # before anything is drawn, which may fail
    from tune.sweeps.results.figures import draw_sweep

    figures, undrawn = draw_sweep(result.sweep, result.trials, directory.path)
    result = replace(result, figures=figures, undrawn=undrawn)
    result.write(directory.path)
    return result


def present(result: SweepResult, path: Path, as_json: bool) -> None:
    """Print the tables with what a reader of them has to know, or all as JSON.

    Args:
        result: What to print.
        path: The sweep's directory.
        as_json: Whether other programs read it.
    """
    from tune.terminal import print_json, print_table

    if as_json:
        print_json(result.plain())
        return
    for table in result.tables:
        typer.echo(table.title)
        print_table(table.head, table.text())
        typer.echo("".join(f"{line}\n" for line in table.remarks))
    for line in result.front_lines():
        typer.echo(f"Pareto front: {line}")
    for line in [*result.remarks, *result.sweep.notes]:
        typer.echo(line)
    recipes = [BEST] * (result.best is not None) + list(result.recipes.values())
    for kind, names in (("record", ("results.json", "table.md")), ("recipe", recipes), ("figure", result.figures)):
        for name in names:
            typer.echo(f"{kind}: {path / name}")
