"""Reproduction files: rows and columns as recipes and settings, the published numbers, and two sizes.

A cell is its row's recipe changed by the size's `set`, the column's, the row's, the cell's (`rows` of the column), the
size's for the column, the cell and the row, and last by the user. Cells of equal settings are one run. What a row says
precedes what a column says.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rayfed_ssl.config.strict import EMPTY_IF_NULL, Settings, StrictModel
from rayfed_ssl.errors import nearest

Drawing = Literal["bars", "lines", "losses", "rounds", "boxplots", "heatmaps", "tsne"]
Notes = Annotated[tuple[str, ...], Field(strict=False)]


class Then(StrictModel):
    """A second run on the data, shards, clients, architecture and seed of the first.

    Attributes:
        recipe: What it runs.
        settings: What is changed in that.
        pretrained: Whether it starts from the encoder of the first run; otherwise there is no first run.
    """

    recipe: str
    settings: Settings = Field({}, alias="set")
    pretrained: bool = True


class Source(StrictModel):
    """Where a table or figure is published."""

    paper: str
    item: str
    arxiv: str


class RowChange(StrictModel):
    """What a size changes in a row."""

    recipe: str | None = None
    settings: Settings = Field({}, alias="set")
    score: str | None = None
    take: str | None = None


class Row(RowChange):
    """A system.

    Attributes:
        take: Of which encoder the score is: global, mean, minimum (over clients) or client-3; the default is the global one
            where there is one, else the mean.
        runs: "first" leaves out the column's second run; "second" makes it alone, from random weights.
    """

    recipe: str
    runs: Literal["first", "second"] | None = None


class Column(StrictModel):
    """A dataset, split or measure.

    Attributes:
        rows: What is changed in the cells of single rows.
        then: A second run after that of the row.
        x: Place on a figure's axis.
        panel: Part of a figure.
        obtain: How to get its dataset.
    """

    settings: Settings = Field({}, alias="set")
    rows: dict[str, Settings] = Field({})
    score: str | None = None
    take: str | None = None
    then: Then | None = None
    x: float | None = None
    panel: str | None = None
    obtain: str | None = None


class Size(StrictModel):
    """What holds at a size for all cells, all second runs, a row, a column; columns that are not named are left out."""

    settings: Settings = Field({}, alias="set")
    score: str | None = None
    then: Settings = Field({})
    rows: Annotated[dict[str, Annotated[RowChange, EMPTY_IF_NULL]], EMPTY_IF_NULL] = Field({})
    columns: list[str] | dict[str, Annotated[Column, EMPTY_IF_NULL]] | None = None
    notes: Notes = ()


class ReproductionFile(StrictModel):
    """A table or figure.

    Attributes:
        unit: "percent" (scores in [0, 1] times 100), or the unit of a score that is printed as it is.
        score: What a cell shows: "linear", "linear_best", "knn", a protocol's name, or a diagnostic ("diag_...").
        published_score: Which score the published numbers are of, if not that of the cell at the paper's size.
        published: Row -> a number for each column, null where the paper has none.
    """

    title: str
    source: Source
    kind: Literal["table", "figure"]
    draw: Drawing | None = None
    unit: str = "percent"
    score: str
    take: str | None = None
    published_score: str | None = None
    notes: Notes = ()
    rows: dict[str, Row]
    columns: dict[str, Annotated[Column, EMPTY_IF_NULL]]
    published: Annotated[dict[str, list[float | None]], EMPTY_IF_NULL] = Field({})
    sizes: dict[str, Annotated[Size, EMPTY_IF_NULL]]

    @model_validator(mode="after")
    def _check(self) -> "ReproductionFile":
        if (self.kind == "figure") != (self.draw is not None):
            raise ValueError(f"a figure says how to draw it, a table does not, got kind {self.kind}, draw {self.draw}")
        of_sizes = [size.columns for size in self.sizes.values() if isinstance(size.columns, dict)]
        columns = [column for named in (self.columns, *of_sizes) for column in named.values()]
        rows = [*(row for size in self.sizes.values() for row in size.rows), *(row for c in columns for row in c.rows)]
        _check_names("row", [*self.published, *rows], self.rows)
        _check_names("column", [name for size in self.sizes.values() for name in size.columns or ()], self.columns)
        for row, numbers in self.published.items():
            if len(numbers) != len(self.columns):
                raise ValueError(f"row {row} has {len(numbers)} published numbers for {len(self.columns)} columns")
        return self


def _check_names(kind: str, names: list[str], known: dict[str, Row] | dict[str, Column]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {kind} {name!r}{nearest(name, known)}")
