"""Figures of a sweep as PNG and SVG: a score against a parameter as the papers draw it, and accuracy against bytes.

Those of the search are in `search_figures`. All have the style of the report: colors are Okabe and Ito's, and lines differ
in marker and dash as well. The same results give the same bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfed_ssl.reports.style import METHOD_STYLES, figure_bytes, styled
from rayfed_ssl.storage.filesystem import write_atomically
from tune.studies.definition.search_plan import BYTES, Goal
from tune.studies.definition.study import Study
from tune.studies.results.axes import (
    WIDE_RANGE,
    add_legend,
    axis_of,
    label_x_axis,
    plain_ticks,
    positions,
    scale_of,
    text_of,
    title_of,
)
from tune.studies.results.paper_figures import draw_paper
from tune.studies.results.results import StudyResults, TrialResult
from tune.studies.results.search_figures import Drawing, search_drawings
from tune.studies.results.system_figures import system_drawings
from tune.studies.results.table import Entry, Key, best_entry, is_continuous, key_of, keys_of, places_of
from tune.studies.results.trial_results import front_of

FOLDER = "figures"

ACROSS = 4
"""Panels beside each other."""

DASHES = ("-", "--", "-.", ":")


def draw_study(study: Study, results: StudyResults, directory: Path) -> tuple[list[str], list[str]]:
    """Draw what has a meaning for these results into the study's directory.

    Returns:
        Names of the files, relative to the directory, and a line for each figure that could not be drawn.
    """
    names, undrawn = list[str](), list[str]()
    for stem, draw in _drawings(study, results, directory):
        try:
            names += _save(draw, directory / FOLDER, stem)
        except Exception as error:  # results of hours must not be lost for the picture of them
            undrawn.append(f"The figure {stem} could not be drawn: {' '.join(f'{error!r}'.split())}")
    return names, undrawn


def _drawings(study: Study, results: StudyResults, directory: Path) -> Iterator[Drawing]:
    if study.kind == "benchmark":
        yield from system_drawings(results)
        return
    if study.figure.draw is not None and any(trial.values for trial in results.trials):
        yield study.name, partial(draw_paper, study, results, directory)
    yield from _own_drawings(study, results.trials)
    yield from search_drawings(study, results.trials, directory / "study.journal")


def _own_drawings(study: Study, trials: Sequence[TrialResult]) -> Iterator[Drawing]:
    if study.figure.x is not None:
        for goal in study.goals:
            if any(goal.score in trial.values for trial in trials):
                yield f"curve-{goal.score}", partial(draw_curves, study, trials, goal)
    if len(study.goals) == 2 and front_of(trials, study.goals):
        yield "trade-off", partial(draw_trade_off, study, trials)


def _save(draw: Callable[[], Figure], folder: Path, stem: str) -> list[str]:
    with styled():
        figure = draw()
    files = {f"{stem}.{kind}": figure_bytes(figure, kind) for kind in ("png", "svg")}
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return [f"{FOLDER}/{name}" for name in files]


def draw_curves(study: Study, trials: Sequence[TrialResult], goal: Goal) -> Figure:
    """Draw a goal over a parameter, a line for each value of another, with the spread over seeds as error bars."""
    layout = study.figure
    assert layout.x is not None
    panels = keys_of(study, trials, layout.panels)
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(max(6.0, 3.6 * across), 4.0 * down), layout="constrained")
    grid = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    places = places_of(study, trials, goal, (layout.panels, layout.lines, layout.x))
    best_entries = {place: best for place, entries in places.items() if (best := best_entry(entries, goal)) is not None}
    for index, axes in enumerate(grid):
        if index >= len(panels):
            axes.set_visible(False)
            continue
        of_panel = {place[1:]: entry for place, entry in best_entries.items() if place[0] == panels[index]}
        _curves(axes, study, trials, goal, of_panel)
        axes.set_title("" if layout.panels is None else f"{layout.panels}={text_of(panels[index])}", fontsize=10)
        axes.set_ylabel(axis_of(goal) if index % across == 0 else "")
    figure.suptitle(title_of(study), fontsize=10)
    return figure


def _curves(
    axes: Axes, study: Study, trials: Sequence[TrialResult], goal: Goal, best_entries: Mapping[tuple[Key, ...], Entry]
) -> None:
    """Draw the lines of one panel; `best_entries` has its entries by line and x."""
    layout = study.figure
    assert layout.x is not None
    scored = [trial for trial in trials if goal.score in trial.values]
    xs, lines = positions(study, scored, layout.x), keys_of(study, trials, layout.lines)
    dashes = [""] if is_continuous(study, layout.x) else DASHES
    for line, (color, marker), dash in zip(lines, cycle(METHOD_STYLES), cycle(dashes), strict=False):
        points = {place: best_entries[line, x] for x, place in xs.items() if (line, x) in best_entries}
        if points:
            means, spreads = _scaled(list(points.values()), goal)
            name = None if layout.lines is None else text_of(line)
            axes.errorbar(list(points), means, spreads, color=color, marker=marker, linestyle=dash,
                          label=name, capsize=3)  # fmt: skip
    label_x_axis(axes, study, layout.x, xs)
    if axes.get_legend_handles_labels()[1]:
        add_legend(axes, title=layout.lines)


def _scaled(entries: Sequence[Entry], goal: Goal) -> tuple[list[float], list[float]]:
    """Means and spreads in the unit of the axis."""
    values = [entry.value for entry in entries if entry.value is not None]
    return [scale_of(goal) * value.mean for value in values], [scale_of(goal) * (value.std or 0.0) for value in values]


def draw_trade_off(study: Study, trials: Sequence[TrialResult]) -> Figure:
    """Draw the trials by two goals, and the Pareto front as steps: what can be had at most for so much of the other."""
    across, up = sorted(study.goals, key=lambda goal: (goal.score not in BYTES, goal.maximize))
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.add_subplot()
    scored = [trial for trial in trials if all(goal.score in trial.values for goal in study.goals)]
    front = sorted(front_of(trials, study.goals), key=lambda trial: trial.values[across.score].mean)
    steps = [_scaled([Entry(trial, trial.values[goal.score]) for trial in front], goal)[0] for goal in (across, up)]
    axes.step(*steps, where="pre" if across.maximize else "post", color="0.5", label="Pareto front")
    groups, title = _grouped(study, scored)
    for (name, members), (color, marker) in zip(groups.items(), cycle(METHOD_STYLES), strict=False):
        (x, x_std), (y, y_std) = (_scaled([Entry(t, t.values[g.score]) for t in members], g) for g in (across, up))
        axes.errorbar(x, y, y_std, x_std, color=color, marker=marker, linestyle="", capsize=2, label=name)
    axes.margins(0.12)
    axes.set(xlabel=axis_of(across), ylabel=axis_of(up))
    least, most = (function(trial.values[across.score].mean for trial in scored) for function in (min, max))
    if across.score in BYTES and 0 < WIDE_RANGE * least <= most:
        axes.set_xscale("log")
        plain_ticks(axes, True)
    add_legend(axes, loc="center left", bbox_to_anchor=(1.02, 0.5), title=title)
    figure.suptitle(title_of(study), fontsize=10)
    for trial, x, y in zip(front, *steps, strict=True):
        axes.annotate(f"trial {trial.number}", (x, y), (5, 5), textcoords="offset points", fontsize=8)
    return figure


def _grouped(study: Study, trials: Sequence[TrialResult]) -> tuple[dict[str, list[TrialResult]], str | None]:
    """Sort trials by what tells a figure's lines or a table's rows apart, and name it."""
    name = study.figure.lines or study.table_rows
    if name is None or name not in study.space.names or is_continuous(study, name):
        return {"trials": list(trials)}, None
    keys = keys_of(study, trials, name)
    groups = {text_of(key): [trial for trial in trials if key_of(trial, name) == key] for key in keys}
    return {label: members for label, members in groups.items() if members}, name
