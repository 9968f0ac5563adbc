"""Reproduction files: YAML as `rayfed_ssl/reproductions/definition.py` describes it, read and checked."""

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from rayfed_ssl.config.recipes import read_recipe
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.reproductions.definition import After, Cell, Column, Reproduction, Settings, choose
from rayfed_ssl.reproductions.shape import check_shape


def reproduction_names() -> list[str]:
    """Name the reproductions that come with the package."""
    folder = resources.files("rayfed_ssl.reproductions")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_reproduction(name: str) -> dict[str, Any]:
    """Read a reproduction's file, one of the package's by name or another by its path.

    Raises:
        ConfigError: There is none, or it is not what a reproduction looks like.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        tree = read_recipe(name)
    elif name in reproduction_names():
        tree = yaml.safe_load(resources.files("rayfed_ssl.reproductions").joinpath(f"{name}.yaml").read_text())
    else:
        raise ConfigError(f"there is no reproduction {name!r}{nearest(name, reproduction_names())}")
    check_shape(tree, name)
    return tree


def load_reproduction(name: str, size: str) -> Reproduction:
    """Read a table or figure at one size.

    Raises:
        ConfigError: There is no such reproduction or size, or the file does not fit together.
    """
    tree = read_reproduction(name)
    if size not in tree["sizes"]:
        raise ConfigError(f"{name} has no size {size!r}{nearest(size, tree['sizes'])}")
    chosen = tree["sizes"][size] or {}
    columns, at_size = _columns_at(tree, chosen, name)
    rows, row_size = tree["rows"], chosen.get("rows") or {}
    choose("row", list(row_size), list(rows), name)
    numbers = _published(tree, name)
    cells = tuple(
        _cell(
            tree, chosen, row, column, (row_size.get(row) or {}, at_size.get(column) or {}), numbers.get((row, column))
        )
        for row in rows
        for column in columns
    )
    return Reproduction(
        name=Path(name).stem,
        title=tree["title"],
        source=tree["source"],
        kind=tree["kind"],
        draw=tree.get("draw"),
        unit=tree.get("unit", "percent"),
        notes=(*(tree.get("notes") or ()), *(chosen.get("notes") or ())),
        size=size,
        rows=tuple(rows),
        columns=tuple(Column(key, *(tree["columns"][key].get(k) for k in ("x", "panel", "obtain"))) for key in columns),
        cells=cells,
    )


def _columns_at(tree: Mapping[str, Any], chosen: Mapping[str, Any], name: str) -> tuple[list[str], Mapping[str, Any]]:
    """Names of the columns that a size has, in the paper's order, and what it changes in them."""
    asked = chosen.get("columns")
    kept = choose("column", None if asked is None else list(asked), list(tree["columns"]), name)
    return list(kept), asked if isinstance(asked, Mapping) else {}


def _published(tree: Mapping[str, Any], name: str) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    published = tree.get("published") or {}
    choose("row", list(published), list(tree["rows"]), name)
    for row, numbers in published.items():
        if len(numbers) != len(tree["columns"]):
            raise ConfigError(
                f"{name}: row {row} has {len(numbers)} published numbers for {len(tree['columns'])} columns"
            )
        found |= {(row, c): float(n) for c, n in zip(tree["columns"], numbers, strict=True) if n is not None}
    return found


def _cell(
    tree: Mapping[str, Any],
    chosen: Mapping[str, Any],
    row: str,
    column: str,
    at_size: tuple[Mapping[str, Any], Mapping[str, Any]],
    published: float | None,
) -> Cell:
    own, place, (own_at_size, place_at_size) = tree["rows"][row], tree["columns"][column], at_size
    settings = (chosen.get("set"), place.get("set"), own.get("set"), place_at_size.get("set"), own_at_size.get("set"))
    entries = (own_at_size, own, place_at_size, place, chosen, tree)
    runs = own.get("runs")
    after = None if runs == "first" else place_at_size.get("after") or place.get("after")
    return Cell(
        row=row,
        column=column,
        recipe=own_at_size.get("recipe") or own["recipe"],
        settings=_joined(settings),
        score=next(entry["score"] for entry in entries if "score" in entry),
        take=next((entry["take"] for entry in entries if "take" in entry), None),
        published=published,
        after=None if after is None else After(after["recipe"], _joined((after.get("set"), chosen.get("after")))),
        alone=runs == "second",
    )


def _joined(maps: Iterable[Mapping[str, Any] | None]) -> Settings:
    return tuple(pair for entry in maps for pair in (entry or {}).items())
