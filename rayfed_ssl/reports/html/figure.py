"""From a Matplotlib figure to the page: inline SVG in the page's own colors, and PNG and SVG files beside it.

Figures are drawn once, in colors for white paper. In the page's copy each of these colors is a CSS variable, so that the
page sets them again for a dark screen; text stays text. The same figure gives the same bytes.
"""

import base64
import html
import re
from pathlib import Path

from markupsafe import Markup

from rayfed_ssl.foreign.reading import read_bytes
from rayfed_ssl.reports.html.charts import Plot
from rayfed_ssl.reports.html.page import RenderedFigure
from rayfed_ssl.reports.style import COLORS, GRID, INK, MUTED, PAPER, clean, figure_bytes
from rayfed_ssl.storage.filesystem import write_atomically

VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "card"} | dict(
    zip(COLORS, ("blue", "vermillion", "green", "pink", "sky", "ink", "amber"), strict=True)
)
"""The CSS variable of each color."""


class FigureWriter:
    """Writes figures as PNG and SVG files into a folder, and gives what the page shows of them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._names: set[str] = set()

    def render(self, plot: Plot, part: str, origin: str) -> RenderedFigure:
        """Write a figure's files, whose names begin with the part; its caption names the origin."""
        name = self._name(f"{part}-{plot.key}")
        svg, png = (figure_bytes(plot.figure, kind) for kind in ("svg", "png"))
        svg = re.sub(rb"[ \t]+\n", b"\n", svg)
        write_atomically(self.folder / f"{name}.svg", svg)
        write_atomically(self.folder / f"{name}.png", png)
        wide = plot.figure.get_figwidth() > 5.2
        files = tuple(f"{self.folder.name}/{name}.{kind}" for kind in ("svg", "png"))
        picture = inline(svg.decode(), name, plot.alt)
        return RenderedFigure(plot.title, picture, plot.note, origin, plot.table, wide, files)

    def embed(self, path: Path, title: str, alt: str, origin: str) -> RenderedFigure:
        """Embed an existing SVG file as an image, and copy it with the PNG beside it, if there is one."""
        files = []
        for file in filter(Path.is_file, (path, path.with_suffix(".png"))):
            name = self._name(file.stem + file.suffix) + file.suffix
            write_atomically(self.folder / name, read_bytes(file))
            files.append(f"{self.folder.name}/{name}")
        content = read_bytes(path)
        encoded = base64.b64encode(content).decode()
        size = re.search(rb'<svg[^>]*? width="(\d{1,4}(?:\.\d{1,6})?)pt"', content)
        width = _width(float(size[1]) if size else 500)
        picture = f'<img class="paper" {width} alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{encoded}">'
        return RenderedFigure(title, Markup(picture), "", origin, None, True, tuple(files))

    def _name(self, wanted: str) -> str:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", wanted).strip("-").lower()[-80:].lstrip("-") or "figure"
        name, number = slug, 1
        while name in self._names:
            number += 1
            name = f"{slug}-{number}"
        self._names.add(name)
        return name


def _width(points: float) -> str:
    """Tell the page how wide a picture is on paper, so that its letters stay large enough to read."""
    return f'style="--inches: {points / 72:.1f}"'


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
    size = _width(float(box[1]))
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} {size} role="img" '
        f'aria-label="{html.escape(clean(alt))}">'
    )
    return Markup(opening + re.sub(r"\n\s*", "\n", body[len(root) :]).strip())


def _themed(style: str) -> str:
    style = re.sub(r"#[0-9a-f]{6}", lambda m: f"var(--{VARIABLES[m[0]]})" if m[0] in VARIABLES else m[0], style)
    return re.sub(r"(font: [^';]*?)'DejaVu Sans'[^;\"]*", r"\1system-ui, sans-serif", style)
