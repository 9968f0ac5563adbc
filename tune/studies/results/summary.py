"""The results of a sweep: tables, the best settings as recipes, figures, and all of it as `results.json`."""

from pathlib import Path

from rayfed_ssl.storage.filesystem import write_atomically
from tune.studies.definition.schema import Sweep
from tune.studies.execution.directory import SweepDirectory
from tune.studies.execution.trial_table import unit_of
from tune.studies.results.best_recipe import write_recipes
from tune.studies.results.remarks import (
    BEST,
    held_out_samples,
    leak_warnings,
    read_manifests,
    remarks_of,
    version_warnings,
)
from tune.studies.results.sweep_results import BestTrial, GoalResult, SearchResult, SweepResults
from tune.studies.results.table import markdown_lines, table_of
from tune.studies.results.trial_results import STATES, best_of, front_of, read_results, scores_text
from tune.terminal import echo, print_json, print_table


def summarize_sweep(directory: SweepDirectory) -> SweepResults:
    """Read the results of a sweep so far, without figures."""
    sweep, record = directory.sweep, directory.record
    trials = read_results(directory, sweep)
    best, front = best_of(trials, sweep.goals), front_of(trials, sweep.goals)
    runs = read_manifests(directory.path, trials)
    validated = sweep.selection == "validation"
    held_out = held_out_samples(runs) if validated else ()
    remarks = remarks_of(sweep, trials, held_out, record.finished is not None)
    remarks += [record.inherited_from] if record.inherited_from else []
    remarks += [*(leak_warnings(runs) if validated else ()), *version_warnings(runs)]
    return SweepResults(
        name=sweep.name,
        title=sweep.heading,
        source=sweep.source,
        notes=list(sweep.notes),
        command=record.command,
        started=record.started,
        finished=record.finished,
        goals=[GoalResult(score=goal.score, maximize=goal.maximize, unit=unit_of(goal.score)) for goal in sweep.goals],
        take=sweep.take,
        selection=sweep.selection,
        seeds=list(sweep.seeds),
        held_out=list(held_out),
        search=_search_of(sweep),
        layout={"rows": sweep.rows, "columns": sweep.columns} | sweep.figure.model_dump(),
        states={state: sum(trial.state == state for trial in trials) for state in STATES},
        runs=len({run for trial in trials for run in trial.runs}),
        trials=list(trials),
        tables=[table_of(sweep, trials, goal) for goal in sweep.goals],
        best=None if best is None else BestTrial(trial=best.number, point=best.point, values=best.values, recipe=BEST),
        front=[trial.number for trial in front],
        recipes={str(trial.number): f"pareto-{trial.number}.yaml" for trial in front},
        remarks=remarks,
        figures=[],
    )


def _search_of(sweep: Sweep) -> SearchResult:
    return SearchResult(
        name=sweep.search.name,
        settings=sweep.search.settings,
        trials=sweep.num_trials,
        generation=sweep.generation,
        stop=None if sweep.stop is None else sweep.stop.model_dump() | {"score": sweep.stop_goal.score},
    )


def write_results(directory: SweepDirectory) -> SweepResults:
    """Write tables, recipes and figures of a sweep, as far as it is; the same rows give the same files."""
    results = summarize_sweep(directory)
    write_recipes(directory.path, directory.sweep, results)
    _write(results, directory.path)  # before figures, which may fail
    from tune.studies.results.figures import draw_sweep

    figures, undrawn = draw_sweep(directory.sweep, results.trials, directory.path)
    results = results.model_copy(update={"figures": figures, "remarks": [*results.remarks, *undrawn]})
    _write(results, directory.path)
    return results


def _write(results: SweepResults, directory: Path) -> None:
    write_atomically(directory / "results.json", (results.model_dump_json(indent=1) + "\n").encode())
    write_atomically(directory / "table.md", _markdown(results).encode())


def _markdown(results: SweepResults) -> str:
    text = [f"# {results.title}", "", *([f"{results.source}.", ""] if results.source else [])]
    text += [f"    {results.command}", ""]
    for table in results.tables:
        text += [f"## {table.title}", "", *markdown_lines(table), "", *(f"- {line}" for line in table.remarks)]
        text += [""] * bool(table.remarks)
    if results.front:
        text += ["## Pareto front", "", *(f"- {line}" for line in _front_lines(results)), ""]
    return "\n".join([*text, *(f"- {line}" for line in [*results.remarks, *results.notes]), ""])


def _front_lines(results: SweepResults) -> list[str]:
    trials = {trial.number: trial for trial in results.trials}
    front = [trials[number] for number in results.front]
    return [f"trial {trial.number} ({trial.label}): {scores_text(trial)}" for trial in front]


def print_results(results: SweepResults, path: Path, as_json: bool) -> None:
    """Print the tables with what a reader of them has to know, or all as JSON; `path` is the sweep's directory."""
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    for table in results.tables:
        echo(table.title)
        print_table(table.head, [[line.label, *(cell.text for cell in line.cells)] for line in table.lines])
        for line in [*table.remarks, ""]:
            echo(line)
    for line in _front_lines(results):
        echo(f"Pareto front: {line}")
    for line in [*results.remarks, *results.notes]:
        echo(line)
    recipes = [BEST] * (results.best is not None) + list(results.recipes.values())
    for kind, names in (("record", ("results.json", "table.md")), ("recipe", recipes), ("figure", results.figures)):
        for name in names:
            echo(f"{kind}: {path / name}")
