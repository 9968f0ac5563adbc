"""Tables: the page, the terminal, Markdown, CSV, LaTeX and `results.json` of a study show the same model."""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from pydantic import Field, model_validator

from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.formats import MeanStd, Unit, number_text

Form = Literal["text", "json", "csv", "latex"]
"""How tables are printed."""

MISSING = "–"


class Cell(StrictModel):
    """A cell with the number that it sorts by; `best` where no cell of its column is better."""

    text: str
    mean: float | None = None
    best: bool = False

    @classmethod
    def of(cls, value: float | MeanStd | None, unit: Unit = "") -> "Cell":
        """Show a number in its unit, or mean ± deviation and the number of runs."""
        if isinstance(value, MeanStd):
            return cls(text=value.text(unit, n=True), mean=value.mean)
        if value is None or not math.isfinite(value):
            return cls(text=MISSING)
        return cls(text=number_text(value, unit), mean=value)


class Table(StrictModel):
    """A table, the first cell of each line its label; `goal` is the score that it is of."""

    goal: str = ""
    title: str
    head: list[str] = Field(min_length=1)
    lines: list[list[Cell]]
    remarks: list[str] = Field([])

    @classmethod
    def of(
        cls,
        title: str,
        head: Sequence[str],
        rows: Iterable[Iterable[object]],
        *,
        goal: str = "",
        remarks: Sequence[str] = (),
    ) -> "Table":
        """Make a table from cells, text and numbers."""
        lines = [[_cell(value) for value in row] for row in rows]
        return cls(goal=goal, title=title, head=list(head), lines=lines, remarks=list(remarks))

    @model_validator(mode="after")
    def _check(self) -> "Table":
        if any(len(line) != len(self.head) for line in self.lines):
            raise ValueError("as many cells as headings are needed")
        return self

    def texts(self) -> list[list[str]]:
        """Give the texts of the lines."""
        return [[cell.text for cell in line] for line in self.lines]


def _cell(value: object) -> Cell:
    match value:
        case Cell():
            return value
        case int():
            return Cell(text=f"{value:,}", mean=value)
        case float() | None:
            return Cell.of(value)
    return Cell(text=str(value))


def markdown_lines(table: Table) -> list[str]:
    """Write a table as lines of Markdown, the best cell of each column bold."""

    def row(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rows = [row(f"**{cell.text}**" if cell.best else cell.text for cell in line) for line in table.lines]
    return [row(table.head), "|---" * len(table.head) + "|", *rows]


def form_lines(tables: Iterable[Table], form: Form) -> Iterator[str]:
    """Write tables as CSV, or as LaTeX's tabular with booktabs, with an empty line between two."""
    for index, table in enumerate(tables):
        yield from [""] * bool(index)
        yield from _csv_lines(table) if form == "csv" else _latex_lines(table)


def _csv_lines(table: Table) -> list[str]:
    """Write a table of numbers: a column of sizes, shares or times has its unit in the heading."""
    columns = [_plain_column(*column) for column in zip(table.head, *table.texts(), strict=True)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(zip(*columns, strict=True))
    return out.getvalue().splitlines()


UNITS = {
    "%": re.compile(r"(?P<one>[\d.]+)%"),
    "MB": re.compile(
        r"(?P<micro>\d+) bytes?|(?P<milli>[\d.,]+) kB|(?P<one>[\d.,]+) MB|(?P<kilo>[\d.,]+) GB|(?P<mega>[\d.,]+) TB"
    ),
    "s": re.compile(r"(?:(?P<hour>\d+) h )?(?:(?P<minute>\d+) min)?(?: ?(?P<one>[\d.]+) s)?"),
}
"""How `formats` writes numbers with a unit, by the unit that a column of CSV gets."""

FACTORS = {"micro": 1e-6, "milli": 1e-3, "one": 1, "minute": 60, "kilo": 1e3, "hour": 3600, "mega": 1e6}


def _plain_column(head: str, *texts: str) -> list[str]:
    for unit, form in UNITS.items():
        matches = [form.fullmatch(text) for text in texts if text not in ("", "-", MISSING)]
        if matches and all(matches):
            return [f"{head} ({unit})", *(_magnitude(form, text) for text in texts)]
    return [head, *texts]


def _magnitude(form: re.Pattern[str], text: str) -> str:
    parts = match.groupdict() if (match := form.fullmatch(text)) else {}
    numbers = [float(number.replace(",", "")) * FACTORS[name] for name, number in parts.items() if number]
    return f"{sum(numbers):.10g}" if numbers else ""


LATEX = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip
"""What characters with a meaning in LaTeX are written as."""


def _latex_lines(table: Table) -> list[str]:
    def row(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    def text(plain: str) -> str:
        return "".join(LATEX.get(char, char) for char in plain)

    rows = [
        row(rf"\textbf{{{text(cell.text)}}}" if cell.best else text(cell.text) for cell in line) for line in table.lines
    ]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}"
    return [begin, r"\toprule", row(map(text, table.head)), r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
