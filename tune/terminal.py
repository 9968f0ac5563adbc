"""Tables and JSON for the terminal, for the command line and for sweeps."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from rayfed_ssl.errors import printable

WIDTH = 140
"""Columns of output that goes to a file or a pipe, where no terminal sets them."""


class _Console(Console):
    """A console that escapes what is not printable, and whose reader may close the pipe early, as `head` does."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print lines or a table."""
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)

    def on_broken_pipe(self) -> None:
        """Exit without an error."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0)


def plain_console() -> Console:
    """Open standard output; brackets in names and paths are no markup."""
    console = _Console(highlight=False, markup=False)
    return console if console.is_terminal else _Console(highlight=False, markup=False, width=WIDTH)


def echo(line: str = "", *, err: bool = False) -> None:
    """Print a line, in which control characters of names are escaped, on standard output or standard error."""
    typer.echo(printable(line), err=err)


def print_table(head: Iterable[str], rows: Iterable[Iterable[str]], *, text: int = 1) -> None:
    """Print a table without lines: the first `text` columns are aligned left, numbers after them right.

    Columns that do not fit beside each other follow below, after the first `text` columns again.
    """
    console = plain_console()
    columns = [tuple(map(printable, column)) for column in zip(head, *rows, strict=True)]
    widths = [max(map(cell_len, column)) + 2 for column in columns]
    parts: list[list[int]] = [[]]
    for index in range(text, len(columns)):
        if parts[-1] and sum(widths[:text]) + sum(widths[each] for each in [*parts[-1], index]) > console.width + 2:
            parts.append([])
        parts[-1].append(index)
    for part in parts:
        table = Table(box=None, pad_edge=False, header_style="bold")
        beside = columns[:text] + [columns[index] for index in part]
        for index, column in enumerate(beside):
            table.add_column(column[0], justify="left" if index < text else "right", overflow="fold")
        for row in list(zip(*beside, strict=True))[1:]:
            table.add_row(*row)
        console.print(*[""] * (part is not parts[0]), table, sep="\n")


def print_json(value: Any) -> None:
    """Print JSON that other programs read."""
    plain_console().print_json(json.dumps(value, default=str), ensure_ascii=True)
