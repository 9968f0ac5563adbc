"""A sweep's table, its best settings and its figures, from `results.json`."""

from pathlib import Path

from rayfed_ssl.reports.html.figure import FigureWriter, RenderedFigure
from rayfed_ssl.reports.html.page import Card, PageSection
from rayfed_ssl.reports.html.tables import MISSING, PageCell, PageTable
from tune.studies.results.sweep_results import GoalResult, SweepResults, TableResult, TrialResult

TITLES = {
    "curve": "{} over {}",
    "trade-off": "Both goals of each trial, and the Pareto front",
    "history": "{} of each trial, and the best so far",
    "importances": "How much each parameter decides about {} (fANOVA)",
    "parallel-coordinates": "{} along all parameters",
    "slices": "{} over each parameter",
}
"""What the figures show, by how the names of their files begin."""


def sweep_section(directory: Path, results: SweepResults, writer: FigureWriter, command: str, key: str) -> PageSection:
    """Make the section of a sweep."""
    text = [f"{results.source}."] if results.source else []
    text += [line for table in results.tables for line in table.remarks]
    text += [line for line in results.remarks if not line.startswith(("Stopped, ", "Failed, "))] + results.notes
    trials = {trial.number: trial for trial in results.trials}
    tables = [_layout(table) for table in results.tables]
    if results.front:
        tables.append(_trials("Pareto front", results, [trials[number] for number in results.front]))
    ended = [[_name(one), one.state, one.reason] for one in results.trials if one.state in ("stopped", "failed")]
    folded = [PageTable.of("Stopped and failed trials", ["trial", "state", "why"], ended)] if ended else []
    folded.append(_trials("All trials", results, results.trials))
    return PageSection(
        key,
        f"Sweep: {results.title}",
        cards=tuple(_cards(directory, results)),
        text=tuple(text),
        figures=tuple(_figures(directory, results, writer, f"{results.command or 'rayfed-ssl sweep'} · {command}")),
        tables=tuple(tables),
        folded=tuple(folded),
    )


def _cards(directory: Path, results: SweepResults) -> list[Card]:
    best = results.best
    cards = []
    if best is not None:
        trial = next(trial for trial in results.trials if trial.number == best.trial)
        command = f"rayfed-ssl run {directory / best.recipe}"
        value = _value(trial, results.goals[0]).text
        cards.append(Card(f"Best {results.goals[0].score}", value, (f"trial {_name(trial)}", command)))
    counts = tuple(f"{count} {state}" for state, count in results.states.items() if count)
    return [*cards, Card("Trials", f"{len(results.trials)} of {results.search.trials}", counts)]


def _name(trial: TrialResult) -> str:
    return f"{trial.number}: {trial.label}"


def _layout(table: TableResult) -> PageTable:
    """Show a table as it was laid out; the best cell of each column is named."""
    rows = [
        [PageCell(line.label), *(PageCell(c.text, c.mean, ("best",) if c.best else ()) for c in line.cells)]
        for line in table.lines
    ]
    return PageTable.of(table.title, table.head, rows)


def _trials(caption: str, results: SweepResults, trials: list[TrialResult]) -> PageTable:
    """List trials with all that they have come to."""
    rows = []
    for trial in trials:
        rounds = PageCell(f"{trial.reached} of {trial.rounds}" if trial.rounds else MISSING, trial.reached)
        values = [_value(trial, goal) for goal in results.goals]
        recipe = [results.recipes.get(str(trial.number), "")] if results.recipes else []
        rows.append([_name(trial), trial.state, rounds, *values, PageCell.size(trial.bytes), *recipe])
    heads = ["trial", "state", "rounds", *(goal.score for goal in results.goals), "bytes a run"]
    return PageTable.of(caption, heads + ["recipe"] * bool(results.recipes), rows)


def _value(trial: TrialResult, goal: GoalResult) -> PageCell:
    """Show what a trial has come to by a goal, mean ± standard deviation over seeds."""
    value = trial.values.get(goal.score)
    return PageCell.mean_std(None if value is None else value.over_seeds(), goal.unit)


def _figures(directory: Path, results: SweepResults, writer: FigureWriter, origin: str) -> list[RenderedFigure]:
    """Take the sweep's own figures into the page, as pictures in themselves."""
    figures = []
    for name in results.figures:
        path = directory / "figures" / Path(name).name
        if path.suffix == ".svg" and path.is_file():
            title = _title(path.stem, results)
            alt = f"{results.title}. {title}. The numbers are in the tables of this section."
            figures.append(writer.embed(path, title, alt, origin))
    return figures


def _title(stem: str, results: SweepResults) -> str:
    kind = next((kind for kind in TITLES if stem == kind or stem.startswith(f"{kind}-")), None)
    score = stem.removeprefix(f"{kind}-") if kind != stem else results.goals[0].score
    text = TITLES.get(kind or "", stem).format(score, results.layout.get("x"))
    return text[0].upper() + text[1:]
