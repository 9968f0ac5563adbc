"""Tables with a column of pictures and one of classes: which columns they are, and Parquet files of them."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayfed_ssl.data.decoding import Picture, Source, Split
from rayfed_ssl.data.folders import Passed, pass_over, passed_over, saved_hint
from rayfed_ssl.errors import nearest, reason
from rayfed_ssl.foreign.file_kinds import file_seems
from rayfed_ssl.foreign.parquet import (
    DAMAGE,
    NUMBERS,
    batches,
    is_any,
    is_string,
    plain_type,
    read_metadata,
    read_table,
    rows_of,
)
from rayfed_ssl.foreign.reading import plain_json


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns; None for one that is found by its type, or not asked for.

    Attributes:
        image: Of pictures.
        label: Of classes.
        group: Of what a sample belongs to, as a hospital.
    """

    image: str | None = None
    label: str | None = None
    group: str | None = None


NO_COLUMNS = Columns()

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "validation", "valid", "val")
"""What the splits may be called."""

_SPLIT = re.compile(r"(?:partial-)?(train|test|validation|valid|val)(?:ing)?(?![a-z])", re.IGNORECASE)
"""The Hub calls what it has converted of a large split "partial-train"."""

USUAL_LABELS = ("label", "labels", "fine_label", "target", "class")

MAX_CLASSES = 1 << 16
"""Larger numbers name samples or times; ImageNet-21k has 21,841 classes."""


def find_parquet(path: Path, download: bool, columns: Columns) -> Source:
    """Find Parquet files by their split's name, in the directory or one or two levels below it."""
    levels = [[path]] if path.is_file() else [sorted(path.glob(level + "*.parquet")) for level in ("", "*/", "*/*/")]
    files = next(filter(None, levels), [])
    if not files:
        remedy = saved_hint(path) or "set data.path to the directory that holds them"
        raise ValueError(f"no *.parquet file in {path}: {remedy}")
    named = {file: _SPLIT.match(file.name) or _SPLIT.fullmatch(file.parent.name) for file in files}
    by_split: dict[str, list[Path]] = {}
    for file, match in named.items():
        by_split.setdefault(match[1].lower() if match else "", []).append(file)
    train = by_split.get("train") or by_split.get("", [])
    test = next((by_split[split] for split in TEST_NAMES if split in by_split), [])
    roots = {file.parent.parent if _SPLIT.fullmatch(file.parent.name) else file.parent for file in train + test}
    if not train or len(roots) > 1:
        examples = ", ".join(str(file.relative_to(path)) for file in files[:4])
        problem = "several datasets" if len(roots) > 1 else "no training file (train*.parquet)"
        raise ValueError(f"{problem} in {path}, which has {examples}: set data.path to the directory of one dataset")
    parts = [train, test] if test else [train]
    table = Table(partial(_schema, train[0]), parts, train[0], _column, _num_rows, _stream_parquet)
    notes = () if path.is_file() else passed_over(_passed(path, levels, {*train, *test}))
    return Source((*train, *test), partial(read_splits, table, columns), has_test=bool(test), notes=notes)


def _passed(path: Path, levels: Sequence[Sequence[Path]], used: Collection[Path]) -> Passed:
    """Count files that are not taken: of Parquet at all levels, others beside those that are."""
    passed: Passed = Counter()
    other = "of another split or directory"
    passed[f"Parquet file {other}", f"Parquet files {other}"] = sum(f not in used for files in levels for f in files)
    for folder in sorted({path, *(file.parent for file in used)}):
        for entry in sorted(folder.iterdir()):
            if entry.is_file() and entry.suffix != ".parquet":
                pass_over(passed, entry.name)
    return passed


@dataclass(frozen=True)
class Table:
    """A table in Hugging Face's image layout.

    Attributes:
        read_schema: Reads the types of its columns.
        parts: The training and, where there are some, the test samples.
        place: Where it lies, for messages.
        column: Reads a column of a part.
        count: Counts the rows of a part.
        pictures: Yields the pictures of ascending rows of a part's column, each with a name for messages.
    """

    read_schema: Callable[[], pa.Schema]
    parts: Sequence[Any]
    place: Path
    column: Callable[[Any, str], list[Any]]
    count: Callable[[Any], int]
    pictures: Callable[[Any, str, np.ndarray], Iterator[tuple[str, Picture]]]

    @cached_property
    def schema(self) -> pa.Schema:
        """The types of its columns."""
        return self.read_schema()


def read_splits(table: Table, columns: Columns) -> tuple[Split, Split | None, tuple[str, ...]]:
    """Read the labels of a table, and prepare its pictures; columns that are not named are found.

    The picture column is a struct with a field `bytes`, or plain binary. Class names come from the schema's
    `huggingface` metadata, else from string labels, else they are the numbers. A missing label becomes -1.
    """
    image, label = find_columns(table, columns)
    notes: tuple[str, ...] = ()
    if label is None:
        schema = ", ".join(table.schema.names)
        notes = (f"no labels: no column ({schema:.200}) holds classes; if one does, set data.label to it",)
        labels, names = [np.full(table.count(part), -1, np.int64) for part in table.parts], list[str]()
    else:
        raw = [table.column(part, label) for part in table.parts]
        labels, names = number_classes(raw, class_names(table.schema, label), table.place)
    train, *test = (
        Split(classes, partial(table.pictures, part, image)) for classes, part in zip(labels, table.parts, strict=True)
    )
    if columns.group is not None:
        groups = group_values(table.column(table.parts[0], columns.group), columns.group)
        if groups.dtype.kind == "i" and (of_group := class_names(table.schema, columns.group)):
            groups = np.array(of_group)[groups]
        train = replace(train, groups=groups)
    train = replace(train, notes=notes)
    return train, next(iter(test), None), tuple(names)


def group_values(values: list[Any], column: str) -> np.ndarray:
    """Take the values of a column that samples are divided by, integers or strings [N]."""
    if not all(isinstance(value, str | int) for value in values):
        other = next(value for value in values if not isinstance(value, str | int))
        raise ValueError(f"partition.column={column} must hold an integer or a string in every row, got {other!r:.40}")
    return np.array(values)


def number_classes(raw: list[list[Any]], names: list[str] | None, file: Path) -> tuple[list[np.ndarray], list[str]]:
    """Turn labels of splits, numbers or names, into classes, int64 with -1 for None, and give the classes' names."""
    raw = [[_whole(value) for value in values] for values in raw]
    if other := [value for values in raw for value in values if not isinstance(value, str | int | None)]:
        raise ValueError(
            f"data.label: classes of {file} are integers or strings, got {other[0]!r:.40}: name another column"
        )
    labels = {value for values in raw for value in values} - {None}
    if len(kinds := {isinstance(label, str) for label in labels}) > 1:
        raise ValueError(
            f"data.label: classes of {file} and of the files beside it are strings and integers: use one of them"
        )
    if kinds == {True}:
        names = sorted(labels)
        code = {name: number for number, name in enumerate(names)}
        raw = [[None if value is None else code[value] for value in values] for values in raw]
        labels = set(code.values())
    if names is None and max(labels, default=0) >= MAX_CLASSES:
        raise ValueError(
            f"data.label: numbers up to {max(labels)} in {file} are no classes: name the column of classes, or of strings"
        )
    names = names or [str(number) for number in range(max(labels, default=-1) + 1)]
    if labels and not -1 <= min(labels) <= max(labels) < len(names):
        raise ValueError(f"labels of {file} run from {min(labels)} to {max(labels)}, but it names {len(names)} classes")
    return [np.array([-1 if value is None else value for value in values], np.int64) for values in raw], names


def _whole(label: Any) -> Any:
    """Take a number that is whole, or a truth value, for an integer; what is not a number stands for a missing label."""
    if isinstance(label, float):
        return None if math.isnan(label) else int(label) if label.is_integer() else label
    return int(label) if isinstance(label, bool) else label


def _num_rows(files: Sequence[Path]) -> int:
    total = 0
    for file in files:
        with _reading(file):
            total += read_metadata(file).num_rows
    return total


def _stream_parquet(files: Sequence[Path], column: str, rows: np.ndarray) -> Iterator[tuple[str, Picture]]:
    start = 0
    for file in files:
        with _reading(file):
            for values in batches(file, column):
                for row in rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(values))] - start:
                    yield f"{file.name} row {start + row}", encoded(values[row].as_py(), file.parent)
                start += len(values)


def encoded(value: Any, directory: Path) -> Picture:
    """Take a picture out of a row: bytes, or Hugging Face's struct, whose path stands for bytes; b"" for none."""
    if isinstance(value, dict) and not value["bytes"] and value.get("path"):
        path = directory / str(value["path"])
        if not path.resolve().is_relative_to(directory.resolve()):
            raise ValueError(f"it names the picture {path}, which lies outside of {directory}: put it into the table")
        return path
    return (value["bytes"] if isinstance(value, dict) else value) or b""


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        is_damaged = isinstance(error, pa.ArrowException | SystemError) or getattr(error, "errno", 0) is None
        if not is_damaged:
            raise ValueError(f"{file} cannot be used: {reason(error)}") from error
        why = file_seems(file, but="Parquet") or reason(error)
        raise ValueError(f"{file} is not a readable Parquet file ({why}): get it again") from error


def _schema(file: Path) -> pa.Schema:
    with _reading(file):
        return read_metadata(file).schema.to_arrow_schema()


def class_names(schema: pa.Schema, label: str) -> list[str] | None:
    """Find the names of classes in what Hugging Face's library notes in a schema."""
    try:
        names = plain_json(schema.metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (LookupError, TypeError, ValueError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _column(files: Sequence[Path], name: str) -> list[Any]:
    values: list[Any] = []
    for file in files:
        with _reading(file):
            values += [row[name] for row in rows_of(read_table(file, columns=[name], any_codec=True))]
    return values


def find_columns(table: Table, asked: Columns) -> tuple[str, str | None]:
    """Name the columns of pictures and of classes, by their types and usual names where they are not named.

    The second is None where no column can hold classes.
    """
    schema, file = table.schema, table.place
    for key, name in (("data.image", asked.image), ("data.label", asked.label), ("partition.column", asked.group)):
        if name is not None and name not in schema.names:
            raise ValueError(f"{key}: {file} has no column {name!r}{nearest(name, schema.names)}")
    structs = [f.name for f in schema if pa.types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0]
    binary = [f.name for f in schema if is_any(f.type, BINARY)]
    image = asked.image or _choose(structs or binary, ("img", "image"), "picture", "data.image", schema, file)
    if image not in structs + binary:
        raise ValueError(
            f"data.image: {image!r} of {file} is no picture column (struct with bytes, or binary): name another column"
        )
    candidates = [] if asked.label else _classes(table)
    usual = [f for f in schema if f.name in USUAL_LABELS and f.name != image and not pa.types.is_null(f.type)]
    if other := [f for f in usual if not (asked.label or candidates)]:
        raise ValueError(
            f"data.label: classes of {file} are integers or strings, got {other[0].type} in {other[0].name}: write others, "
            "or leave the column out"
        )
    if not (asked.label or candidates):
        return image, None
    label = asked.label or _choose(candidates, USUAL_LABELS, "label", "data.label", schema, file)
    if nested := [field.type for field in schema if field.name == label and pa.types.is_nested(field.type)]:  # of two
        raise ValueError(f"data.label: classes of {file} are integers or strings, got {nested[0]}: name another column")
    return image, label


BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)


def _classes(table: Table) -> list[str]:
    """Name what may hold classes: the only column whose classes have names, or else usual names and integers.

    A column with another value in each row tells samples apart, and not classes.
    """
    named = [name for name in table.schema.names if class_names(table.schema, name)]
    if len(named) == 1:
        return named
    kinds = [(field.name, plain_type(field.type)) for field in table.schema]
    usual = [name for name, kind in kinds if name in USUAL_LABELS and (is_string(kind) or is_any(kind, NUMBERS))]
    return usual or [name for name, kind in kinds if pa.types.is_integer(kind) and not _tells_apart(table, name)]


def _tells_apart(table: Table, name: str) -> bool:
    values = table.column(table.parts[0], name)
    return len(values) > 1 and len(set(values)) == len(values)


def _choose(
    candidates: list[str], preferred: tuple[str, ...], what: str, key: str, schema: pa.Schema, file: Path
) -> str:
    """Choose the preferred or only candidate; `key` is what names one in a configuration."""
    chosen = [name for name in preferred if name in candidates][:1] or candidates
    if len(chosen) != 1:
        raise ValueError(
            f"{file} needs one {what} column, but {len(chosen)} of its columns ({', '.join(schema.names)}) could be it: "
            f"name it in {key}"
        )
    return chosen[0]
