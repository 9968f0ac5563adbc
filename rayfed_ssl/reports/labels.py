"""Marks and labels of many systems in one figure: no two marks are alike, and no label covers another or a mark."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from rayfed_ssl.reports.figures import METHOD_STYLES

COLORS = (*(color for color, _ in METHOD_STYLES), "#E69F00")
SHAPES = "os^DvPX<>*pd"

FONT_SIZE = 8.0
REACH = 60
"""Steps of 4 points up to which a label is moved away from its mark."""

LINE: dict[str, Any] = {"arrowstyle": "-", "color": "#4d5966", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 4}
"""From a label to its point."""


def mark_style(index: int) -> dict[str, Any]:
    """Choose a color and a mark: 12 shapes, the next 12 hollow; no two of 84 are alike."""
    color, hollow = COLORS[index % len(COLORS)], index // len(SHAPES) % 2
    face = "none" if hollow else color
    return {"color": color, "marker": SHAPES[index % len(SHAPES)], "markerfacecolor": face, "markeredgewidth": 1.4}


@dataclass(frozen=True)
class Label:
    """A label of a point in the data's coordinates."""

    text: str
    x: float
    y: float


def label_points(axes: Axes, labels: Sequence[Label]) -> None:
    """Write each label beside its point; where that is covered, farther up or down with a line to the point.

    The limits and the size of the axes have to be final, but for what a layout engine does.
    """
    renderer = _settled(axes)
    pixels = axes.figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    places = [axes.transData.transform((label.x, label.y)) for label in labels]
    taken = [Bbox.from_bounds(x - 5 * pixels, y - 5 * pixels, 10 * pixels, 10 * pixels) for x, y in places]
    for label, (x, y) in sorted(zip(labels, places, strict=True), key=lambda pair: -pair[1][1]):
        probe = axes.text(0, 0, label.text, fontsize=FONT_SIZE)
        size = probe.get_window_extent(renderer)
        probe.remove()
        for dx, dy in _offsets():
            left = x + dx * pixels if dx > 0 else x + dx * pixels - size.width
            box = Bbox.from_bounds(left, y + dy * pixels - size.height / 2, size.width, size.height)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
        line = LINE | {"relpos": (0, 0.5) if dx > 0 else (1, 0.5)}
        note = axes.annotate(
            label.text,
            (label.x, label.y),
            (dx, dy),
            textcoords="offset points",
            fontsize=FONT_SIZE,
            ha="left" if dx > 0 else "right",
            va="center",
            arrowprops=line if dy else None,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
        note.set_in_layout(False)


def _offsets() -> Iterable[tuple[float, float]]:
    """Offsets in points, the nearest first."""
    for step in range(REACH):
        for sign in (1, -1) if step else (1,):
            for side in (1, -1):
                yield side * (7 if step < 2 else 16), 4 * sign * step


def label_ends(axes: Axes, labels: Sequence[Label]) -> None:
    """Write the labels in a column on the right of the axes, in the order of their heights, with lines to their points."""
    _settled(axes)
    low, high = axes.get_ylim()
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    heights = spread([label.y for label in labels], 1.25 * FONT_SIZE * (high - low) / height, high)
    for label, y in zip(labels, heights, strict=True):
        axes.annotate(
            label.text,
            (label.x, label.y),
            (1.04, y),
            textcoords=("axes fraction", "data"),
            fontsize=FONT_SIZE,
            va="center",
            annotation_clip=False,
            arrowprops=LINE | {"relpos": (0, 0.5)},
        )


def spread(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Move heights apart to at least the gap, in their order, and below the top."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = list(heights)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    limit = top
    for index in reversed(order):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - gap
    return moved


def _settled(axes: Axes) -> Any:
    """Do the layout, and give what measures texts."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    canvas: Any = FigureCanvasAgg(figure)
    return canvas.get_renderer()
