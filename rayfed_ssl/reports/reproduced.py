"""The results of a reproduction: our numbers beside the published ones, as JSON and as a table in the paper's layout."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from pydantic import Field

from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reproductions.definition import Cell, Reproduction
from rayfed_ssl.reproductions.schema import Source
from rayfed_ssl.storage.filesystem import write_atomically

CAUTION = (
    "cpu size: far fewer, smaller photographs and fewer epochs than in the paper, and mostly a small CNN. These numbers "
    "are comparable with each other, and with the published ones in their order alone."
)


@dataclass(frozen=True)
class CellResult:
    """A cell with its runs; the fields are those of `reproduction.json`."""

    row: str
    column: str
    score: str
    take: str | None
    published: float | None
    runs: tuple[str, ...]
    ours: tuple[float | None, ...]
    failures: Mapping[str, str] = field(default_factory=dict)
    unlike: str | None = None

    @property
    def comparable(self) -> float | None:
        """The published number, if it is of the same dataset and score as ours."""
        return self.published if self.unlike is None else None

    @property
    def values(self) -> list[float]:
        """The numbers of the seeds that have one."""
        return [value for value in self.ours if value is not None]

    @property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Mean minus published."""
        return None if self.mean is None or self.comparable is None else self.mean - self.comparable

    def entry(self) -> "CellEntry":
        """The cell as `reproduction.json` has it."""
        fields = asdict(self) | {"runs": list(self.runs), "ours": list(self.ours)}
        return CellEntry(**fields, mean=self.mean, std=self.std, difference=self.difference)


class CellEntry(StrictModel):
    """A cell that was run.

    Attributes:
        runs: A directory for each seed, relative to the file.
        ours: A number or null for each seed, in the table's unit, as are `mean`, `std` (n - 1) and `difference` (mean
            minus published).
        unlike: Why ours and the published number are not compared: another dataset or score.
        failures: Seed, as a string -> why it has no number.
    """

    row: str
    column: str
    score: str = ""
    take: str | None = None
    published: float | None = None
    unlike: str | None = None
    runs: list[str | None] = Field([])
    ours: list[float | None] = Field([])
    mean: float | None = None
    std: float | None = None
    difference: float | None = None
    failures: dict[str, str] = Field({})


class Agreement(StrictModel):
    """Kendall's tau-b between our means and the published numbers, over all cells that have both and within each column."""

    cells: int = 0
    kendall: float | None = None
    columns: dict[str, float | None] = Field({})


class ReproductionResults(StrictModel):
    """`reproduction.json`: a table's rows and columns, and a cell for each place that was tried.

    Attributes:
        settings: The user's changes, "key=value" each.
        rows: Names in the paper's order, as are `columns`; those that were asked for.
        skipped: Column, or "row, column" for a cell alone -> why it was not run.
        figures: File names of the figure, PNG and SVG, relative to the file.
    """

    format: Literal[1] = 1
    name: str = ""
    title: str = ""
    kind: str = "table"
    unit: str = "percent"
    source: Source | None = None
    size: str = ""
    notes: list[str] = Field([])
    command: str = ""
    settings: list[str] = Field([])
    seeds: list[int] = Field([])
    rows: list[str]
    columns: list[str]
    skipped: dict[str, str] = Field({})
    cells: list[CellEntry]
    agreement: Agreement = Agreement()
    figures: list[str] = Field([])


@dataclass(frozen=True)
class Reproduced:
    """A table or figure with what was measured for it."""

    reproduction: Reproduction
    cells: tuple[CellResult, ...]
    seeds: tuple[int, ...]
    settings: tuple[str, ...]
    skipped: Mapping[str, str]
    command: str
    figures: tuple[str, ...] = ()

    @property
    def failures(self) -> list[str]:
        """A line for each run that failed."""
        return [f"{c.row}, {c.column}, seed {seed}: {why}" for c in self.cells for seed, why in c.failures.items()]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know: the file's notes, and whether some numbers are not of what the published are of."""
        kinds = list(dict.fromkeys(cell.unlike for cell in self.cells if cell.unlike is not None))
        if not kinds:
            return self.reproduction.notes
        note = "No difference and no part in the order where ours are of another dataset or score than the published"
        return (*self.reproduction.notes, f"{note}: {'; '.join(kinds)}.")

    def agreement(self) -> Agreement:
        """Compare the order of our means with that of the published numbers, in all and within each column."""
        compared = [
            (cell.column, cell.mean, cell.comparable)
            for cell in self.cells
            if cell.mean is not None and cell.comparable is not None
        ]
        names = dict.fromkeys(column for column, _, _ in compared)
        within = {name: kendall([(a, b) for column, a, b in compared if column == name]) for name in names}
        return Agreement(cells=len(compared), kendall=kendall([(a, b) for _, a, b in compared]), columns=within)

    def results(self) -> ReproductionResults:
        """Give all of it as `reproduction.json` has it."""
        reproduction, file = self.reproduction, self.reproduction.file
        return ReproductionResults(
            name=reproduction.name,
            title=file.title,
            kind=file.kind,
            unit=file.unit,
            source=file.source,
            size=reproduction.size,
            notes=list(self.notes),
            command=self.command,
            settings=list(self.settings),
            seeds=list(self.seeds),
            rows=list(reproduction.rows),
            columns=list(reproduction.columns),
            skipped=dict(self.skipped),
            cells=[cell.entry() for cell in self.cells],
            agreement=self.agreement(),
            figures=list(self.figures),
        )

    def write(self, directory: Path) -> None:
        """Write `reproduction.json` and `table.md`."""
        text = self.results().model_dump_json(indent=1) + "\n"
        write_atomically(directory / "reproduction.json", text.encode())
        write_atomically(directory / "table.md", self.markdown().encode())

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and lines of the table: a cell holds mean ± std, the published number and the difference."""
        columns = [column for column in self.reproduction.columns if column not in self.skipped]
        by_place = {(cell.row, cell.column): cell for cell in self.cells}
        lines = [
            [row, *(describe(cell) if (cell := by_place.get((row, c))) else "" for c in columns)]
            for row in self.reproduction.rows
        ]
        return ["", *columns], lines

    def remarks(self) -> list[str]:
        """What a reader of the table has to know, a line each."""
        reproduction, agreement = self.reproduction, self.agreement()
        lines = ["Each cell: ours, mean ± standard deviation over seeds [published; difference]."]
        lines += [CAUTION] * (reproduction.size == "cpu") + list(self.notes)
        if agreement.kendall is not None:
            within = {name: tau for name, tau in agreement.columns.items() if tau is not None}
            split = "; by column: " + ", ".join(f"{name} {tau:+.2f}" for name, tau in within.items()) if within else ""
            lines.append(f"Order, Kendall's tau-b over {agreement.cells} cells: {agreement.kendall:+.2f}{split}")
        lines += [f"Left out, {name}: {why}" for name, why in self.skipped.items()]
        return lines + [f"Failed, {line}" for line in self.failures]

    def markdown(self) -> str:
        """The table as Markdown."""
        reproduction = self.reproduction
        head, lines = self.table()
        published = reproduction.file.source
        source = f"{published.paper}, {published.item} (arXiv {published.arxiv})"
        text = [
            f"# {source}, {reproduction.size} size",
            "",
            f"{reproduction.file.title}. Seeds {', '.join(map(str, self.seeds))}.",
            "",
        ]
        text += [f"    {self.command}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        text += [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([*text, "", *(f"- {line}" for line in self.remarks()), ""])


def describe(cell: CellResult) -> str:
    """Write a cell for people: "71.20 ± 0.31 [75.6; -4.4]"."""
    if cell.mean is None:
        ours = "failed" if cell.failures else "-"
    else:
        ours = f"{cell.mean:.2f}" + ("" if cell.std is None else f" ± {cell.std:.2f}")
        ours += f" ({len(cell.values)} of {len(cell.ours)} seeds)" * (len(cell.values) < len(cell.ours))
    if cell.published is None:
        return ours
    return f"{ours} [{cell.published:g}" + ("" if cell.difference is None else f"; {cell.difference:+.1f}") + "]"


def measured(cell: Cell, directory: Path, unit: str) -> float | None:
    """Read a cell's number from a finished run; None if the run has no such score.

    Args:
        cell: Which score, and of which encoder.
        directory: The run.
        unit: "percent" multiplies by 100.
    """
    points = series(cell, directory, unit)
    return points[-1][1] if points else None


def series(cell: Cell, directory: Path, unit: str) -> list[tuple[int, float]]:
    """Read a cell's score over the rounds that have it, as (round, value)."""
    by_round: dict[int, dict[str, float]] = {}
    for row in RunRecord.open(directory).metrics:
        if row["name"] == cell.score:
            by_round.setdefault(row["round"], {})[row["participant"]] = row["value"]
    factor = 100 if unit == "percent" else 1
    chosen = ((round, taken(values, cell.take)) for round, values in sorted(by_round.items()))
    return [(round, factor * value) for round, value in chosen if value is not None]


def taken(values: Mapping[str, float], take: str | None) -> float | None:
    """Choose among encoders' values by name the one that is meant, or their mean or minimum; None where it is not there."""
    local = [value for name, value in values.items() if name != "global"]
    if take == "minimum":
        return min(local, default=None)
    if take == "mean":
        return fmean(local) if local else None
    if take is None and "global" not in values:
        return fmean(local) if local else None
    return values.get(take or "global")


def kendall(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Kendall's rank correlation tau-b of pairs; None where one side has fewer than two different values."""
    agree = tied_left = tied_right = 0
    for (a, b), (c, d) in combinations(pairs, 2):
        left, right = (a > c) - (a < c), (b > d) - (b < d)
        agree += left * right
        tied_left += left == 0
        tied_right += right == 0
    number = len(pairs) * (len(pairs) - 1) // 2
    scale = math.sqrt((number - tied_left) * (number - tied_right))
    return agree / scale if scale else None
