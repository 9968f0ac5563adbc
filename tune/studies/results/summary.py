"""The results of a study: tables, the best settings as recipes, figures, and all of it as `results.json`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_ssl.reports.table import Form, Table, form_lines, markdown_lines
from rayfed_ssl.storage.filesystem import write_atomically
from tune.studies.definition.schema import COLUMN, ROW, Goal
from tune.studies.definition.study import Study
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.trial_table import unit_of
from tune.studies.results.best_settings import BEST, chosen_by, recipes_of, write_recipes
from tune.studies.results.paired_differences import compared, read_searches, read_systems, system_table
from tune.studies.results.published import (
    agreement_of,
    published_remarks,
    published_table,
    with_published,
)
from tune.studies.results.results import StudyResults, TrialResult
from tune.studies.results.table import table_of, trials_table
from tune.studies.results.trial_results import best_of, error_of, front_of, is_better, read_results, scores_text
from tune.terminal import echo, print_json, print_table


def summarize_study(directory: StudyDirectory) -> StudyResults:
    """Read the results of a study so far, without figures."""
    study, record = directory.study, directory.record
    if study.kind == "benchmark":
        return _compared(directory)
    trials = list(read_results(directory))
    remarks = _remarks(study, trials, record.finished is not None)
    remarks += [record.inherited_from] if record.inherited_from else []
    best, front = best_of(trials, study.goals), front_of(trials, study.goals)
    results = _results(study, record.command, trials).model_copy(
        update={
            "notes": [*study.notes, *study.at_size.notes],
            "started": record.started,
            "finished": record.finished,
            "seeds": list(study.seeds),
            "tables": [table_of(study, trials, goal) for goal in study.goals]
            + [trials_table("Pareto front", study, front)] * bool(front),
            "details": [trials_table("All trials", study, trials)],
            "best": best and best.number,
            "front": [trial.number for trial in front],
            "skipped": record.skipped,
            "failures": [
                f"{trial.label}: {trial.reason}" for trial in trials if trial.reason and trial.state != "stopped"
            ],
            "remarks": remarks,
        }
    )
    return _beside_published(study, results) if study.kind == "reproduction" else results


def _remarks(study: Study, trials: Sequence[TrialResult], finished: bool) -> list[str]:
    """Collect the remarks on a study's trials; `finished` if all of them have ended."""
    lines, best = [_seeds_text(study)], best_of(trials, study.goals)
    if best is not None:
        scores = scores_text(best)
        lines.append(
            f"Best by {study.goals[0].score}: trial {best.number} ({best.label}): {scores}; its recipe is {BEST}."
        )
        lines += _level_with(best, trials, study.goals[0])
    if study.kind == "sweep":
        lines.append(f"Settings are {chosen_by(study)}.")
        if any("model.start" in text for text in (*study.overrides, *study.settings, *study.parameters)):
            lines.append("An encoder that trials start from may have seen these samples: nothing checks it.")
    runs = [run for trial in trials for run in trial.runs]
    shared = len(runs) - len(set(runs))
    equal = f", as {shared} of {len(runs)} are those of other trials of equal settings" if shared else ""
    lines.append(f"{len(trials)} trials, {len(set(runs))} different runs{equal}.")
    if not finished:
        ended = sum(trial.state != "waiting" for trial in trials)
        lines.append(f"Not finished: {ended} of {study.num_trials} trials have ended.")
    for trial in sorted(trials, key=lambda trial: trial.state != "stopped"):
        if trial.reason:
            kind = "Stopped" if trial.state == "stopped" else "Failed"
            lines.append(f"{kind}, trial {trial.number} ({trial.label}): {trial.reason}")
    return lines


def _level_with(best: TrialResult, trials: Sequence[TrialResult], goal: Goal) -> list[str]:
    """Say how many trials are not told from the best one, and by how many pictures."""
    others = [trial for trial in trials if trial is not best and goal.score in trial.values]
    errors = [error_of(best, other, goal.score) for other in others]
    if not any(errors):
        return []
    level = sum(not is_better(best, other, goal) for other in others)
    return [
        f"{level} of {len(others)} other trials are within two standard errors of the best (up to {100 * max(errors):.2f} "
        f"points each, by {best.samples:,} pictures)."
    ]


def _seeds_text(study: Study) -> str:
    unit = " Scores are in percent." if any(unit_of(goal.score) == "percent" for goal in study.goals) else ""
    if len(study.seeds) == 1:
        return f"Each cell: one run, seed {study.seeds[0]}.{unit}"
    seeds = ", ".join(map(str, study.seeds))
    return f"Each cell: mean ± standard deviation (n - 1) over seeds {seeds}.{unit}"


def _results(study: Study, command: str, trials: list[TrialResult]) -> StudyResults:
    """Give what the results of all studies have."""
    return StudyResults(
        kind=study.kind,
        name=study.name,
        title=study.heading,
        source=study.source,
        notes=list(study.notes),
        command=command,
        size=study.size,
        settings=list(study.overrides),
        selection=study.selects_on,
        trials=trials,
        tables=[],
    )


def _beside_published(study: Study, results: StudyResults) -> StudyResults:
    trials = with_published(study, results.trials)
    agreement = agreement_of(trials)
    skipped = [f"Left out, {name}: {why}" for name, why in results.skipped.items()]
    changes = {
        "trials": trials,
        "tables": [published_table(study, trials, list(results.skipped))],
        "agreement": agreement,
        "remarks": [*published_remarks(study, trials, agreement), *skipped, *results.remarks],
    }
    return results.model_copy(update=changes)


def _compared(directory: StudyDirectory) -> StudyResults:
    """Compare the rows of a benchmark by all runs that have ended."""
    study = directory.study.model_copy(update={"only_rows": None})
    score, baseline = study.goals[0].score, str(study.baseline)
    trials = compared(read_systems(directory, study), baseline, score)
    failures = [
        f"{study.label(each.point)}: {each.reason}" for each in directory.record.trials if each.state == "failed"
    ]
    for name, search in read_searches(directory.path, study, trust=directory.trusted):
        failures += [f"search for {name}, {line}" for line in search.failures]
    chosen = {name: row.chosen for name, row in study.rows.items() if row.chosen}
    columns = dict.fromkeys(trial.point[COLUMN] for trial in trials)
    changes = {
        "tables": [system_table(trials, column, score, baseline) for column in columns],
        "details": _details(trials, chosen),
        "chosen": chosen,
        "failures": failures,
        "remarks": [f"Not complete: {line}" for line in failures],
    }
    return _results(study, directory.record.command, trials).model_copy(update=changes)


def _details(trials: Sequence[TrialResult], chosen: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    settings = [[row, ", ".join(f"{key}={value}" for key, value in point.items())] for row, point in chosen.items()]
    runs = [
        [trial.point[COLUMN], trial.point[ROW], str(seed), run, digest or "-"]
        for trial in trials
        for seed, run, digest in zip(trial.seeds, trial.runs, trial.digests, strict=False)
    ]
    return [
        Table.of("What the searches chose", ["system", "settings"], settings),
        Table.of("Runs", ["column", "system", "seed", "run", "state_sha256"], runs),
    ]


def write_results(directory: StudyDirectory) -> StudyResults:
    """Write tables, recipes and figures of a study, as far as it is; the same rows give the same files."""
    from tune.studies.results.figures import draw_study

    study, path, results = directory.study, directory.path, summarize_study(directory)
    write_recipes(path, study, results)
    _write(results, path)  # before the figures, which may fail
    figures, undrawn = draw_study(study, results, path)
    results = results.model_copy(update={"figures": figures, "remarks": [*results.remarks, *undrawn]})
    _write(results, path)
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
    text += [f"- {line}" for line in [*results.remarks, *results.notes]] + [""]
    for table in results.details:
        text += [f"## {table.title}", "", *markdown_lines(table), ""]
    return "\n".join(text)


def print_results(results: StudyResults, path: Path, form: Form = "text") -> None:
    """Print the tables with what a reader of them has to know, or all as JSON; `path` is the study's directory.

    Of CSV and LaTeX, the tables alone are on standard output.
    """
    if form == "json":
        print_json(results.model_dump(mode="json"))
        return
    is_text = form == "text"
    for line in () if is_text else form_lines(results.tables, form):
        echo(line)
    for table in results.tables:
        if is_text:
            echo(table.title)
            print_table(table.head, table.texts())
        for line in [*table.remarks, *[""] * is_text]:
            echo(line, err=not is_text)
    lines = [*results.remarks, *results.notes]
    files = {"record": ("results.json", "table.md"), "recipe": recipes_of(results), "figure": results.figures}
    for kind, names in files.items():
        lines += [f"{kind}: {path / name}" for name in names]
    for line in lines:
        echo(line, err=not is_text)
