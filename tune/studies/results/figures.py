"""Figures of a study as PNG and SVG: a score over a parameter, accuracy over bytes, and what a paper's figure shows.

The same results give the same bytes.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rayfed_ssl.analysis.embedding import embed
from rayfed_ssl.formats import MeanStd, value_text
from rayfed_ssl.reports.style import AXES, dodged, line_style, mark_style, save_figure, scale_megabytes, styled
from tune.studies.definition.schema import COLUMN, EPSILON, ROW, Goal
from tune.studies.definition.study import Study
from tune.studies.execution.trial_table import unit_of
from tune.studies.results.paired_differences import RANDOM
from tune.studies.results.panels import (
    BESIDE,
    MOST_BESIDE,
    Panel,
    Series,
    draw_panels,
    log_scale,
    scaled,
)
from tune.studies.results.published import scale_of
from tune.studies.results.results import StudyResults, TrialResult
from tune.studies.results.table import Key, is_continuous, key_of, keys_of, places_of
from tune.studies.results.trial_results import best_of, front_of

FOLDER = "figures"

MARK = {"linestyle": "", "markersize": 7}

COSTS = ("bytes", "seconds")
"""Units of what is spent: it stands on the axis across."""

WIDTH = 0.6
"""Of a column without a place on the axis, in which its rows stand beside each other; columns are 1 apart."""


def draw_study(study: Study, results: StudyResults, directory: Path) -> tuple[list[str], list[str]]:
    """Draw what has a meaning for these results into the study's directory.

    Returns:
        Names of the files, relative to the directory, and a line for each figure that could not be drawn.
    """
    names, undrawn = list[str](), list[str]()
    for stem, draw in _drawings(study, results, directory):
        try:
            with styled():
                figure = draw()
            (directory / FOLDER).mkdir(exist_ok=True)
            files = [f"{FOLDER}/{stem}.{kind}" for kind in ("png", "svg")]
            for name in files:
                save_figure(figure, directory / name)
            names += files
        except Exception as error:  # results of hours must not be lost for the picture of them
            undrawn.append(f"The figure {stem} could not be drawn: {' '.join(f'{error!r}'.split())}")
    return names, undrawn


def _drawings(study: Study, results: StudyResults, directory: Path) -> Iterator[tuple[str, Callable[[], Figure]]]:
    trials, scored = results.trials, any(trial.values for trial in results.trials)
    if study.kind == "benchmark":
        if scored:
            yield "accuracy-over-bytes", partial(draw_bytes, study, trials)
        return
    title = study.heading + (f" ({study.source})" if study.source else "")
    if study.figure.draw is not None and scored:
        yield study.name, partial(draw_paper, study, results, directory)
    for goal in study.goals if study.figure.x is not None else ():
        if any(goal.score in trial.values for trial in trials):
            yield (
                f"{goal.score.replace(':', '-')}-over-{study.figure.x}",
                partial(draw_curves, study, trials, goal, title),
            )
    for other in study.goals[1:]:
        if front_of(trials, pair := (study.goals[0], other)):
            stem = "trade-off" if len(study.goals) == 2 else f"trade-off-{other.score.replace(':', '-')}"
            yield stem, partial(draw_trade_off, study, trials, pair, title)


def axis_of(goal: Goal) -> str:
    """The label of a goal's axis."""
    unit = unit_of(goal.score)
    return f"{goal.score} ({AXES[unit][1]})" if unit else goal.score


def _value(trial: TrialResult, goal: Goal) -> MeanStd:
    return scaled(trial.values[goal.score].over_seeds(), AXES[unit_of(goal.score)][0])


def _text_of(key: Key) -> str:
    return "none" if key is None else value_text(json.loads(key), short=True)


def draw_curves(study: Study, trials: Sequence[TrialResult], goal: Goal, title: str) -> Figure:
    """Draw a goal over a parameter, a line for each value of another, with the spread over seeds as error bars."""
    layout = study.figure
    assert layout.x is not None
    scored = [trial for trial in trials if goal.score in trial.values]
    places = places_of(scored, (layout.panels, layout.lines, layout.x))
    continuous = is_continuous(study, layout.x)
    xs, scale = _positions(study, scored, layout.x)
    panels = []
    for panel in keys_of(study, trials, layout.panels):
        series = []
        for index, line in enumerate(keys_of(study, trials, layout.lines)):
            best = {x: best_of(places.get((panel, line, key), ()), [goal]) for key, x in xs.items()}
            points = [(x, _value(trial, goal)) for x, trial in best.items() if trial is not None]
            if points:
                style = line_style(index) | ({"linestyle": ""} if continuous else {})
                series.append(Series(None if layout.lines is None else _text_of(line), points, style))
        name = "" if layout.panels is None else f"{layout.panels}={_text_of(panel)}"
        ticks = None if continuous else {x: _text_of(key) for key, x in xs.items()}
        panels.append(Panel(series, name, layout.x, axis_of(goal), ticks, scale, legend={"title": layout.lines}))
    return draw_panels(panels, title)


def _positions(study: Study, trials: Sequence[TrialResult], name: str) -> tuple[dict[Key, float], dict[str, object]]:
    """Place the values of a parameter on an axis: numbers by their size, texts one after the other; and its scale."""
    present = {key_of(trial, name) for trial in trials}
    keys = [key for key in keys_of(study, trials, name) if key is not None and key in present]
    values = [json.loads(key) for key in keys]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return {key: float(place) for place, key in enumerate(keys)}, {}
    xs: dict[Key, float] = dict(sorted(zip(keys, map(float, values), strict=True), key=lambda pair: pair[1]))
    is_log = getattr(study.space.parameters[name], "log", None)
    return xs, {} if is_log is False else log_scale(list(xs.values()), always=bool(is_log))


def draw_trade_off(study: Study, trials: Sequence[TrialResult], goals: Sequence[Goal], title: str) -> Figure:
    """Draw the trials by two goals, and the Pareto front as steps: what can be had at most for so much of the other."""
    across, up = sorted(goals, key=lambda goal: (unit_of(goal.score) not in COSTS, goal.maximize))
    scored = [trial for trial in trials if all(goal.score in trial.values for goal in goals)]
    front = sorted(front_of(trials, goals), key=lambda trial: trial.values[across.score].mean)

    def points(members: Sequence[TrialResult]) -> list[tuple[float, MeanStd]]:
        return [(_value(trial, across).mean, _value(trial, up)) for trial in members]

    ends = [(x, MeanStd(y.mean, None, 1)) for x, y in points(front)]
    steps = {"color": "0.5", "drawstyle": "steps-pre" if across.maximize else "steps-post"}
    series, name = [Series("Pareto front", ends, steps)], study.figure.lines or study.table_axes[0]
    grouped = name if name is not None and not is_continuous(study, name) else None
    for index, key in enumerate(keys_of(study, scored, grouped)):
        members = [trial for trial in scored if key_of(trial, grouped) == key]
        style = line_style(index) | {"linestyle": ""}
        if members:
            series.append(Series("trials" if grouped is None else _text_of(key), points(members), style))
    notes = [(f"trial {trial.number}", x, y.mean) for trial, (x, y) in zip(front, points(front), strict=True)]
    spans = unit_of(across.score) in COSTS or across.score == EPSILON
    scale = log_scale([_value(trial, across).mean for trial in scored]) if spans else {}
    many = len(series) > MOST_BESIDE
    legend = None if many else BESIDE | {"title": grouped}
    panel = Panel(series, "", axis_of(across), axis_of(up), scale=scale, notes=notes, legend=legend)
    return draw_panels([panel], title, size=(9, 6.2) if many else (7, 4.4))


def draw_bytes(study: Study, trials: Sequence[TrialResult]) -> Figure:
    """Draw the score of each system over the bytes that all clients move; see `draw_systems`."""
    goal = study.goals[0]
    columns: dict[str, dict[str, tuple[float, MeanStd]]] = {trial.point[COLUMN]: {} for trial in trials}
    for trial in trials:
        if goal.score in trial.values:
            columns[trial.point[COLUMN]][trial.point[ROW]] = (trial.bytes / 1e6, _value(trial, goal))
    rows = dict.fromkeys(trial.point[ROW] for trial in trials if trial.point[ROW] != RANDOM)
    return draw_systems(columns, list(rows), axis_of(goal), study.heading)


def draw_systems(
    columns: Mapping[str, Mapping[str, tuple[float, MeanStd]]],
    rows: Sequence[str],
    y: str,
    title: str,
    legend: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw systems over the megabytes that all clients move, a panel for each column, all of one scale.

    A line stands at the random encoder.

    Args:
        columns: Column -> system -> megabytes and score, in the unit of the axis.
        rows: The systems, but the random encoder, in the order of their marks.
        y: Label of the axis of scores.
        title: Of the figure.
        legend: As in `Panel`.
    """
    panels = []
    for column, systems in columns.items():
        present = [row for row in rows if row in systems]
        places = dodged([systems[row][0] for row in present])
        series = [
            Series(row, [(x, systems[row][1])], MARK | mark_style(rows.index(row)))
            for row, x in zip(present, places, strict=True)
        ]
        level = (systems[RANDOM][1].mean, RANDOM.lower()) if RANDOM in systems else None
        panels.append(Panel(series, column, "MB that all clients send and receive", y, level=level, legend=legend))
    figure = draw_panels(panels, title, size=(3.6, 4.8))
    moved = [systems[row][0] for systems in columns.values() for row in rows if row in systems]
    for axes in figure.axes:
        scale_megabytes(axes, moved)
    return figure


def draw_paper(study: Study, results: StudyResults, directory: Path) -> Figure:
    """Draw what a paper's figure shows from the runs in `directory`."""
    cells = [trial for trial in results.trials if trial.values]
    title = f"{study.source} ({study.size} size)" if study.size else study.source
    if study.figure.draw == "lines":
        return draw_panels(_lines(study, cells), title)
    figure = Figure(figsize=(4.2 * len(cells), 4.6), layout="constrained")
    _tsne(figure, cells, directory, local=study.name == "fedca-figure3")
    figure.suptitle(title, fontsize=10)
    return figure


def _lines(study: Study, cells: Sequence[TrialResult]) -> list[Panel]:
    """A score over the columns' places, a panel for each of their groups; columns without places have marks alone."""
    measured = {cell.point[COLUMN] for cell in cells}
    columns, panels = {name: study.columns[name] for name in study.axes[COLUMN] if name in measured}, []
    for group in dict.fromkeys(column.panel for column in columns.values()):
        names = [name for name, column in columns.items() if column.panel == group]
        places = [columns[name].x for name in names]
        xs = {name: float(index) if x is None else x for index, (name, x) in enumerate(zip(names, places, strict=True))}
        series, rows, has_places = [], study.axes[ROW], None not in places
        for index, row in enumerate(rows):
            shift = 0.0 if has_places else WIDTH * ((index + 0.5) / len(rows) - 0.5)
            of_row = [
                (xs[name] + shift, cell)
                for cell in cells
                if cell.point[ROW] == row and (name := cell.point[COLUMN]) in xs
            ]
            placed = dict(sorted(of_row, key=itemgetter(0)))
            numbers = {x: cell.published for x, cell in placed.items() if not cell.unlike}
            published = {x: number for x, number in numbers.items() if number is not None}
            style, scale = line_style(index) | ({} if has_places else {"linestyle": ""}), scale_of(study.unit)
            points = [(x, scaled(cell.values[cell.score or ""].over_seeds(), scale)) for x, cell in placed.items()]
            series.append(Series(row, points, style, published))
        ticks = {x: f"{x:g}" if has_places else name for name, x in xs.items()}
        x, y = names[0].split("=")[0] if has_places else "", "accuracy (%)" if study.unit == "percent" else study.unit
        panels.append(Panel(series, group or "", x, y, ticks, log_scale(list(xs.values())) if has_places else {}))
    return panels


def _tsne(figure: Figure, cells: Sequence[TrialResult], directory: Path, *, local: bool) -> None:
    for number, cell in enumerate(cells):
        axes = figure.add_subplot(1, len(cells), number + 1)
        picture = embed(directory / cell.runs[0], local=local)
        for label, name in enumerate(picture.classes):
            points = picture.points[picture.labels == label]
            gray = picture.held is not None and label not in picture.held
            look: dict[str, Any] = {"color": "0.8" if gray else f"C{label % 10}", "zorder": 1 if gray else 2, "s": 5}
            axes.scatter(points[:, 0], points[:, 1], label=None if gray else name, **look)
        axes.set(title=cell.point[ROW], xticks=[], yticks=[])
        axes.legend(fontsize=6, ncols=5, loc="upper center", bbox_to_anchor=(0.5, 0), markerscale=2)
