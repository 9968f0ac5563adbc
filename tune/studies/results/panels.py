"""How the figures of studies are drawn: panels of series, with scales, ticks and legends; hollow diamonds are published."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from rayfed_ssl.formats import MeanStd
from rayfed_ssl.reports.style import MUTED

ACROSS = 4
"""Panels beside each other."""

BESIDE = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}
"""Where a legend stands that has many names."""

MOST_BESIDE = 14
"""Names above which a legend is higher than its panel, and stands below it."""

WIDE_RANGE = 8
"""Numbers that span such a factor stand on a logarithmic axis."""

LETTERS = 30
"""Letters of tick labels that fit beside each other under a panel."""


@dataclass
class Series:
    """A line, or marks, of a panel.

    Attributes:
        style: Settings of Matplotlib: color, marker, linestyle and the like.
        points: Places on the x axis, with mean and deviation over seeds in the unit of the axis.
        published: Place on the x axis -> published number.
    """

    label: str | None
    points: Sequence[tuple[float, MeanStd]]
    style: dict[str, Any]
    published: Mapping[float, float] = field(default_factory=dict)


@dataclass
class Panel:
    """A part of a figure.

    Attributes:
        ticks: Place on the x axis -> text; None leaves the ticks to Matplotlib.
        scale: Settings of a logarithmic x axis; empty for a linear one.
        level: A horizontal line, with its name in the legend.
        notes: Texts beside points.
        legend: Where the legend stands, in settings of Matplotlib; None for one legend under all panels.
    """

    series: Sequence[Series]
    title: str = ""
    x: str = ""
    y: str = ""
    ticks: Mapping[float, str] | None = None
    scale: Mapping[str, Any] = field(default_factory=dict)
    level: tuple[float, str] | None = None
    notes: Sequence[tuple[str, float, float]] = ()
    legend: Mapping[str, Any] | None = field(default_factory=dict)


def scaled(value: MeanStd, scale: float) -> MeanStd:
    """Write a score in the unit of an axis."""
    return MeanStd(scale * value.mean, None if value.std is None else scale * value.std, value.n)


def log_scale(values: Sequence[float], *, always: bool = False) -> dict[str, Any]:
    """Choose a logarithmic axis for values that span much, linear around zero where that is among them."""
    positive = sorted(value for value in values if value > 0)
    wide = len(positive) > 2 and min(values) >= 0 and positive[-1] >= WIDE_RANGE * positive[0]
    if not (always or wide):
        return {}
    return {"value": "symlog", "linthresh": positive[0]} if len(positive) < len(values) else {"value": "log"}


def draw_panels(
    panels: Sequence[Panel], title: str, *, across: int = ACROSS, size: tuple[float, float] = (3.6, 4.0)
) -> Figure:
    """Draw panels, `across` beside each other at most, each of a size in inches."""
    across = min(len(panels), across)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(max(6.0, size[0] * across), size[1] * down), layout="constrained")
    grid = figure.subplots(down, across, sharey="row", squeeze=False).ravel()
    for index, axes in enumerate(grid):
        if index < len(panels):
            _draw(axes, panels[index], first=index % across == 0)
        else:
            axes.set_visible(False)
    figure.suptitle(title, fontsize=10)
    entries = {
        label: mark
        for axes, panel in zip(grid, panels, strict=False)
        for label, mark in _entries(axes).items()
        if panel.legend is None
    }
    if entries:
        columns = max(int(15 * figure.get_figwidth() / (max(map(len, entries)) + 8)), 1)
        figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _entries(axes: Axes) -> dict[str, Any]:
    """Find names and marks for a legend: lines and marks as they are drawn, without the bars of their errors."""
    handles, labels = axes.get_legend_handles_labels()
    marks = [handle[0] if isinstance(handle, ErrorbarContainer) else handle for handle in handles]
    return dict(zip(labels, marks, strict=True))


def _draw(axes: Axes, panel: Panel, *, first: bool) -> None:
    for series in panel.series:
        xs, points = [x for x, _ in series.points], [point for _, point in series.points]
        spreads = [point.std or 0.0 for point in points] if any(point.std is not None for point in points) else None
        bars: dict[str, Any] = {"yerr": spreads, "capsize": 3, "elinewidth": 1}
        axes.errorbar(xs, [point.mean for point in points], **bars, label=series.label, **series.style)
        hollow: dict[str, Any] = {
            "color": series.style["color"],
            "markerfacecolor": "none",
            "markersize": 9,
            "linestyle": "",
        }
        axes.plot(list(series.published), list(series.published.values()), marker="D", **hollow)
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y if first else "")
    if panel.level is not None:
        axes.axhline(panel.level[0], color=MUTED, linestyle=":", linewidth=1, label=panel.level[1])
    for text, x, y in panel.notes:
        axes.annotate(text, (x, y), (5, 5), textcoords="offset points", fontsize=8)
    if panel.scale:
        axes.set_xscale(**panel.scale)
    if panel.ticks is None:
        _plain_ticks(axes)
    else:
        slanted: Any = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        texts = list(panel.ticks.values())
        axes.set_xticks(list(panel.ticks), texts, **(slanted if len(" ".join(texts)) > LETTERS else {}))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(0.12 if panel.scale else 0.05, 0.08)
    if panel.legend is not None and (entries := _entries(axes)):
        axes.legend(entries.values(), entries, fontsize=8, title_fontsize=8, **panel.legend)


def _plain_ticks(axes: Axes) -> None:
    """Write numbers on the x axis without powers of ten; few orders of magnitude have more of them."""
    if axes.get_xscale() == "log":
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if math.log10(high / low) < 2 else (1,)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
