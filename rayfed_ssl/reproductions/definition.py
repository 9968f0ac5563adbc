"""Reproductions: the papers' tables and figures as data, each a YAML file that says what to run and what was published.

A file of `rayfed_ssl/reproductions/` has these keys:

    title      what the table or figure shows
    source     {paper, item, arxiv}, for example {paper: FLESD, item: Table 1, arxiv: "2109.14611"}
    kind       table or figure; a figure also says `draw`: bars, lines, losses, rounds, boxplots, heatmaps or tsne
    unit       percent (scores in [0, 1] times 100) or the unit of a score that is printed as it is
    score      what a cell shows: "linear", "linear_best", "knn", the name of a protocol, or a diagnostic ("diag_...")
    take       of which encoder: global, mean, minimum (over clients) or client-3; the default is global where there is
               one and else the mean
    published_score   of which score the published numbers are, if not of the cell's at the paper's size
    notes      what a reader has to know, a line each
    rows       name -> {recipe, set, score, take, runs}; what a row says goes before what a column says; `runs: first` leaves
               out the column's second run, `runs: second` makes it alone, from random weights
    columns    name -> {set, score, take, after, x, panel, obtain}; `after` is a second run that begins with the encoder of
               the first: {recipe, set}, with data, partition, clients, model and seed of the first; `x` and `panel`
               place a column in a figure; `obtain` says how to get its dataset
    published  row -> one number for each column, ~ where the paper has none; rows without numbers are left out
    sizes      paper and cpu, each {set, score, after, rows, columns, notes}: what holds at this size for all cells, for all
               second runs, for a row, for a column; columns that `columns` does not name are left out, if it is there

`set` maps dotted keys of the configuration to values. A cell is its row's recipe changed by the size's `set`, the
column's, the row's, the size's for the column, the size's for the row, and last by the user. Cells of equal settings are
one run.

`reproduction.json`, which `rayfed-ssl reproduce` writes into its directory beside `table.md`, has these keys:

    format     1
    name, title, kind, unit, source, notes     as above; notes hold those of the size as well, and one on `unlike`
    size       "paper" or "cpu"
    command    the command line that made it
    settings   the user's changes, "key=value" each
    seeds      list of integers
    rows, columns    names in the paper's order, those that were asked for
    skipped    column, or "row, column" for a cell alone -> why it was not run
    cells      list of {row, column, score, take, published, unlike, runs, ours, mean, std, difference, failures}:
               `published` is a number or null; `unlike` is null, or says why the two are not compared, their
               dataset or score being another ("cifar10 for cifar100"); `runs` has a directory for each seed, relative
               to this file; `ours` a number or null for each seed, in `unit`, like `mean`, `std` (over seeds, n - 1;
               null below two) and `difference` (mean minus published); `failures` maps a seed, as a string, to one
               line. Skipped cells are not in it.
    agreement  {cells, kendall}: Kendall's tau-b between our means and the published numbers over the cells that have
               both and compare, and `columns`: column -> tau-b within it; null where it is undefined
    figures    file names of the drawn figure, PNG and SVG, relative to this file
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfed_ssl.config.recipes import apply_override, read_recipe
from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError, nearest

SIZES = ("cpu", "paper")

SECOND = "after."
"""What a user's setting begins with if it is meant for second runs."""

Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class After:
    """A second run that begins with the encoder of the first."""

    recipe: str
    settings: Settings


@dataclass(frozen=True)
class Cell:
    """One number of a table, or one bar, curve or picture of a figure.

    Attributes:
        row: Name of the system.
        column: Name of the dataset, split or measure.
        recipe: What is run first.
        settings: What is changed in it, in this order.
        score: Which score of the last run is shown.
        take: Of which encoder; None takes the global one, or the mean.
        published: The paper's number.
        after: The second run.
        alone: Whether there is only the second run, from random weights.
    """

    row: str
    column: str
    recipe: str
    settings: Settings
    score: str
    take: str | None
    published: float | None
    after: After | None
    alone: bool

    def config(self, seed: int, *overrides: str) -> Config:
        """Resolve the first run.

        Raises:
            ConfigError: The settings do not fit together.
        """
        own = [override for override in overrides if not override.startswith(SECOND)]
        return Config.load(_changed(self.recipe, self.settings), *own, f"seed={seed}")

    def second(self, first: Config, start: Path | None, *overrides: str) -> Config | None:
        """Resolve the second run, on the data, shards and architecture of the first, if there is one.

        Args:
            first: The first run.
            start: Its directory; None for random weights.
            overrides: The user's settings; those that begin with "after." are meant.
        """
        if self.after is None:
            return None
        tree, dump = read_recipe(self.after.recipe), first.dump()
        tree |= {key: dump[key] for key in ("seed", "data", "partition", "engine")}
        tree["clients"] = tree.get("clients", {}) | {key: dump["clients"][key] for key in ("number", "models")}
        tree["model"] = {key: dump["model"][key] for key in ("encoder", "stem")}
        tree["model"] |= {} if start is None else {"start": str(start)}
        for key, value in self.after.settings:
            apply_override(tree, f"{key}={json.dumps(value, default=str)}")
        return Config.load(tree, *(text.removeprefix(SECOND) for text in overrides if text.startswith(SECOND)))


@dataclass(frozen=True)
class Column:
    """A column of a table, or a place in a figure.

    Attributes:
        name: As the paper prints it.
        x: Where it stands on a figure's axis.
        panel: In which part of a figure it stands.
        obtain: How to get its dataset.
    """

    name: str
    x: float | None = None
    panel: str | None = None
    obtain: str | None = None


@dataclass(frozen=True)
class Reproduction:
    """A table or figure at one size; the fields are those of the file, see the module's text."""

    name: str
    title: str
    source: Mapping[str, str]
    kind: str
    draw: str | None
    unit: str
    notes: tuple[str, ...]
    size: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: tuple[Cell, ...]

    def only(self, rows: Sequence[str] | None, columns: Sequence[str] | None) -> "Reproduction":
        """Keep some rows and columns, in the paper's order.

        Raises:
            ConfigError: One of them is not there.
        """
        names = [column.name for column in self.columns]
        kept_rows = choose("row", rows, self.rows, self.name)
        kept = choose("column", columns, names, self.name)
        return Reproduction(
            **{key: getattr(self, key) for key in ("name", "title", "source", "kind", "draw", "unit", "notes", "size")},
            rows=kept_rows,
            columns=tuple(column for column in self.columns if column.name in kept),
            cells=tuple(cell for cell in self.cells if cell.row in kept_rows and cell.column in kept),
        )


def _changed(recipe: str, settings: Settings) -> dict[str, Any]:
    tree = read_recipe(recipe)
    for key, value in settings:
        apply_override(tree, f"{key}={json.dumps(value, default=str)}")
    return tree


def choose(kind: str, asked: Sequence[str] | None, known: Sequence[str], name: str) -> tuple[str, ...]:
    """Keep what was asked for, in the known order; None asks for everything.

    Raises:
        ConfigError: A word is not known.
    """
    for word in asked or ():
        if word not in known:
            raise ConfigError(f"{name} has no {kind} {word!r}{nearest(word, known)}")
    return tuple(word for word in known if asked is None or word in asked)
