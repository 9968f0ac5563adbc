"""A sweep's table, its best settings and its figures, from `results.json`."""

from pathlib import Path
from typing import Any

from rayfed_ssl.formats import MeanStd
from rayfed_ssl.reports.html.figure import FigureWriter, RenderedFigure
from rayfed_ssl.reports.html.page import Card, PageSection
from rayfed_ssl.reports.html.sources import SweepResults
from rayfed_ssl.reports.html.tables import PageCell, PageTable

TITLES = {
    "curve": "{} over {}",
    "trade-off": "Both goals of each trial, and the Pareto front",
    "history": "{} of each trial, and the best so far (Optuna)",
    "importances": "How much each parameter decides about {} (Optuna)",
    "parallel-coordinates": "{} along all parameters (Optuna)",
    "slices": "{} over each parameter (Optuna)",
    "pareto": "Pareto front (Optuna)",
}
"""What the figures show, by how the names of their files begin."""


def sweep_section(sweep: SweepResults, writer: FigureWriter, command: str, key: str) -> PageSection:
    """Make the section of a sweep."""
    content = sweep.content
    text = [f"{content['source']}."] if content["source"] else []
    text += [line for table in content["tables"] for line in table["remarks"]]
    text += [line for line in content["remarks"] if not line.startswith(("Stopped, ", "Failed, "))] + content["notes"]
    tables = [_layout(table) for table in content["tables"]]
    tables += [_trials("Pareto front", content, content["front"])] if content["front"] else []
    ended = [trial["number"] for trial in content["trials"] if trial["state"] in ("stopped", "failed")]
    folded = [_ended(content, ended)] if ended else []
    folded.append(_trials("All trials", content, [trial["number"] for trial in content["trials"]]))
    made = content["command"] or "rayfed-ssl sweep"
    return PageSection(
        key,
        f"Sweep: {content['title']}",
        cards=tuple(_cards(sweep)),
        text=tuple(text),
        figures=tuple(_drawn(sweep, writer, f"{made} · {command}")),
        tables=tuple(tables),
        folded=tuple(folded),
    )


def _cards(sweep: SweepResults) -> list[Card]:
    content, best = sweep.content, sweep.content["best"]
    counted = tuple(f"{count} {state}" for state, count in content["states"].items() if count)
    cards = [Card("Trials", f"{len(content['trials'])} of {content['search']['trials']}", counted)]
    if best is not None:
        goal, trial = content["goals"][0], _by_number(content)[best["trial"]]
        value = _value(trial, goal)
        where = f"rayfed-ssl run {sweep.directory / best['recipe']}"
        cards.insert(
            0, Card(f"Best {goal['score']}", value.text, (f"trial {trial['number']}: {trial['label']}", where))
        )
    return cards


def _by_number(content: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {trial["number"]: trial for trial in content["trials"]}


def _layout(table: dict[str, Any]) -> PageTable:
    """Show a table as it was laid out; the best cell of each column is named."""
    rows = [
        [
            PageCell(line["label"]),
            *(PageCell(c["text"], c["mean"], ("best",) if c["best"] else ()) for c in line["cells"]),
        ]
        for line in table["lines"]
    ]
    return PageTable.of(table["title"], table["head"], rows)


def _trials(caption: str, content: dict[str, Any], numbers: list[int]) -> PageTable:
    """List trials with all that they have come to."""
    goals, trials = content["goals"], _by_number(content)
    rows = []
    for trial in map(trials.__getitem__, numbers):
        recipe = content["recipes"].get(str(trial["number"]), "")
        rounds = f"{trial['reached']} of {trial['rounds']}" if trial["rounds"] else "–"
        cells = [
            PageCell(f"{trial['number']}: {trial['label']}"),
            PageCell(trial["state"]),
            PageCell(rounds, trial["reached"]),
        ]
        rows.append([*cells, *(_value(trial, goal) for goal in goals), PageCell.size(trial["bytes"]), PageCell(recipe)])
    heads = ["trial", "state", "rounds", *(goal["score"] for goal in goals), "bytes a run", "recipe"]
    if not content["recipes"]:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return PageTable.of(caption, heads, rows)


def _value(trial: dict[str, Any], goal: dict[str, Any]) -> PageCell:
    """Show what a trial has come to by a goal, mean ± standard deviation over seeds."""
    value = trial["values"].get(goal["score"])
    if value is None:
        return PageCell.mean_std(None)
    return PageCell.mean_std(MeanStd(value["mean"], value["std"], len(trial["seeds"])), goal["unit"])


def _ended(content: dict[str, Any], numbers: list[int]) -> PageTable:
    trials = _by_number(content)
    rows = [[f"{n}: {trials[n]['label']}", trials[n]["state"], trials[n]["reason"]] for n in numbers]
    return PageTable.of("Stopped and failed trials", ["trial", "state", "why"], rows)


def _drawn(sweep: SweepResults, writer: FigureWriter, origin: str) -> list[RenderedFigure]:
    """Take the sweep's own figures into the page, as pictures in themselves."""
    figures = []
    for name in sweep.content["figures"]:
        path = sweep.directory / "figures" / Path(name).name
        if path.suffix == ".svg" and path.is_file():
            title = _title(path.stem, sweep.content)
            alt = f"{sweep.content['title']}. {title}. The numbers are in the tables of this section."
            figures.append(writer.embed(path, title, alt, origin))
    return figures


def _title(stem: str, content: dict[str, Any]) -> str:
    kind = next((kind for kind in TITLES if stem == kind or stem.startswith(f"{kind}-")), None)
    score = stem.removeprefix(f"{kind}-") if kind != stem else content["goals"][0]["score"]
    text = TITLES.get(kind or "", stem).format(score, content["layout"].get("x"))
    return text[0].upper() + text[1:]
