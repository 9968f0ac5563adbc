"""The results of a study: tables, the best settings as recipes, figures, and all of it as `results.json`."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rayfed_ssl.storage.filesystem import write_atomically
from tune.studies.definition.study import Study
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.trial_table import unit_of
from tune.studies.results.best_recipe import write_recipes
from tune.studies.results.published import (
    agreement_of,
    published_remarks,
    published_table,
    title_with_data,
    with_published,
)
from tune.studies.results.remarks import (
    BEST,
    held_out_samples,
    leak_warnings,
    read_manifests,
    remarks_of,
    version_warnings,
)
from tune.studies.results.results import BestTrial, GoalResult, SearchResult, StudyResults
from tune.studies.results.table import markdown_lines, table_of
from tune.studies.results.trial_results import STATES, best_of, front_of, read_results, scores_text
from tune.terminal import echo, print_json, print_table

Draw = Callable[[], tuple[list[str], list[str]]]
"""Draws a study's figures; gives the names of their files, and a line for each that could not be drawn."""


def summarize_study(directory: StudyDirectory) -> StudyResults:
    """Read the results of a study so far, without figures."""
    study, record = directory.study, directory.record
    trials = list(read_results(directory, study))
    runs = read_manifests(directory.path, trials)
    validated = study.selects_on == "validation"
    held_out = held_out_samples(runs) if validated else ()
    goals = [GoalResult(score=goal.score, maximize=goal.maximize, unit=unit_of(goal.score)) for goal in study.goals]
    results = StudyResults(
        kind=study.kind,
        name=study.name,
        title=study.heading,
        source=study.source,
        notes=[*study.notes, *study.at_size.notes],
        command=record.command,
        started=record.started,
        finished=record.finished,
        size=study.size,
        settings=list(study.overrides),
        goals=goals,
        unit=study.unit,
        take=study.take,
        selection=study.selects_on,
        seeds=list(study.seeds),
        held_out=list(held_out),
        search=_search_of(study),
        layout={"rows": study.table_rows, "columns": study.table_columns} | study.figure.model_dump(exclude={"draw"}),
        states={state: sum(trial.state == state for trial in trials) for state in STATES},
        runs=len({run for trial in trials for run in trial.runs}),
        trials=trials,
        tables=[table_of(study, trials, goal) for goal in study.goals],
        skipped=record.skipped,
        failures=[f"{trial.label}: {trial.reason}" for trial in trials if trial.reason and trial.state != "stopped"],
    )
    remarks = remarks_of(study, trials, held_out, record.finished is not None)
    remarks += [record.inherited_from] if record.inherited_from else []
    remarks += [*(leak_warnings(runs) if validated else ()), *version_warnings(runs)]
    changes, published = _with_best(study, results), list[str]()
    if study.kind == "reproduction":
        changes, published = _with_published(study, results)
    return results.model_copy(update=changes | {"remarks": [*published, *remarks]})


def _with_best(study: Study, results: StudyResults) -> dict[str, object]:
    best, front = best_of(results.trials, study.goals), front_of(results.trials, study.goals)
    recipes = {str(trial.number): f"pareto-{trial.number}.yaml" for trial in front}
    chosen = best and BestTrial(trial=best.number, point=best.point, values=best.values, recipe=BEST)
    return {"best": chosen, "front": [trial.number for trial in front], "recipes": recipes}


def _with_published(study: Study, results: StudyResults) -> tuple[dict[str, object], list[str]]:
    trials = with_published(study, results.trials)
    agreement = agreement_of(study, trials)
    table = published_table(study, trials, list(results.skipped))
    changes = {"title": title_with_data(study), "trials": trials, "tables": [table], "agreement": agreement}
    skipped = [f"Left out, {name}: {why}" for name, why in results.skipped.items()]
    return changes, [*published_remarks(study, trials, agreement), *skipped]


def _search_of(study: Study) -> SearchResult:
    return SearchResult(
        name=study.search.name,
        settings=study.search.settings,
        trials=study.num_trials,
        generation=study.generation,
        stop=None if study.stop is None else study.stop.model_dump() | {"score": study.stop_goal.score},
    )


def write_results(directory: StudyDirectory) -> StudyResults:
    """Write tables, recipes and figures of a study, as far as it is; the same rows give the same files."""
    results = summarize_study(directory)
    write_recipes(directory.path, directory.study, results)

    def draw() -> tuple[list[str], list[str]]:
        from tune.studies.results.figures import draw_study

        return draw_study(directory.study, results, directory.path)

    return store(results, directory.path, draw)


def store(results: StudyResults, directory: Path, draw: Draw) -> StudyResults:
    """Write `results.json` and `table.md`, before the figures, which may fail, and after them."""
    _write(results, directory)
    figures, undrawn = draw()
    results = results.model_copy(update={"figures": figures, "remarks": [*results.remarks, *undrawn]})
    _write(results, directory)
    return results


def _write(results: StudyResults, directory: Path) -> None:
    write_atomically(directory / "results.json", (results.model_dump_json(indent=1) + "\n").encode())
    write_atomically(directory / "table.md", _markdown(results).encode())


def _markdown(results: StudyResults) -> str:
    text = [f"# {results.title}", "", *([f"{results.source}.", ""] if results.source else [])]
    text += [f"    {results.command}", ""]
    for table in results.tables:
        text += [f"## {table.title}", "", *markdown_lines(table), "", *(f"- {line}" for line in table.remarks)]
        text += [""] * bool(table.remarks)
    if results.front:
        text += ["## Pareto front", "", *(f"- {line}" for line in _front_lines(results)), ""]
    text += [f"- {line}" for line in [*results.remarks, *results.notes]] + [""]
    for table in results.details:
        text += [f"## {table.title}", "", *markdown_lines(table), ""]
    return "\n".join(text)


def _front_lines(results: StudyResults) -> Iterator[str]:
    trials = {trial.number: trial for trial in results.trials}
    for number in results.front:
        yield f"trial {number} ({trials[number].label}): {scores_text(trials[number])}"


def print_results(results: StudyResults, path: Path, as_json: bool) -> None:
    """Print the tables with what a reader of them has to know, or all as JSON; `path` is the study's directory."""
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
    kinds: Sequence[tuple[str, Sequence[str]]] = (
        ("record", ("results.json", "table.md")),
        ("recipe", recipes),
        ("figure", results.figures),
    )
    for kind, names in kinds:
        for name in names:
            echo(f"{kind}: {path / name}")
