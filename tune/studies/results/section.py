"""A study in the HTML report: its tables, its best settings and its figures, from `results.json`."""

from collections.abc import Iterator
from pathlib import Path

from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.page import MISSING, Card, PageCell, PageSection, PageTable, RenderedFigure
from tune.studies.results.results import GoalResult, StudyResults, TableResult, TrialResult

TITLES = {
    "curve": "{} over {}",
    "trade-off": "Both goals of each trial, and the Pareto front",
    "history": "{} of each trial, and the best so far",
    "importances": "How much each parameter decides about {} (fANOVA)",
    "slices": "{} over each parameter",
    "accuracy-over-bytes": "Accuracy over bytes",
    "knn-over-epochs": "Accuracy by kNN over local epochs",
}
"""What the figures show, by how the names of their files begin; any other is of what a paper shows."""


def study_section(directory: Path, results: StudyResults, writer: FigureWriter, command: str, key: str) -> PageSection:
    """Make the section of a study."""
    text = [f"{results.source}."] if results.source else []
    text += [f"Size “{results.size}”, seeds {', '.join(map(str, results.seeds))}."] * bool(results.size)
    text += [line for table in results.tables for line in table.remarks]
    text += [line for line in results.remarks if not line.startswith(("Stopped, ", "Failed, "))] + results.notes
    trials = {trial.number: trial for trial in results.trials}
    tables = [_layout(table) for table in results.tables]
    if results.front:
        tables.append(_trials("Pareto front", results, [trials[number] for number in results.front]))
    ended = [[_name(one), one.state, one.reason] for one in results.trials if one.reason]
    folded = [PageTable.of("Stopped and failed trials", ["trial", "state", "why"], ended)] if ended else []
    folded += [_trials("All trials", results, results.trials)] * bool(results.trials)
    folded += [_layout(table) for table in results.details]
    return PageSection(
        key,
        f"{results.kind.capitalize()}: {results.title}",
        cards=tuple(_cards(directory, results)),
        text=(*text, *(f"Failed, {line}" for line in results.failures if not results.trials)),
        figures=tuple(_figures(directory, results, writer, f"{results.command} · {command}")),
        tables=tuple(tables),
        folded=tuple(folded),
    )


def _cards(directory: Path, results: StudyResults) -> Iterator[Card]:
    best = results.best
    if best is not None:
        trial = next(trial for trial in results.trials if trial.number == best.trial)
        command = f"rayfed-ssl run {directory / best.recipe}"
        value = _value(trial, results.goals[0]).text
        yield Card(f"Best {results.goals[0].score}", value, (f"trial {_name(trial)}", command))
    if results.search is not None:
        counts = tuple(f"{count} {state}" for state, count in results.states.items() if count)
        yield Card("Trials", f"{len(results.trials)} of {results.search.trials}", counts)


def _name(trial: TrialResult) -> str:
    return f"{trial.number}: {trial.label}"


def _layout(table: TableResult) -> PageTable:
    """Show a table as it was laid out; the best cell of each column is named."""
    rows = [
        [
            PageCell(line.label),
            *(PageCell(c.text or MISSING, c.mean, ("best",) if c.best else ()) for c in line.cells),
        ]
        for line in table.lines
    ]
    return PageTable.of(table.title, [table.head[0] or "row", *table.head[1:]], rows)


def _trials(caption: str, results: StudyResults, trials: list[TrialResult]) -> PageTable:
    """List trials with all that they have come to."""
    rows = []
    for trial in trials:
        rounds = PageCell(f"{trial.reached} of {trial.rounds}" if trial.rounds else MISSING, trial.reached)
        values = [_value(trial, goal) for goal in results.goals]
        recipe = [results.recipes.get(str(trial.number), "")] if results.recipes else []
        rows.append([_name(trial), trial.state, rounds, *values, PageCell.of(trial.bytes, "bytes"), *recipe])
    heads = ["trial", "state", "rounds", *(goal.score for goal in results.goals), "bytes a run"]
    return PageTable.of(caption, heads + ["recipe"] * bool(results.recipes), rows)


def _value(trial: TrialResult, goal: GoalResult) -> PageCell:
    """Show what a trial has come to by a goal, mean ± standard deviation over seeds."""
    value = trial.values.get(goal.score)
    return PageCell.of(None if value is None else value.over_seeds(), goal.unit)


def _figures(directory: Path, results: StudyResults, writer: FigureWriter, origin: str) -> Iterator[RenderedFigure]:
    """Take the study's own figures into the page, as pictures in themselves."""
    for name in results.figures:
        path = directory / "figures" / Path(name).name
        if path.suffix == ".svg" and path.is_file():
            title = _title(path.stem, results)
            alt = f"{results.title}. {title}. The numbers are in the tables of this section."
            yield writer.embed(path, title, alt, origin)


def _title(stem: str, results: StudyResults) -> str:
    kind = next((kind for kind in TITLES if stem == kind or stem.startswith(f"{kind}-")), None)
    if kind is None:
        return f"{results.title}: ours beside the paper’s"
    score = stem.removeprefix(f"{kind}-") if kind != stem else next((goal.score for goal in results.goals), "")
    text = TITLES[kind].format(score, results.layout.get("x"))
    return text[0].upper() + text[1:]
