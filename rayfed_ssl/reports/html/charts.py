"""Lines, bars and heatmaps: each makes the drawing of its numbers and, from the same numbers, the table below it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl.formats import Unit
from rayfed_ssl.reports.figures import Line, draw_lines
from rayfed_ssl.reports.style import AXES, HEIGHT, INK, WIDTH, bar_style, clean, legend_below, new_axes
from rayfed_ssl.reports.table import Cell, Table

BANDS = (("minimum", "maximum"), ("lower quartile", "upper quartile"))
"""Headings of the ends of a line's bands."""


@dataclass(frozen=True)
class Plot:
    """A figure of the page: `key` names its files, `alt` is its text alternative, `table` holds its numbers."""

    key: str
    title: str
    alt: str
    figure: Figure
    table: Table | None = None
    note: str = ""


def line_plot(key: str, title: str, y: str, lines: Sequence[Line], note: str = "") -> Plot:
    """Draw lines over rounds."""
    figure, axes = new_axes(height=HEIGHT + 0.19 * max(len(lines) - 2, 0))
    draw_lines(axes, lines)
    axes.set(xlabel="round", ylabel=clean(y))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if len(lines) > 1:
        legend_below(figure, axes)
    series: dict[str, Mapping[float, float]] = {}
    for line in lines:
        series[line.label] = line.values
        for band, headings in zip(line.bands, BANDS, strict=False):
            for end, heading in enumerate(headings):
                series[f"{line.label}, {heading}"] = {x: ends[end] for x, ends in band.items()}
    rounds = sorted({x for values in series.values() for x in values})
    rows = [[round, *(values.get(round) for values in series.values())] for round in rounds]
    alt = f"Line chart: {y} over {len(rounds)} rounds. The numbers are in the table below."
    return Plot(key, title, alt, figure, Table.of(title, ["round", *series], rows), note)


def bar_plot(
    key: str,
    title: str,
    row: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: Unit,
    note: str = "",
) -> Plot:
    """Draw horizontal bars, those of all series beside each other at each label; None has no bar.

    `row` is the heading of the labels, and `unit` "percent", "bytes" or "" for numbers.
    """
    scale, axis = AXES[unit]
    figure, axes = new_axes(height=min(1.4 + (0.25 + 0.12 * len(series)) * len(labels), 9))
    thickness = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        shift = (index - (len(series) - 1) / 2) * thickness
        lengths = {place + shift: scale * value for place, value in enumerate(values) if value is not None}
        bars = axes.barh(list(lengths), list(lengths.values()), thickness, label=name, **bar_style(index))
        if unit == "bytes":
            axes.bar_label(bars, fmt="{:.3g}", padding=3, color=INK, fontsize=8)
            axes.margins(x=0.14)
    axes.set_yticks(range(len(labels)), [fill(clean(label), 24) for label in labels])
    axes.invert_yaxis()
    axes.set(xlabel=axis)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(visible=False, axis="y")
    legend_below(figure, axes)
    cells = [[Cell.of(value, unit) for value in values] for values in zip(*series.values(), strict=True)]
    table = Table.of(title, [row, *series], [[label, *values] for label, values in zip(labels, cells, strict=True)])
    alt = f"Bar chart: {', '.join(series)} by {row}, {len(labels)} rows. The numbers are in the table below."
    return Plot(key, title, alt, figure, table, note)


MOST_PICTURES = 8
"""Pictures beside each other."""


def pictures_plot(key: str, title: str, what: str, rows: Mapping[str, np.ndarray], note: str) -> Plot:
    """Draw the first pictures of each row, uint8 [M, C, H, W], one row above the other; `what` says of what they are."""
    height = next(iter(rows.values())).shape[2]
    number = min(MOST_PICTURES, *map(len, rows.values()))
    figure, axes = new_axes(height=WIDTH * len(rows) / number + 0.2)
    strips = [np.concatenate(list(row[:number]), axis=2) for row in rows.values()]
    picture = np.concatenate(strips, axis=1).transpose(1, 2, 0)
    axes.imshow(picture.squeeze(2) if picture.shape[2] == 1 else picture, cmap="gray", vmin=0, vmax=255)
    axes.set_yticks([height * (place + 0.5) for place in range(len(rows))], list(rows))
    axes.set_xticks([])
    axes.grid(visible=False)
    return Plot(key, title, f"{number} {what}", figure, None, note)


def heatmap(
    values: np.ndarray, *, label: str, low: float | None, high: float | None, ticks: Sequence[tuple[float, str]]
) -> Figure:
    """Draw a matrix [n, n]; NaN stays empty. The color scale is from low to high; None takes the values' own ends."""
    figure, axes = new_axes(height=WIDTH - 0.6)
    # A scale that looks the same to color-blind readers, and grows lighter all the way.
    image: Any = axes.imshow(values, cmap="cividis", vmin=low, vmax=high, interpolation="none")
    positions, names = [position for position, _ in ticks], [clean(name) for _, name in ticks]
    axes.set_xticks(positions, names, rotation=90 if max(map(len, names), default=0) > 2 else 0)
    axes.set_yticks(positions, names)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label=clean(label), shrink=0.85)
    for row, column in np.argwhere(np.isfinite(values)) if len(values) <= 8 else ():
        value = values[row, column]
        color = "#fefefe" if image.norm(value) < 0.5 else "#010101"
        axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=8, color=color)
    return figure
