"""Figures of rows beside a baseline: a score over bytes, and kNN over local epochs, with a mark for each system."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfed_ssl.reports.style import MUTED, mark_style
from tune.studies.results.axes import add_legend
from tune.studies.results.results import StudyResults, System
from tune.studies.results.systems import RANDOM


def system_drawings(results: StudyResults) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Give the figures by the names of their files, a panel for each column."""
    yield "accuracy-over-bytes", partial(_figure, results, _draw_bytes)
    yield "knn-over-epochs", partial(_figure, results, _draw_curves)


def _figure(results: StudyResults, draw: Callable[[Axes, StudyResults, str], None]) -> Figure:
    columns = list(dict.fromkeys(system.column for system in results.systems))
    figure = Figure(figsize=(6.6, 5.2 * len(columns)), layout="constrained")
    panels = figure.subplots(len(columns), 1, squeeze=False)[:, 0]
    for axes, column in zip(panels, columns, strict=True):
        axes.set_title(column)
        _draw_random(axes, results, column, _score(results) if draw is _draw_bytes else "knn")
        draw(axes, results, column)
        add_legend(axes, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def _score(results: StudyResults) -> str:
    return results.layout["score"] or "linear"


def _systems(results: StudyResults, column: str) -> list[tuple[int, System]]:
    """Each system in a column, with its place in the order of all systems, which chooses its mark."""
    names = [name for name in dict.fromkeys(row.row for row in results.systems) if name != RANDOM]
    return [(names.index(row.row), row) for row in results.systems if row.column == column and row.row != RANDOM]


def _draw_random(axes: Axes, results: StudyResults, column: str, score: str) -> None:
    for row in results.systems:
        if (row.column, row.row) == (column, RANDOM) and (mean := row.mean(score)) is not None:
            axes.axhline(100 * mean.mean, color=MUTED, linestyle=":", linewidth=1, label="random encoder")


def _draw_bytes(axes: Axes, results: StudyResults, column: str) -> None:
    bars: dict[str, Any] = {"linestyle": "", "capsize": 2, "elinewidth": 1, "markersize": 7}
    for index, row in _systems(results, column):
        if (mean := row.mean(_score(results))) is not None:
            moved, spread = fmean(run.bytes for run in row.runs) / 1e6, None if mean.std is None else 100 * mean.std
            axes.errorbar(moved, 100 * mean.mean, yerr=spread, label=row.row, **bars, **mark_style(index))
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.xaxis.set_major_formatter("{x:g}")  # the report writes no powers of ten
    axes.margins(0.12, 0.08)
    axes.set(xlabel="MB that all clients send and receive", ylabel=f"{_score(results)} (%)")


def _draw_curves(axes: Axes, results: StudyResults, column: str) -> None:
    for index, row in _systems(results, column):
        if curve := row.knn_curve():
            knn = [100 * value for value in curve.values()]
            axes.plot(list(curve), knn, linewidth=1, markersize=6, label=row.row, **mark_style(index))
    axes.set(xlabel="local epochs", ylabel="kNN (%)")
    axes.margins(0.03, 0.06)
