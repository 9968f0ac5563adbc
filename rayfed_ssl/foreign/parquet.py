"""Reading Parquet files of numbers and strings that somebody else may have written.

Run lengths and dictionaries make many values of few bytes, so a file's size bounds nothing: what it says of its rows,
columns and sizes is looked at before any column is read, and strings are read as indices into their dictionaries.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_ssl.foreign.reading import open_regular

MAX_CELLS = 12_000_000
"""Rows times columns of a table; as Python's rows they take 80 bytes each."""

FREE_CELLS, CELLS_PER_BYTE = 1_000_000, 100
"""A table has at most so many cells, and so many more for each byte of its file: a ledger has up to 51 a byte."""

MAX_BYTES = 64 << 20
"""Of a file's columns that are read, as snappy would store them: it makes at most 24 bytes of one."""

BATCH = 256 << 20
"""Bytes of pictures that are read at a time."""

MAX_STRING_BYTES = 8 << 20
"""Of a file's columns of strings, as they lie there."""

MAX_TEXT = 256 << 20
"""Bytes of all strings of a table."""

MAX_FOOTER = 4 << 20
"""Bytes of a file's metadata."""

EXPANSION = 24
"""Bytes that snappy makes of one at most; other codecs make thousands."""

DAMAGE = (OSError, ValueError, SystemError, pa.ArrowException)
"""What pyarrow raises for a damaged file."""

Rows = list[dict[str, Any]]


class OtherTypeError(ValueError):
    """A column holds neither numbers nor strings."""


def read_table(
    path: Path,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    max_rows: int | None = None,
    *,
    any_codec: bool = False,
) -> pa.Table:
    """Read a table.

    Args:
        path: The file.
        schema: What it has to hold, in any order and without empty cells; None takes whatever numbers and strings it holds.
        columns: Which columns to read; None reads all.
        max_rows: How many rows are expected at most, if fewer than a table of its size may have.
        any_codec: Whether it may be compressed by another codec than snappy, as the data of a user are.

    Raises:
        One of `DAMAGE`: It is missing, damaged or no regular file, larger than a table may be, or holds something else.
    """
    with open_regular(path) as file:
        metadata = _metadata(file)
        held = _plain(metadata.schema.to_arrow_schema())
        names = held.names if columns is None else list(columns)
        _check_columns(held, schema, names)
        _check_size(metadata, names, max_rows, file.seek(0, 2))
        strings = [field.name for field in held if field.name in names and is_string(field.type)]
        if not any_codec:
            _check_codecs(metadata)
        reader = pq.ParquetFile(file, metadata=metadata, read_dictionary=strings)
        table = reader.read(columns=names if schema is None else schema.names, use_threads=False)
        table.validate(full=True)
        if sum(_text_bytes(table[name]) for name in strings) > MAX_TEXT:
            raise ValueError(f"its strings take more than {MAX_TEXT >> 20} MiB")
    table = table.cast(pa.schema([held.field(name) for name in names]) if schema is None else schema)
    if schema is not None and any(column.null_count for column in table.columns):
        raise ValueError("it has empty cells")
    return table


def read_metadata(path: Path) -> pq.FileMetaData:
    """Read what describes a file; errors as in `read_table`."""
    with open_regular(path) as file:
        return _metadata(file)


def batches(path: Path, column: str) -> Iterator[pa.Array]:
    """Read a column of pictures in parts of at most `BATCH` bytes, or one row; errors as in `read_table`."""
    with open_regular(path) as file:
        reader = pq.ParquetFile(file, metadata=_metadata(file))
        _check_names(reader.schema_arrow, [column])
        for index in range(reader.num_row_groups):
            group = reader.metadata.row_group(index)
            parts = [group.column(number) for number in range(group.num_columns)]
            parts = [part for part in parts if part.path_in_schema.split(".")[0] == column]
            # Each row can be the whole chunk: a dictionary makes a few kB a million pictures.
            most = BATCH // (EXPANSION * max(1, sum(map(_stored, parts))))
            for batch in reader.iter_batches(max(1, min(1024, most)), row_groups=[index], columns=[column]):
                batch.validate(full=True)
                yield batch.column(0)


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Make a table of numbers and strings without empty cells; `Table.from_pylist` would import pandas first."""
    return pa.Table.from_arrays(
        [_array([row[field.name] for row in rows], field.type) for field in schema], schema=schema
    )


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not is_string(kind):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, str(kind)))])
    texts = [text.encode() for text in values]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])


def rows_of(table: pa.Table) -> Rows:
    """Make a dict of each row, as `to_pylist` does in twice the memory: equal strings are one object here."""
    values = [_values(column) for column in table.columns if len(column)]  # pyarrow joins no chunks by way of pandas
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*values, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    if not is_string(column.type):
        return list(column.to_pylist())
    encoded = column.combine_chunks().dictionary_encode()
    words = encoded.dictionary.to_pylist()
    return [None if index is None else words[index] for index in encoded.indices.to_pylist()]


def _metadata(file: BinaryIO) -> pq.FileMetaData:
    size = file.seek(0, 2)
    file.seek(max(0, size - 8))
    length, magic = file.read(4), file.read(4)
    if magic == b"PAR1" and int.from_bytes(length, "little") > MAX_FOOTER:
        raise ValueError(f"what describes it is larger than {MAX_FOOTER >> 20} MiB")
    return pq.read_metadata(file)


def _check_names(held: pa.Schema, names: Sequence[str]) -> None:
    if missing := set(names) - set(held.names):
        raise ValueError(f"it has no column {min(missing)!r}, but {', '.join(held.names):.200}")


def _check_columns(held: pa.Schema, schema: pa.Schema | None, names: Sequence[str]) -> None:
    if len(set(held.names)) < len(held):
        raise ValueError("it has two columns of one name")
    _check_names(held, names)
    if schema is not None and {(f.name, f.type) for f in held} != {(f.name, f.type) for f in schema}:
        got, wanted = (", ".join(f"{field.name!r} ({field.type})" for field in side) for side in (held, schema))
        raise ValueError(f"it has columns {got:.500} instead of {wanted}")
    for name in names:
        kind = held.field(name).type
        if not (is_string(kind) or is_any(kind, NUMBERS) or pa.types.is_null(kind)):
            raise OtherTypeError(f"its column {name!r} holds {kind}: it takes numbers or strings")


def _chunks(metadata: pq.FileMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    """List the chunks of all columns, group by group."""
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        yield from (group.column(number) for number in range(metadata.num_columns))


def _check_size(metadata: pq.FileMetaData, names: Sequence[str], max_rows: int | None, size: int) -> None:
    cells = min(MAX_CELLS, FREE_CELLS + CELLS_PER_BYTE * size)
    most = min(cells // max(1, len(names)), MAX_CELLS if max_rows is None else max_rows)
    parts = [part for part in _chunks(metadata) if part.path_in_schema in names]
    in_groups = sum(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
    if (rows := max(metadata.num_rows, in_groups)) > most:
        raise ValueError(f"it has {rows} rows, more than the {most} that it may have")
    text = sum(_stored(part) for part in parts if part.physical_type == "BYTE_ARRAY")
    if text > MAX_STRING_BYTES or sum(map(_stored, parts)) > MAX_BYTES:
        raise ValueError(
            f"its strings take more than {MAX_STRING_BYTES >> 20} MiB, or its columns {MAX_BYTES >> 20} MiB"
        )


def _check_codecs(metadata: pq.FileMetaData) -> None:
    """Refuse a table of a run that this package has not written: what a page says of its size binds other codecs alone."""
    if other := {chunk.compression for chunk in _chunks(metadata)} - {"SNAPPY", "UNCOMPRESSED"}:
        raise ValueError(f"it is compressed by {min(other)}, and the tables of runs by snappy")


def _stored(part: pq.ColumnChunkMetaData) -> int:
    """Give the bytes that snappy would need at least; a ValueError for a chunk that another codec has made far smaller."""
    if part.compression in ("SNAPPY", "UNCOMPRESSED"):
        return int(part.total_compressed_size)
    if part.total_uncompressed_size > max(BATCH, EXPANSION * part.total_compressed_size):
        size, compression = part.total_uncompressed_size >> 20, part.compression
        raise ValueError(
            f"its column {part.path_in_schema} takes {size} MiB without {compression}: write it with snappy"
        )
    return max(int(part.total_compressed_size), int(part.total_uncompressed_size) // EXPANSION)


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Count the bytes of strings that are indices into a dictionary."""
    lengths = (
        pc.binary_length(chunk.dictionary.cast(pa.large_binary())).take(chunk.indices) for chunk in column.chunks
    )
    return sum(pc.sum(each).as_py() or 0 for each in lengths)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Take the types of values for those of dictionaries and views, and leave metadata out."""
    return pa.schema([(field.name, plain_type(field.type)) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Take the type of a dictionary's values, and strings for views of them."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_string_view(kind) else kind


NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)


def is_any(kind: pa.DataType, kinds: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    """Whether a type is one of several."""
    return any(is_kind(kind) for is_kind in kinds)


def is_string(kind: pa.DataType) -> bool:
    """Whether a column holds strings, however they lie in memory."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
