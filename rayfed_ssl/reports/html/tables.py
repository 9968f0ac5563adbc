"""Tables and numbers as the report shows them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayfed_ssl.method import Metrics


@dataclass(frozen=True)
class Cell:
    """What a cell shows, the number that it sorts by, and further lines in small print."""

    text: str
    value: float | None = None
    small: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table that sorts by each of its columns.

    Attributes:
        caption: What it holds.
        columns: Headings; the first column names the row.
        rows: Cells, as many as columns each.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, caption: str, columns: Sequence[str], rows: Sequence[Sequence["Cell | str"]]) -> "Table":
        """Make a table from cells and plain text."""
        cells = [tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows]
        assert all(len(row) == len(columns) for row in cells)
        return cls(caption, tuple(columns), tuple(cells))


def count(value: int | None) -> Cell:
    """Show a whole number."""
    return Cell("–") if value is None else Cell(f"{value:,}", value)


def percent(value: float | None) -> Cell:
    """Show an accuracy in [0, 1] in percent."""
    return Cell("–") if value is None else Cell(f"{100 * value:.2f}%", value)


def number(value: float | None, unit: str = "") -> Cell:
    """Show a number to four digits."""
    if value is None or not math.isfinite(value):
        return Cell("–")
    return Cell(f"{value:.4g}{unit}", value)


def size(value: float) -> Cell:
    """Show bytes in the unit that fits; megabytes are 10^6 bytes, as in the papers."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return Cell(f"{value / factor:.2f} {unit}", value)
    return Cell(f"{value:.0f} B", value)


def duration(value: float) -> Cell:
    """Show seconds in the unit that fits."""
    if value < 120:
        return Cell(f"{value:.1f} s", value)
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return Cell(f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s", value)


def score_title(score: str) -> str:
    """Name a score so that last and best are never confused."""
    base, best = score.removesuffix("_best"), score.endswith("_best")
    title = {"knn": "kNN", "linear": "linear probe", "supervised": "supervised classifier"}.get(base, base)
    if base in ("knn", "supervised"):  # neither is trained for the score, so neither has epochs
        return title
    return f"{title}, {'best' if best else 'last'} epoch"


def scores_table(scores: Mapping[str, Metrics], architecture: Mapping[str, str], round: int) -> Table:
    """Show a run's final scores, an encoder a row, and their mean and minimum over clients."""
    names = list(dict.fromkeys(name for metrics in scores.values() for name in metrics))
    rows = [
        [Cell(encoder), Cell(architecture[encoder]), *(percent(metrics.get(name)) for name in names)]
        for encoder, metrics in scores.items()
    ]
    local = [metrics for encoder, metrics in scores.items() if encoder != "global"]
    if len(local) > 1:
        for label, function in (("mean of clients", lambda v: sum(v) / len(v)), ("minimum of clients", min)):
            found = [[metrics[name] for metrics in local if name in metrics] for name in names]
            rows.append([Cell(label), Cell(""), *(percent(function(v) if v else None) for v in found)])
    return Table.of(f"Scores of each encoder after round {round}", ["encoder", "model", *map(score_title, names)], rows)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a configuration to dotted keys, as they are set on the command line."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def plain(value: Any) -> str:
    """Show a setting as it is written in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(plain, value)) + "]"
    return str(value)
