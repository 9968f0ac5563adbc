"""Diagnostics as tables for the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from tune.cli.tables import plain_console, plain_table

WIDEST = 12
"""Rows of a matrix that are printed; larger ones are in the file alone."""


def print_diagnosis(found: Mapping[str, Any], path: Path | None) -> None:
    """Print what `rayfed_ssl.reports.diagnose` found, and the file it was written to."""
    out = plain_console()
    out.print(f"round {found['round']}, {found['samples']} {found['split']} images without labels")
    out.print(_encoders(found["encoders"]))
    for matrix in found["matrices"].values():
        out.print(f"\n{matrix['title']}" + (f" ({matrix['unit']})" if matrix["unit"] else ""))
        out.print(_matrix(matrix) if len(matrix["encoders"]) <= WIDEST else _range(matrix))
    if found["false_negatives"] is not None:
        out.print("\nfalse negatives, by the partition's labels")
        out.print(_false_negatives(found["false_negatives"]))
    out.print()
    for note in found["notes"]:
        out.print(f"note: {note}", soft_wrap=True, markup=False)
    if path is not None:
        out.print(f"file: {path}", soft_wrap=True, markup=False)


def _encoders(encoders: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = ("architecture", "width", "feature_std", "effective_rank", "alignment", "uniformity")
    shown = plain_table("encoder", *(column.replace("_", " ") for column in columns))
    for name, numbers in encoders.items():
        shown.add_row(name, *(_cell(numbers.get(column)) for column in columns))
    return shown


def _matrix(matrix: Mapping[str, Any]) -> Table:
    shown = plain_table("", *matrix["encoders"])
    for name, values in zip(matrix["encoders"], matrix["values"], strict=True):
        shown.add_row(name, *map(_cell, values))
    return shown


def _range(matrix: Mapping[str, Any]) -> Table:
    values = [value for i, row in enumerate(matrix["values"]) for value in row[:i] if value is not None]
    shown = plain_table("", "minimum", "mean", "maximum")
    shown.add_row(f"{len(matrix['encoders'])} encoders", _cell(min(values)), _cell(fmean(values)), _cell(max(values)))
    return shown


def _false_negatives(ratios: Mapping[str, Any]) -> Table:
    shown = plain_table("client", "own negatives", "own and others'", "others'")
    remote: Sequence[float | None] = ratios["remote"] or [None] * len(ratios["clients"])
    for client, *values in zip(ratios["clients"], ratios["local"], ratios["fused"], remote, strict=True):
        shown.add_row(str(client), *("-" if value is None else f"{100 * value:.1f}%" for value in values))
    return shown


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.4g}"
