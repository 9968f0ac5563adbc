"""From a Matplotlib figure to the page: inline SVG in the page's own colors, and PNG and SVG files beside it.

Figures are drawn once, in colors for white paper. In the page's copy each of these colors is a CSS variable, so that the
page sets them again for a dark screen; text stays text. The same figure gives the same bytes.
"""

import base64
import html
import io
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfed_ssl.reports.figures import BLUE, GREEN, METHOD_STYLES, ORANGE
from rayfed_ssl.reports.html.tables import PageTable
from rayfed_ssl.reports.labels import SHAPES

INK, MUTED, GRID, PAPER = "#1b2530", "#4d5966", "#d9dee3", "#ffffff"
PINK, SKY, BLACK = (color for color, _ in METHOD_STYLES[3:])
AMBER = "#E69F00"

SERIES = (*METHOD_STYLES, (AMBER, "X"))
DASHES = ("-", "--", "-.", ":")

VARIABLES: Mapping[str, str] = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    "#dddddd": "grid",
    PAPER: "card",
    BLUE: "blue",
    ORANGE: "vermillion",
    GREEN: "green",
    PINK: "pink",
    SKY: "sky",
    BLACK: "ink",
    AMBER: "amber",
}

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


WIDTH, HEIGHT = 4.2, 3.1
"""Inches of a figure: at the width of a phone its letters can still be read."""


def new_axes(*, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Begin a figure of one panel."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend under the axes, where labels of any length fit."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = 1 if max(map(len, labels)) > 24 or len(labels) < 2 else 2
        figure.legend(handles, labels, loc="outside lower left", ncols=columns)


def line_style(index: int) -> dict[str, Any]:
    """Choose color, marker and dash of a series; together they never repeat."""
    color, marker = SERIES[index % len(SERIES)][0], SHAPES[index % len(SHAPES)]
    return {"color": color, "marker": marker, "linestyle": DASHES[index // len(SERIES) % len(DASHES)]}


@dataclass(frozen=True)
class Plot:
    """A figure that is to be drawn: `key` names its files, `alt` is its text alternative, `table` holds its numbers."""

    key: str
    title: str
    alt: str
    draw: Callable[[], Figure]
    table: PageTable | None = None
    note: str = ""


@dataclass(frozen=True)
class RenderedFigure:
    """A figure in the page."""

    title: str
    svg: Markup
    note: str
    origin: str
    table: PageTable | None
    wide: bool
    files: tuple[str, ...]


SAMPLES = re.compile(r"-(views|neighbors)(-\d+)?\.(svg|png)$")
"""Names of the files that show samples."""


class FigureWriter:
    """Draws figures and writes their PNG and SVG files into a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._names: set[str] = set()

    def render(self, plot: Plot, part: str, origin: str) -> RenderedFigure:
        """Draw a figure; its files' names begin with the part, and its caption names the origin."""
        name = self._name(f"{part}-{plot.key}")
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's own fonts may have it
            figure = plot.draw()
            svg = re.sub(r"[ \t]+\n", "\n", _saved(figure, "svg", {"Date": None, "Creator": None}).decode())
            png = _saved(figure, "png", {"Software": None})
        (self.folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        (self.folder / f"{name}.png").write_bytes(png)
        wide = figure.get_figwidth() > 5.2
        files = tuple(f"{self.folder.name}/{name}.{kind}" for kind in ("svg", "png"))
        return RenderedFigure(plot.title, inline(svg, name, plot.alt), plot.note, origin, plot.table, wide, files)

    def embed(self, path: Path, title: str, alt: str, origin: str) -> RenderedFigure:
        """Embed an existing SVG file as an image, and copy it with the PNG beside it, if there is one."""
        files = []
        for file in filter(Path.is_file, (path, path.with_suffix(".png"))):
            name = self._name(file.stem + file.suffix) + file.suffix
            shutil.copyfile(file, self.folder / name)
            files.append(f"{self.folder.name}/{name}")
        encoded = base64.b64encode(path.read_bytes()).decode()
        picture = f'<img class="paper" alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{encoded}">'
        return RenderedFigure(title, Markup(picture), "", origin, None, True, tuple(files))

    def discard_samples(self) -> None:
        """Remove the files with samples that earlier reports have drawn, of whichever run."""
        for file in self.folder.iterdir():
            if SAMPLES.search(file.name):
                file.unlink()

    def _name(self, wanted: str) -> str:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", wanted).strip("-").lower()[-80:].lstrip("-") or "figure"
        name, number = slug, 1
        while name in self._names:
            number += 1
            name = f"{slug}-{number}"
        self._names.add(name)
        return name


def clean(text: str) -> str:
    """Make text that a figure can hold: no control characters, nothing that hides it from a legend."""
    printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return f" {printable}" if printable.startswith("_") else printable


def _saved(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=150, facecolor=PAPER, bbox_inches="tight", pad_inches=0.05, metadata=metadata)
    return out.getvalue()


def inline(svg: str, name: str, alt: str) -> Markup:
    """Turn an SVG file into a part of the page: own ids, the page's colors and fonts, a text alternative."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'(url\(|xlink:href=")#', rf"\1#{name}-", body)
    body = re.sub(r'style="[^"]*"', lambda match: _themed(match[0]), body)
    root = body[: body.index(">") + 1]
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', root)
    assert box is not None, "Matplotlib writes a view box"
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" '
        f'aria-label="{html.escape(clean(alt))}">'
    )
    return Markup(opening + re.sub(r"\n\s*", "\n", body[len(root) :]).strip())


_THEMED = {color.lower(): name for color, name in VARIABLES.items()}


def _themed(style: str) -> str:
    style = re.sub(r"#[0-9a-f]{6}", lambda m: f"var(--{_THEMED[m[0]]})" if m[0] in _THEMED else m[0], style)
    return re.sub(r"(font: [^';]*?)'DejaVu Sans'[^;\"]*", r"\1system-ui, sans-serif", style)
