"""The one style of all figures: colors, marks, dashes, hatches, Matplotlib's settings, and files of the same bytes.

Colors are Okabe and Ito's, which color-blind readers tell apart; series differ in marker and dash or hatch as well.
"""

import io
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.storage.filesystem import write_atomically

BLUE, ORANGE, GREEN, PINK, SKY, BLACK, AMBER = COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000", "#e69f00"),
)
INK, MUTED, GRID, PAPER = "#1b2530", "#4d5966", "#d9dee3", "#ffffff"

MARKERS = "os^DvPX<>*pd"
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "////", "..", "xx", "\\\\\\\\", "++")

AXES: dict[str, tuple[float, str]] = {
    "percent": (100, "%"),
    "bytes": (1e-6, "MB"),
    "seconds": (1 / 3600, "hours"),
    "": (1, "number"),
}
"""What numbers of a unit are multiplied by, and the label of their axis."""

WIDTH, HEIGHT = 4.2, 3.1
"""Inches of a figure: at the width of a phone its letters can still be read."""

STYLE: Any = {
    "font.size": 10,
    "text.parse_math": False,  # a run may be called anything, "$x" included
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "rayfed-ssl",
}

METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}
"""What Matplotlib would write that differs from day to day, by kind of file."""


def styled() -> AbstractContextManager[None]:
    """Set the style for the figures that are made within."""
    return matplotlib.rc_context(STYLE)


def new_axes(*, width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Begin a figure of one panel, of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def legend_below(figure: Figure, axes: Axes, columns: int = 2, **settings: Any) -> None:
    """Put the legend under the axes, where labels of any length fit."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = 1 if max(map(len, labels)) > 24 else min(columns, len(labels))
        figure.legend(handles, labels, loc="outside lower left", ncols=columns, **settings)


EQUAL = 0.002
"""Numbers whose spread is less than this share of the largest are drawn as equal: an axis does not enlarge it."""


def dodged(values: Sequence[float]) -> list[float]:
    """Move equal numbers beside each other, so that marks do not hide each other."""
    moved = list[float]()
    for index, value in enumerate(values):
        alike = [place for place, other in enumerate(values) if abs(other - value) <= EQUAL * max(values)]
        moved.append(value * (1 + 0.03 * (alike.index(index) - (len(alike) - 1) / 2)))
    return moved


def scale_megabytes(axes: Axes, values: Sequence[float], linthresh: float = 1.0) -> None:
    """Scale an x axis of megabytes: logarithmic where they span much, one tick where all are equal."""
    if not values:
        return
    if len(set(values)) == 1:
        axes.set_xticks(values[:1], [f"{values[0]:.4g}"])
    else:
        if max(values) >= 8 * min(values):
            axes.set_xscale("symlog", linthresh=linthresh, linscale=0.4)
        elif max(values) - min(values) <= EQUAL * max(values):
            axes.set_xlim(0, 1.2 * max(values))
        axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(0.12, 0.1)


def line_style(index: int) -> dict[str, Any]:
    """Choose color, marker and dash of a series; together they do not repeat."""
    dash = DASHES[index // len(COLORS) % len(DASHES)]
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)], "linestyle": dash}


def mark_style(index: int) -> dict[str, Any]:
    """Choose a color and a mark: 12 shapes, the next 12 hollow; no two of 84 are alike."""
    color, hollow = COLORS[index % len(COLORS)], index // len(MARKERS) % 2
    face = "none" if hollow else color
    return {"color": color, "marker": MARKERS[index % len(MARKERS)], "markerfacecolor": face, "markeredgewidth": 1.4}


def bar_style(index: int) -> dict[str, Any]:
    """Choose color and hatch of a series of bars."""
    return {"color": COLORS[index % len(COLORS)], "hatch": HATCHES[index % len(HATCHES)], "edgecolor": PAPER}


def clean(text: str) -> str:
    """Make text that a figure can hold: no control characters, nothing that hides it from a legend."""
    printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return f" {printable}" if printable.startswith("_") else printable


def figure_bytes(figure: Figure, kind: str) -> bytes:
    """Write a figure as "png", "svg" or "pdf"; the same figure gives the same bytes."""
    out = io.BytesIO()
    with styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # who looks at the file may have the font
        figure.savefig(out, format=kind, dpi=150, bbox_inches="tight", pad_inches=0.05, metadata=METADATA[kind])
    return out.getvalue()


def save_figure(figure: Figure, out: Path) -> Path:
    """Write a figure; raises ConfigError for an unknown suffix."""
    kind = out.suffix.lower().removeprefix(".")
    if kind not in METADATA:
        raise ConfigError(f"a picture's name ends in .png, .svg or .pdf, got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, figure_bytes(figure, kind))
    return out
