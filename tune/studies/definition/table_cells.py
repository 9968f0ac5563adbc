"""Reproductions: the papers' tables and figures at one size, with the configurations of their cells."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rayfed_ssl.config.recipes import apply_override, read_recipe, read_shipped, shipped_names
from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.strict import parse
from rayfed_ssl.errors import ConfigError, nearest
from tune.studies.definition.table_schema import Column, ReproductionFile, RowChange, Then

THEN = "then."
"""Prefix of a user's settings of second runs."""


def second_config(first: Config, then: Then, start: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Resolve a second run, on the data, shards and architecture of the first.

    It starts from the first run's directory `start`, or for None from random weights. Of the user's settings those apply
    that start with "then.".
    """
    tree, dump = read_recipe(then.recipe), first.dump()
    tree |= {key: dump[key] for key in ("seed", "data", "partition", "engine")}
    tree["clients"] = tree.get("clients", {}) | {key: dump["clients"][key] for key in ("number", "models")}
    tree["model"] = {key: dump["model"][key] for key in ("encoder", "stem", "image_size")}
    tree["model"] |= {} if start is None else {"start": str(start)}
    for key, value in then.settings.items():
        apply_override(tree, f"{key}={json.dumps(value, default=str)}")
    return Config.load(tree, *(text.removeprefix(THEN) for text in overrides if text.startswith(THEN)))


@dataclass(frozen=True)
class Cell:
    """One number of a table, or one bar, curve or picture of a figure.

    Attributes:
        settings: What is changed in the recipe, in this order.
        score: Which score of the last run is shown.
        take: Of which encoder; None takes the global one, or the mean.
        then: The second run.
    """

    row: str
    column: str
    recipe: str
    settings: Mapping[str, Any]
    score: str
    take: str | None
    published: float | None
    then: Then | None

    def config(self, seed: int, *overrides: str) -> Config:
        """Resolve the first run."""
        tree = read_recipe(self.recipe)
        for key, value in self.settings.items():
            apply_override(tree, f"{key}={json.dumps(value, default=str)}")
        return Config.load(tree, *(text for text in overrides if not text.startswith(THEN)), f"seed={seed}")

    def second(self, first: Config, start: Path | None, *overrides: str) -> Config | None:
        """Resolve the second run, if there is one; see `second_config`."""
        return None if self.then is None else second_config(first, self.then, start, overrides)


@dataclass(frozen=True)
class Reproduction:
    """A table or figure at one size, in the paper's order; `notes` are those of the file and of the size."""

    name: str
    file: ReproductionFile
    size: str
    notes: tuple[str, ...]
    rows: tuple[str, ...]
    columns: Mapping[str, Column]
    cells: tuple[Cell, ...]

    def only(self, rows: Sequence[str] | None, columns: Sequence[str] | None) -> "Reproduction":
        """Select some rows and columns; None selects all."""
        for kind, asked, names in (("row", rows, self.rows), ("column", columns, self.columns)):
            for name in asked or ():
                if name not in names:
                    raise ConfigError(f"{self.name} has no {kind} {name!r}{nearest(name, names)}")
        kept_rows = tuple(row for row in self.rows if rows is None or row in rows)
        kept_columns = {name: column for name, column in self.columns.items() if columns is None or name in columns}
        cells = tuple(cell for cell in self.cells if cell.row in kept_rows and cell.column in kept_columns)
        return replace(self, rows=kept_rows, columns=kept_columns, cells=cells)


def reproduction_names() -> list[str]:
    """Name the reproductions that come with the package."""
    return shipped_names("tune.studies.shipped.papers")


def read_reproduction(name: str) -> ReproductionFile:
    """Read a reproduction's file, one of the package's by name or another by its path."""
    tree = read_shipped("reproduction", "tune.studies.shipped.papers", name)
    return parse(ReproductionFile, tree, name)


def load_reproduction(name: str, size: str) -> Reproduction:
    """Read a table or figure at one size, "cpu" or "paper"."""
    file = read_reproduction(name)
    if size not in file.sizes:
        raise ConfigError(f"{name} has no size {size!r}{nearest(size, file.sizes)}")
    chosen = file.sizes[size]
    columns = {key: column for key, column in file.columns.items() if chosen.columns is None or key in chosen.columns}
    return Reproduction(
        name=Path(name).stem,
        file=file,
        size=size,
        notes=(*file.notes, *chosen.notes),
        rows=tuple(file.rows),
        columns=columns,
        cells=tuple(_cell(file, size, row, column) for row in file.rows for column in columns),
    )


def _cell(file: ReproductionFile, size: str, row_name: str, column_name: str) -> Cell:
    at_size, row, column = file.sizes[size], file.rows[row_name], file.columns[column_name]
    row_change = at_size.rows.get(row_name, RowChange())
    column_changes = at_size.columns if isinstance(at_size.columns, dict) else {}
    column_change = column_changes.get(column_name, Column())
    entries = (row_change, row, column_change, column, at_size, file)
    then = None if row.runs == "first" else column_change.then or column.then
    if then is not None:
        settings = _joined((then.settings, at_size.then))
        then = then.model_copy(update={"settings": settings, "pretrained": row.runs != "second"})
    numbers = file.published.get(row_name)
    changes = [at_size.settings, column.settings, row.settings, column.rows.get(row_name, {})]
    changes += [column_change.settings, column_change.rows.get(row_name, {}), row_change.settings]
    return Cell(
        row=row_name,
        column=column_name,
        recipe=row_change.recipe or row.recipe,
        settings=_joined(changes),
        score=_first_set(entries, "score"),
        take=_first_set(entries, "take"),
        published=None if numbers is None else numbers[list(file.columns).index(column_name)],
        then=then,
    )


def _first_set(entries: Iterable[BaseModel], key: str) -> Any:
    return next((getattr(entry, key) for entry in entries if key in entry.model_fields_set), None)


def _joined(maps: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join settings so that a key that comes again is applied last."""
    joined: dict[str, Any] = {}
    for settings in maps:
        for key, value in settings.items():
            joined.pop(key, None)
            joined[key] = value
    return joined
