"""A study file at a size, with what its user asks for: the points that it has, and what each of them changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfed_ssl.errors import ConfigError, nearest
from tune.studies.definition.layers import Change, Column, Row, Size, Then
from tune.studies.definition.schema import COLUMN, ROW, StudyFile
from tune.studies.definition.space import Point, point_text


@dataclass(frozen=True)
class Cell:
    """What a row and a column make of a point.

    Attributes:
        settings: What is changed in the recipe, in this order.
        score: Which score of the last run is shown; None where the study seeks goals.
        take: Of which encoder; None takes the global one, or the mean.
        then: The second run.
        pretrained: Whether the second run starts from the encoder of the first; otherwise there is no first run.
    """

    recipe: str | None
    settings: tuple[Mapping[str, Any], ...]
    score: str | None
    take: str | None
    published: float | None
    then: Then | None
    pretrained: bool


class Study(StudyFile):
    """A study file with what its user and its directory add.

    Attributes:
        name: The file's name.
        overrides: The user's settings of all trials, "key=value".
        directory: Directory that relative paths of data and recipes start from.
        size: One of the file's sizes.
        only_rows: The rows that are asked for, as `only_columns`; None for all.
        left_out: Row and column of cells that are not run.
        trusted: Whether the modules that its file names may be imported.
    """

    name: str
    overrides: tuple[str, ...] = ()
    directory: Path = Path()
    size: str | None = None
    only_rows: tuple[str, ...] | None = None
    only_columns: tuple[str, ...] | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    trusted: bool = True

    @property
    def heading(self) -> str:
        """Its title, or its name."""
        return self.title or self.name

    @property
    def axes(self) -> dict[str, Sequence[str]]:
        """The rows and columns that there are at this size, of those that are asked for."""
        of_size = self.at_size.columns
        return {
            ROW: [row for row in self.rows if self.only_rows is None or row in self.only_rows],
            COLUMN: [
                column
                for column in self.columns
                if all(names is None or column in names for names in (of_size, self.only_columns))
            ],
        }

    @property
    def at_size(self) -> Size:
        """What holds at its size."""
        return self.sizes[self.size] if self.size is not None else Size()

    @property
    def adapts(self) -> bool:
        """Whether what is tried, or how far, depends on results."""
        return self.stop is not None or self.search.name in ("tpe", "nsga2")

    @property
    def num_trials(self) -> int:
        """How many trials it has."""
        return self.trials or len(self.points())

    def points(self) -> list[dict[str, Any]]:
        """List the points of a grid, without those of cells that are left out."""
        left_out = set(self.left_out)
        return [point for point in self.space.grid() if (point.get(ROW), point.get(COLUMN)) not in left_out]

    def only(self, rows: Iterable[str] | None, columns: Iterable[str] | None) -> "Study":
        """Select some rows and columns; None selects all."""
        for kind, asked in ((ROW, rows), (COLUMN, columns)):
            for name in asked or ():
                if name not in self.axes[kind]:
                    raise ConfigError(f"{self.name} has no {kind} {name!r}{nearest(name, self.axes[kind])}")
        chosen = {"only_rows": rows, "only_columns": columns}
        return self.model_copy(update={key: None if names is None else tuple(names) for key, names in chosen.items()})

    def label(self, point: Point) -> str:
        """Write a point for people: the row and the column, and other parameters with their names."""
        axes = [str(point[axis]) for axis in (ROW, COLUMN) if axis in point and axis not in self.parameters]
        others = self.settings_at(point)
        return ", ".join([*axes, point_text(others)] if others else axes)

    def settings_at(self, point: Point) -> dict[str, Any]:
        """Give a point's values by key of the configuration, without its row and column."""
        return {key: value for key, value in point.items() if key in self.parameters}

    def cell(self, point: Point) -> Cell:
        """Collect what a point's row and column change."""
        name, column_name = point.get(ROW, ""), point.get(COLUMN, "")
        size, row, column = self.at_size, self.rows.get(name, Row()), self.columns.get(column_name, Column())
        row_at_size = size.rows.get(name, Change())
        column_at_size = size.columns.get(column_name, Change()) if isinstance(size.columns, dict) else Change()
        then = None if row.runs == "first" else column.then
        if then is not None:
            settings = {key: value for key, value in then.settings.items() if key not in size.then} | size.then
            then = then.model_copy(update={"settings": settings})
        numbers = self.published.get(name)
        nearer = (column.rows.get(name, {}), column_at_size.settings, row_at_size.settings)
        return Cell(
            recipe=row.recipe,
            settings=(size.settings, column.settings, row.settings, row.chosen, *nearer),
            score=row.score or column_at_size.score or column.score or size.score or self.score,
            take=row.take or column.take or self.take,
            published=None if numbers is None else numbers[list(self.columns).index(column_name)],
            then=then,
            pretrained=row.runs != "second",
        )
