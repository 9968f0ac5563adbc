"""Diagnostics as tables for the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tune.tables import plain_console, plain_table

WIDEST = 12
"""Rows of a matrix that are printed; larger ones are in the file alone."""


def print_diagnosis(found: Mapping[str, Any], path: Path) -> None:
    """Print what `rayfed_ssl.reports.diagnose` found."""
    out = plain_console()
    out.print(_encoders(found))
    for matrix in found["matrices"].values():
        out.print()
        out.print(_matrix(matrix) if len(matrix["encoders"]) <= WIDEST else _range(matrix))
    if found["false_negatives"] is not None:
        out.print()
        out.print(_false_negatives(found["false_negatives"]))
    out.print()
    for note in found["notes"]:
        out.print(f"note: {note}", soft_wrap=True)
    out.print(f"file: {path}", soft_wrap=True)


def _encoders(found: Mapping[str, Any]) -> Table:
    columns = ("architecture", "width", "feature_std", "effective_rank", "alignment", "uniformity")
    shown = plain_table(
        "encoder",
        *(column.replace("_", " ") for column in columns),
        title=f"round {found['round']}, {found['samples']} test images without labels",
    )
    for name, numbers in found["encoders"].items():
        shown.add_row(name, *(_cell(numbers.get(column)) for column in columns))
    return shown


def _matrix(matrix: Mapping[str, Any]) -> Table:
    unit = f" ({matrix['unit']})" if matrix["unit"] else ""
    shown = plain_table("", *matrix["encoders"], title=f"{matrix['title']}{unit}")
    for name, values in zip(matrix["encoders"], matrix["values"], strict=True):
        shown.add_row(name, *map(_cell, values))
    return shown


def _range(matrix: Mapping[str, Any]) -> Table:
    values = [value for i, row in enumerate(matrix["values"]) for value in row[:i] if value is not None]
    shown = plain_table(f"{matrix['title']}, {len(matrix['encoders'])} encoders", "minimum", "mean", "maximum")
    shown.add_row("", _cell(min(values)), _cell(sum(values) / len(values)), _cell(max(values)))
    return shown


def _false_negatives(ratios: Mapping[str, Any]) -> Table:
    shown = plain_table(
        "client", "own negatives", "own and others'", "others'", title="false negatives, from the partition's labels"
    )
    remote: Sequence[float | None] = ratios["remote"] or [None] * len(ratios["clients"])
    for client, *values in zip(ratios["clients"], ratios["local"], ratios["fused"], remote, strict=True):
        shown.add_row(str(client), *("-" if value is None else f"{100 * value:.1f}%" for value in values))
    return shown


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.4g}"
