"""What a reproduction file has to look like, checked before anything is run: a mistake in it is one line."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayfed_ssl.errors import ConfigError, nearest

DRAWINGS = ("bars", "lines", "losses", "rounds", "boxplots", "heatmaps", "tsne")

_KEYS = (
    *("title", "source", "kind", "draw", "unit", "score", "take", "published_score", "notes"),
    *("rows", "columns", "published", "sizes"),
)
_SOURCE = ("paper", "item", "arxiv")
_ROW = ("recipe", "set", "score", "take", "runs")
_COLUMN = ("set", "score", "take", "after", "x", "panel", "obtain")
_AFTER = ("recipe", "set")
_SIZE = ("set", "score", "after", "rows", "columns", "notes")
_TEXTS = ("title", "unit", "score", "take", "published_score", "recipe", "panel", "obtain", *_SOURCE)


def check_shape(tree: Any, name: str) -> None:
    """Check a file's keys, and that each holds what it should.

    Raises:
        ConfigError: The first that does not.
    """
    _check_keys(tree, _KEYS, name)
    _check_required(tree, ("title", "source", "kind", "score", "rows", "columns", "sizes"), name)
    _check_keys(tree["source"], _SOURCE, f"{name}, source")
    _check_required(tree["source"], _SOURCE, f"{name}, source")
    if tree["kind"] not in ("table", "figure"):
        raise ConfigError(f"{name}: kind is table or figure, got {tree['kind']!r}")
    if tree["kind"] == "figure" and tree.get("draw") not in DRAWINGS:
        raise ConfigError(f"{name}: unknown draw {tree.get('draw')!r}{nearest(str(tree.get('draw')), DRAWINGS)}")
    _check_notes(tree.get("notes"), name)
    for row, entry in _entries(tree["rows"], f"{name}, rows"):
        _check_row(entry, f"{name}, row {row}")
        _check_required(entry, ("recipe",), f"{name}, row {row}")
    for column, entry in _entries(tree["columns"], f"{name}, columns"):
        _check_column(entry, f"{name}, column {column}")
    for row, numbers in _entries(tree.get("published") or {}, f"{name}, published"):
        _check_numbers(numbers, f"{name}, published {row}")
    for size, chosen in _entries(tree["sizes"], f"{name}, sizes"):
        _check_size(chosen or {}, f"{name}, size {size}")


def _check_size(chosen: Any, where: str) -> None:
    _check_keys(chosen, _SIZE, where)
    _check_keys(chosen.get("after") or {}, None, f"{where}, after")
    _check_notes(chosen.get("notes"), where)
    for row, entry in _entries(chosen.get("rows") or {}, f"{where}, rows"):
        _check_row(entry or {}, f"{where}, row {row}")
    columns = chosen.get("columns") or []
    if isinstance(columns, list):
        if not all(isinstance(column, str) for column in columns):
            raise ConfigError(f"{where}: columns must be names, got {columns!r}: put names in quotes")
        return
    for column, entry in _entries(columns, f"{where}, columns"):
        _check_column(entry or {}, f"{where}, column {column}")


def _check_row(entry: Any, where: str) -> None:
    _check_keys(entry, _ROW, where)
    if entry.get("runs", "first") not in ("first", "second"):
        raise ConfigError(f"{where}: runs is first or second, got {entry['runs']!r}")


def _check_column(entry: Any, where: str) -> None:
    _check_keys(entry, _COLUMN, where)
    if "x" in entry and not _is_number(entry["x"]):
        raise ConfigError(f"{where}: x must be a number, got {entry['x']!r}")
    if entry.get("after") is not None:
        _check_keys(entry["after"], _AFTER, f"{where}, after")
        _check_required(entry["after"], ("recipe",), f"{where}, after")


def _check_keys(entry: Any, known: Sequence[str] | None, where: str) -> None:
    """Check that an entry holds known keys, texts where texts are meant, and settings under `set`."""
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} must hold keys and values, got {entry!r}")
    for key, value in entry.items():
        if known is None:
            continue
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(str(key), known)}")
        if key in _TEXTS and not isinstance(value, str) and not (key == "take" and value is None):
            raise ConfigError(f"{where}: {key} must be a text, got {value!r}: put it in quotes")
        if key == "set":
            for name in _mapping(value or {}, f"{where}, set"):
                if not isinstance(name, str):
                    raise ConfigError(f"{where}: set has keys of the configuration, got {name!r}")


def _check_required(entry: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in keys:
        if entry.get(key) is None:
            raise ConfigError(f"{where}: {key} is missing")


def _check_notes(notes: Any, where: str) -> None:
    if notes is not None and not (isinstance(notes, list) and all(isinstance(note, str) for note in notes)):
        raise ConfigError(f"{where}: notes must be a list of texts, got {notes!r}: put each in quotes")


def _check_numbers(numbers: Any, where: str) -> None:
    if not isinstance(numbers, list) or not all(number is None or _is_number(number) for number in numbers):
        raise ConfigError(f"{where} must be a list of numbers, ~ where there is none, got {numbers!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mapping(entry: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} must hold keys and values, got {entry!r}")
    return entry


def _entries(entry: Any, where: str) -> list[tuple[str, Any]]:
    """Name and content of each entry; a name is a text."""
    for name in _mapping(entry, where):
        if not isinstance(name, str):
            raise ConfigError(f"{where}: a name must be a text, got {name!r}: put it in quotes")
    return list(entry.items())
