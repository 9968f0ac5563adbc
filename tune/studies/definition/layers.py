"""Rows, columns and sizes of a study: what each of them changes in the settings of a cell.

A cell is its row's recipe changed by the study's `set`, the size's, the column's, the row's, the cell's (`rows` of the
column), and the size's for the column and the row.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from rayfed_ssl.config.strict import EMPTY_IF_NULL, Settings, StrictModel

Texts = Annotated[tuple[str, ...], Field(strict=False)]


class Then(StrictModel):
    """A second run on the data, shards, clients, architecture and seed of the first."""

    recipe: str
    settings: Settings = Field({}, alias="set")


class Row(StrictModel):
    """A system.

    Attributes:
        take: Of which encoder the score is: global, mean, minimum (over clients) or client-3; the default is the global one
            where there is one, else the mean.
        runs: "first" leaves out the column's second run; "second" makes it alone, from random weights.
        tune: Values of each key that are tried, as a grid, before the row is run; without any the row runs as it is.
        chosen: Those that were best.
    """

    recipe: str | None = None
    settings: Settings = Field({}, alias="set")
    score: str | None = None
    take: str | None = None
    runs: Literal["first", "second"] | None = None
    tune: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field({})
    chosen: Settings = Field({})


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


class Change(StrictModel):
    """What a size changes in a row or a column; `score` is of columns alone."""

    settings: Settings = Field({}, alias="set")
    score: str | None = None


Changes = Annotated[dict[str, Annotated[Change, EMPTY_IF_NULL]], EMPTY_IF_NULL]


class Size(StrictModel):
    """What holds at a size for all cells, all second runs, a row, a column; columns that are not named are left out."""

    settings: Settings = Field({}, alias="set")
    score: str | None = None
    then: Settings = Field({})
    rows: Changes = Field({})
    columns: list[str] | Changes | None = None
    unlike: str | None = None
    notes: Texts = ()


class Tuning(StrictModel):
    """How each row with `tune` is tuned on the first column: what is changed, such as `data.validation`, and the seed."""

    settings: Settings = Field({}, alias="set")
    seed: int = 0


class TableLayout(StrictModel):
    """Names of the parameters along a table."""

    rows: str | None = None
    columns: str | None = None


class FigureLayout(StrictModel):
    """Names of the parameters of a figure, or how rows and columns are drawn."""

    x: str | None = None
    lines: str | None = None
    panels: str | None = None
    draw: Literal["lines", "tsne"] | None = None


class Inheritance(StrictModel):
    """Settings (`take`) from the best trial of another study, of those with the values in `where`."""

    sweep: str
    where: Settings = Field({})
    take: Texts
