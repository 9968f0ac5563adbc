"""The results of a reproduction: our numbers beside the published ones, as JSON and as a table in the paper's layout."""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from pydantic import Field

from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.records.metric_rows import taken
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.filesystem import write_atomically
from tune.studies.definition.table_cells import Cell, Reproduction
from tune.studies.definition.table_schema import Source

CAUTION = (
    "cpu size: far fewer, smaller photographs and fewer epochs than in the paper, and mostly a small CNN. These numbers "
    "are comparable with each other, and with the published ones in their order alone."
)


class CellResult(StrictModel):
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

    @classmethod
    def of(
        cls,
        cell: Cell,
        runs: list[str],
        ours: list[float | None],
        failures: dict[str, str] | None = None,
        unlike: str | None = None,
    ) -> "CellResult":
        """Summarize a cell's numbers over seeds."""
        values = [value for value in ours if value is not None]
        mean = fmean(values) if values else None
        comparable = cell.published if unlike is None else None
        return cls(
            row=cell.row,
            column=cell.column,
            score=cell.score,
            take=cell.take,
            published=cell.published,
            unlike=unlike,
            runs=[*runs],
            ours=ours,
            mean=mean,
            std=stdev(values) if len(values) > 1 else None,
            difference=None if mean is None or comparable is None else mean - comparable,
            failures=failures or {},
        )

    @property
    def comparable(self) -> float | None:
        """The published number, if it is of the same dataset and score as ours."""
        return self.published if self.unlike is None else None


class Agreement(StrictModel):
    """Kendall's tau-b between our means and the published numbers, over all cells that have both and within each column."""

    cells: int = 0
    kendall: float | None = None
    columns: dict[str, float | None] = Field({})

    @classmethod
    def of(cls, cells: Sequence[CellResult]) -> "Agreement":
        """Compare the cells whose numbers are comparable."""
        compared = [
            (cell.column, cell.mean, cell.comparable)
            for cell in cells
            if cell.mean is not None and cell.comparable is not None
        ]
        names = dict.fromkeys(column for column, _, _ in compared)
        within = {name: kendall([(a, b) for column, a, b in compared if column == name]) for name in names}
        return cls(cells=len(compared), kendall=kendall([(a, b) for _, a, b in compared]), columns=within)


class ReproductionResults(StrictModel):
    """`reproduction.json`: a table's rows and columns, and a cell for each place that was tried.

    Attributes:
        title: With the datasets that stand in for the table's, as in `other_data`.
        other_data: Such datasets, "digits for cifar10" each.
        settings: The user's changes, "key=value" each.
        rows: Names in the paper's order, as are `columns`; those that were asked for.
        skipped: Column, or "row, column" for a cell alone -> why it was not run.
        figures: File names of the figure, PNG and SVG, relative to the file.
    """

    format: Literal[1] = 1
    name: str = ""
    title: str = ""
    other_data: list[str] = Field([])
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
    cells: list[CellResult]
    agreement: Agreement = Agreement()
    figures: list[str] = Field([])

    @classmethod
    def of(
        cls,
        reproduction: Reproduction,
        cells: list[CellResult],
        seeds: Sequence[int] = (0,),
        settings: Sequence[str] = (),
        skipped: dict[str, str] | None = None,
        command: str = "",
        other_data: Sequence[str] = (),
    ) -> "ReproductionResults":
        """Collect the results of a reproduction, yet without a figure."""
        file, notes = reproduction.file, [*reproduction.notes, *training_notes(reproduction, settings)]
        if kinds := list(dict.fromkeys(cell.unlike for cell in cells if cell.unlike is not None)):
            note = (
                "No difference and no part in the order where ours are of another dataset or score than the published"
            )
            notes.append(f"{note}: {'; '.join(kinds)}.")
        return cls(
            name=reproduction.name,
            title=", ".join([file.title, *(f"with {data}" for data in other_data)]),
            other_data=list(other_data),
            kind=file.kind,
            unit=file.unit,
            source=file.source,
            size=reproduction.size,
            notes=notes,
            command=command,
            settings=list(settings),
            seeds=list(seeds),
            rows=list(reproduction.rows),
            columns=list(reproduction.columns),
            skipped=skipped or {},
            cells=cells,
            agreement=Agreement.of(cells),
        )

    @property
    def failures(self) -> list[str]:
        """A line for each run that failed."""
        return [f"{c.row}, {c.column}, seed {seed}: {why}" for c in self.cells for seed, why in c.failures.items()]

    def cell(self, row: str, column: str) -> CellResult | None:
        """Find a cell; None if it was not run."""
        return next((cell for cell in self.cells if (cell.row, cell.column) == (row, column)), None)

    def write(self, directory: Path) -> None:
        """Write `reproduction.json` and `table.md`."""
        write_atomically(directory / "reproduction.json", (self.model_dump_json(indent=1) + "\n").encode())
        write_atomically(directory / "table.md", self.markdown().encode())

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and lines of the table: a cell holds mean ± std, the published number and the difference."""
        columns = [column for column in self.columns if column not in self.skipped]
        lines = [[row, *(describe(cell) if (cell := self.cell(row, c)) else "" for c in columns)] for row in self.rows]
        return ["", *columns], lines

    def remarks(self) -> list[str]:
        """What a reader of the table has to know, a line each."""
        agreement = self.agreement
        lines = ["Each cell: ours, mean ± standard deviation over seeds [published; difference]."]
        lines += [CAUTION] * (self.size == "cpu") + self.notes
        if agreement.kendall is not None:
            within = ", ".join(f"{name} {tau:+.2f}" for name, tau in agreement.columns.items() if tau is not None)
            order = f"Order, Kendall's tau-b over {agreement.cells} cells: {agreement.kendall:+.2f}"
            lines.append(order + (f"; by column: {within}" if within else ""))
        lines += [f"Left out, {name}: {why}" for name, why in self.skipped.items()]
        return lines + [f"Failed, {line}" for line in self.failures]

    def markdown(self) -> str:
        """The table as Markdown."""
        head, lines = self.table()
        source = "" if self.source is None else f"{self.source.paper}, {self.source.item} (arXiv {self.source.arxiv})"
        size = ", ".join([f"{self.size} size", *(f"with {data}" for data in self.other_data)])
        text = [f"# {source}, {size}", "", f"{self.title}. Seeds {', '.join(map(str, self.seeds))}.", ""]
        text += [f"    {self.command}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        text += [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([*text, "", *(f"- {line}" for line in self.remarks()), ""])


def training_notes(reproduction: Reproduction, settings: Sequence[str]) -> list[str]:
    """Say what the runs of each row train with: objective, optimizer, learning rate and views; equal rows share a line."""
    by_row: dict[str, dict[str, None]] = {}
    for cell in reproduction.cells:
        first, then = cell.config(0, *settings), cell.then
        alone = None if then is None or then.pretrained else cell.second(first, None, *settings)
        by_row.setdefault(cell.row, {})[_training(alone or first)] = None
    by_text: dict[str, list[str]] = {}
    for row, texts in by_row.items():
        by_text.setdefault("; or ".join(texts), []).append(row)
    return [f"Training of {', '.join(rows)}: {text}." for text, rows in by_text.items()]


def _training(config: Config) -> str:
    objective, optimizer = config.dump()["objective"], config.training.optimizer
    name = objective.pop("name")
    choices = [f"{key} {value}" for key, value in objective.items() if key == "temperature" or isinstance(value, str)]
    name += f" ({', '.join(choices)})" if choices else ""
    views = config.training.views or "the dataset's"
    return f"{name}, {type(optimizer).__name__} at {optimizer.lr:g}, batches of {config.training.batch}, views {views}"


def describe(cell: CellResult) -> str:
    """Write a cell for people: "71.20 ± 0.31 [75.6; -4.4]"."""
    if cell.mean is None:
        ours = "failed" if cell.failures else "-"
    else:
        ours = f"{cell.mean:.2f}" + ("" if cell.std is None else f" ± {cell.std:.2f}")
        missing = cell.ours.count(None)
        ours += f" ({len(cell.ours) - missing} of {len(cell.ours)} seeds)" * bool(missing)
    if cell.published is None:
        return ours
    return f"{ours} [{cell.published:g}" + ("" if cell.difference is None else f"; {cell.difference:+.1f}") + "]"


def measured(cell: Cell, directory: Path, unit: str) -> float | None:
    """Read a cell's number after the last round that has it; None if none has. Unit "percent" multiplies by 100."""
    by_round: dict[int, dict[str, float]] = {}
    for row in RunRecord.open(directory).metrics:
        if row["name"] == cell.score:
            by_round.setdefault(row["round"], {})[row["participant"]] = row["value"]
    values = (taken(by_round[round], cell.take) for round in sorted(by_round, reverse=True))
    last = next((value for value in values if value is not None), None)
    return 100 * last if last is not None and unit == "percent" else last


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
