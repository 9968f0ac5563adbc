"""What a page is made of; the template turns it into HTML."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from rayfed_ssl import formats
from rayfed_ssl.formats import MeanStd

MISSING = "–"

TEXTS: Mapping[str, Callable[[float], str]] = {
    "percent": formats.percent,
    "bytes": formats.size,
    "seconds": formats.duration,
    "": formats.number,
}
"""How a number is written, by its unit: a share in [0, 1], bytes, seconds, or none."""


@dataclass(frozen=True)
class PageCell:
    """What a cell shows, the number that it sorts by, and further lines in small print."""

    text: str
    value: float | None = None
    small: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: float | MeanStd | None, unit: Any = "") -> "PageCell":
        """Show a number in its unit (see `TEXTS`), or mean ± deviation and the number of runs."""
        if isinstance(value, MeanStd):
            return cls(value.text(unit, n=True), value.mean)
        return cls(MISSING) if value is None or not math.isfinite(value) else cls(TEXTS[unit](value), value)


@dataclass(frozen=True)
class PageTable:
    """A table that sorts by each of its columns, the first of which names the row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[PageCell, ...], ...]

    @classmethod
    def of(cls, caption: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> "PageTable":
        """Make a table from cells, text and numbers."""
        cells = [tuple(map(_cell, row)) for row in rows]
        assert all(len(row) == len(columns) for row in cells)
        return cls(caption, tuple(columns), tuple(cells))


def _cell(value: object) -> PageCell:
    match value:
        case PageCell():
            return value
        case int():
            return PageCell(f"{value:,}", value)
        case float() | None:
            return PageCell.of(value)
    return PageCell(str(value))


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


@dataclass(frozen=True)
class Card:
    """A number that matters, what it is, and what belongs to it."""

    title: str
    value: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PageSection:
    """A part of the page, with its address (`key`), tables that open on demand (`folded`) and parts of its own.

    The verdict comes first, then the notices, each in a box.
    """

    key: str
    title: str
    verdict: str = ""
    notices: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()
    text: tuple[str, ...] = ()
    figures: tuple[RenderedFigure, ...] = ()
    tables: tuple[PageTable, ...] = ()
    folded: tuple[PageTable, ...] = ()
    parts: tuple["PageSection", ...] = ()


@dataclass(frozen=True)
class Page:
    """The whole report, with the command that made it and what a reader has to know first."""

    title: str
    lead: str
    command: str
    notices: tuple[str, ...]
    sections: tuple[PageSection, ...]


def score_title(score: str) -> str:
    """Name a score so that last and best are never confused."""
    base, best = score.removesuffix("_best"), score.endswith("_best")
    title = {"knn": "kNN", "linear": "linear probe", "supervised": "supervised classifier"}.get(base, base)
    if base in ("knn", "supervised"):  # neither is trained for the score, so neither has epochs
        return title
    return f"{title}, {'best' if best else 'last'} epoch"
