"""Tables and numbers as the report shows them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rayfed_ssl import formats
from rayfed_ssl.formats import MeanStd, Unit
from rayfed_ssl.reports.summary import Summary

MISSING = "–"


@dataclass(frozen=True)
class PageCell:
    """What a cell shows, the number that it sorts by, and further lines in small print."""

    text: str
    value: float | None = None
    small: tuple[str, ...] = ()

    @classmethod
    def percent(cls, share: float | None) -> "PageCell":
        """Show a share in [0, 1] in percent."""
        return cls(formats.percent(share, MISSING), share)

    @classmethod
    def number(cls, value: float | None, unit: str = "") -> "PageCell":
        """Show a number to four digits."""
        text = formats.number(value, unit, MISSING)
        return cls(text, None if text == MISSING else value)

    @classmethod
    def size(cls, num_bytes: float) -> "PageCell":
        """Show bytes in the unit that fits."""
        return cls(formats.size(num_bytes), num_bytes)

    @classmethod
    def duration(cls, seconds: float) -> "PageCell":
        """Show seconds in the unit that fits."""
        return cls(formats.duration(seconds), seconds)

    @classmethod
    def mean_std(cls, value: MeanStd | None, unit: Unit = "percent") -> "PageCell":
        """Show mean ± deviation and the number of runs."""
        return cls(MISSING) if value is None else cls(value.text(unit, n=True), value.mean)


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
            return PageCell.number(value)
    return PageCell(str(value))


def score_title(score: str) -> str:
    """Name a score so that last and best are never confused."""
    base, best = score.removesuffix("_best"), score.endswith("_best")
    title = {"knn": "kNN", "linear": "linear probe", "supervised": "supervised classifier"}.get(base, base)
    if base in ("knn", "supervised"):  # neither is trained for the score, so neither has epochs
        return title
    return f"{title}, {'best' if best else 'last'} epoch"


def scores_table(summary: Summary) -> PageTable:
    """Show a run's final scores, an encoder a row, and their mean and minimum over clients."""
    scores = summary.scores
    names = list(dict.fromkeys(name for metrics in scores.values() for name in metrics))
    rows = [
        [encoder, summary.architecture(encoder), *(PageCell.percent(metrics.get(name)) for name in names)]
        for encoder, metrics in scores.items()
    ]
    local = [metrics for encoder, metrics in scores.items() if encoder != "global"]
    if len(local) > 1:
        columns = [[metrics[name] for metrics in local if name in metrics] for name in names]
        rows.append(["mean of clients", "", *(PageCell.percent(fmean(v) if v else None) for v in columns)])
        rows.append(["minimum of clients", "", *(PageCell.percent(min(v, default=None)) for v in columns)])
    caption = f"Scores of each encoder after round {summary.rounds}"
    return PageTable.of(caption, ["encoder", "model", *map(score_title, names)], rows)


def yaml_text(value: Any) -> str:
    """Show a setting as it is written in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(yaml_text, value)) + "]"
    return str(value)
