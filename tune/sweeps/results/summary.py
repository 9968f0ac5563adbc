"""The results of a sweep: tables, the best settings as recipes, figures, and all of it as `results.json`."""

from dataclasses import dataclass, replace
from pathlib import Path

import typer

from rayfed_ssl.reports.sweep_results import (
    BestTrial,
    GoalResult,
    SearchResult,
    SweepResults,
    TableResult,
    TrialResult,
)
from rayfed_ssl.storage.filesystem import write_atomically
from tune.sweeps.definition.schema import Sweep
from tune.sweeps.execution.directory import SweepDirectory, SweepRecord
from tune.sweeps.results.best_recipe import write_recipes
from tune.sweeps.results.remarks import (
    BEST,
    chosen_by,
    held_out_samples,
    leak_warnings,
    read_summaries,
    remarks_of,
    version_warnings,
)
from tune.sweeps.results.table import markdown_lines, table_of
from tune.sweeps.results.trial_results import STATES, best_of, front_of, read_results, scores_text, unit_of
from tune.terminal import print_json, print_table


@dataclass(frozen=True)
class SweepSummary:
    """A sweep with the results of its trials.

    Attributes:
        held_out: Numbers of samples that scores are of, where they are not of the test set.
        warnings: Of the runs' records, a line each.
        recipes: File names by number of a trial on the front.
        undrawn: Which figures could not be drawn, and why, a line each.
    """

    sweep: Sweep
    record: SweepRecord
    trials: tuple[TrialResult, ...]
    held_out: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    recipes: dict[int, str] | None = None
    figures: tuple[str, ...] = ()
    undrawn: tuple[str, ...] = ()

    @property
    def best(self) -> TrialResult | None:
        """The best complete trial by the first goal; of equal ones the first."""
        return best_of(self.trials, self.sweep.goals)

    @property
    def front(self) -> tuple[TrialResult, ...]:
        """The Pareto front of several goals, the best by the first goal first."""
        return front_of(self.trials, self.sweep.goals) if len(self.sweep.goals) > 1 else ()

    @property
    def failures(self) -> list[str]:
        """A line for each trial that failed."""
        return [
            f"trial {trial.number} ({trial.label}): {trial.reason}" for trial in self.trials if trial.state == "failed"
        ]

    @property
    def tables(self) -> list[TableResult]:
        """A table for each goal."""
        return [table_of(self.sweep, self.trials, goal) for goal in self.sweep.goals]

    @property
    def remarks(self) -> list[str]:
        """What a reader of the tables has to know, a line each."""
        remarks = remarks_of(self.sweep, self.trials, self.held_out, self.record.finished is not None)
        inherited = [self.record.inherited_from] if self.record.inherited_from else []
        return [*remarks, *inherited, *self.warnings, *self.undrawn]

    def results(self) -> SweepResults:
        """Give all of it as `results.json` has it."""
        sweep, best, stop = self.sweep, self.best, self.sweep.stop
        goals = [GoalResult(score=goal.score, maximize=goal.maximize, unit=unit_of(goal.score)) for goal in sweep.goals]
        search = SearchResult(
            name=sweep.search.name,
            settings=sweep.search.settings,
            trials=sweep.num_trials,
            generation=sweep.generation,
            stop=None if stop is None else stop.model_dump() | {"score": sweep.stop_goal.score},
        )
        best_entry = None
        if best is not None:
            best_entry = BestTrial(trial=best.number, point=best.point, values=best.values, recipe=BEST)
        return SweepResults(
            name=sweep.name,
            title=sweep.heading,
            source=sweep.source,
            notes=list(sweep.notes),
            command=self.record.command,
            started=self.record.started,
            finished=self.record.finished,
            goals=goals,
            take=sweep.take,
            selection=sweep.selection,
            seeds=list(sweep.seeds),
            held_out=list(self.held_out),
            search=search,
            layout={"rows": sweep.rows, "columns": sweep.columns} | sweep.figure.model_dump(),
            states={state: sum(trial.state == state for trial in self.trials) for state in STATES},
            runs=len({run for trial in self.trials for run in trial.runs}),
            trials=list(self.trials),
            tables=self.tables,
            best=best_entry,
            front=[trial.number for trial in self.front],
            recipes={str(number): name for number, name in (self.recipes or {}).items()},
            remarks=self.remarks,
            figures=list(self.figures),
        )

    def write(self, directory: Path) -> None:
        """Write `results.json` and `table.md`."""
        write_atomically(directory / "results.json", (self.results().model_dump_json(indent=1) + "\n").encode())
        write_atomically(directory / "table.md", self.markdown().encode())

    def markdown(self) -> str:
        """The tables as Markdown."""
        sweep = self.sweep
        text = [f"# {sweep.heading}", "", *([f"{sweep.source}.", ""] if sweep.source else [])]
        text += [f"    {self.record.command}", ""]
        for table in self.tables:
            text += [f"## {table.title}", "", *markdown_lines(table), "", *(f"- {line}" for line in table.remarks)]
            text += [""] * bool(table.remarks)
        if self.front:
            text += ["## Pareto front", "", *(f"- {line}" for line in self.front_lines()), ""]
        return "\n".join([*text, *(f"- {line}" for line in [*self.remarks, *sweep.notes]), ""])

    def front_lines(self) -> list[str]:
        """The Pareto front, a trial a line."""
        goals = self.sweep.goals
        return [f"trial {trial.number} ({trial.label}): {scores_text(trial, goals)}" for trial in self.front]


def summarize_sweep(directory: SweepDirectory) -> SweepSummary:
    """Read the results of a sweep so far.

    Raises:
        ConfigError: Its table is damaged.
    """
    sweep = directory.sweep
    trials = read_results(directory, sweep)
    runs = read_summaries(directory.path, trials)
    versions = tuple(version_warnings(runs))
    if sweep.selection == "test":
        return SweepSummary(sweep, directory.record, trials, warnings=versions)
    warnings = (*leak_warnings(runs), *versions)
    return SweepSummary(sweep, directory.record, trials, held_out_samples(runs), warnings)


def write_results(directory: SweepDirectory) -> SweepSummary:
    """Write tables, recipes and figures of a sweep, as far as it is; the same rows give the same files.

    Raises:
        ConfigError: Its table is damaged.
    """
    summary = summarize_sweep(directory)
    chosen = chosen_by(summary.sweep, summary.held_out)
    recipes = write_recipes(directory.path, summary.sweep, summary.best, summary.front, chosen)
    summary = replace(summary, recipes=recipes)
    summary.write(directory.path)  # before figures, which may fail
    from tune.sweeps.results.figures import draw_sweep

    figures, undrawn = draw_sweep(summary.sweep, summary.trials, directory.path)
    summary = replace(summary, figures=figures, undrawn=undrawn)
    summary.write(directory.path)
    return summary


def print_results(summary: SweepSummary, path: Path, as_json: bool) -> None:
    """Print the tables with what a reader of them has to know, or all as JSON; `path` is the sweep's directory."""
    if as_json:
        print_json(summary.results().model_dump(mode="json"))
        return
    for table in summary.tables:
        typer.echo(table.title)
        print_table(table.head, [[line.label, *(cell.text for cell in line.cells)] for line in table.lines])
        typer.echo("".join(f"{line}\n" for line in table.remarks))
    for line in summary.front_lines():
        typer.echo(f"Pareto front: {line}")
    for line in [*summary.remarks, *summary.sweep.notes]:
        typer.echo(line)
    recipes = [BEST] * (summary.best is not None) + list((summary.recipes or {}).values())
    for kind, names in (("record", ("results.json", "table.md")), ("recipe", recipes), ("figure", summary.figures)):
        for name in names:
            typer.echo(f"{kind}: {path / name}")
