"""Tables that a run appends rows to, at a cost per round that does not grow.

While a run continues, each append writes a small Parquet file, TABLES/NAME-000012.parquet. `merge` joins them into
NAME.parquet, whose metadata holds the number of the last file that it contains, so that a merge that is killed before it
removed the small files counts no row twice.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.foreign.parquet import DAMAGE, MAX_CELLS, read_metadata, read_table, rows_of, table_of
from rayfed_ssl.storage.filesystem import explained, write_atomically

Row = Mapping[str, Any]

TABLES = "tables"
"""The directory of the small files, beside the merged ones."""

MERGED = b"merged"
"""Key in the metadata of NAME.parquet: the number of the last small file that it contains."""


class GrowingTable:
    """Rows on disk; the path is that of the merged Parquet file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._last: int | None = None
        self._rows: list[dict[str, Any]] | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, kept in memory until more are appended."""
        if self._rows is None:
            self._rows = rows_of(self.read())
        return self._rows

    def read(self) -> pa.Table:
        """Read all rows.

        Raises:
            ConfigError: A file is missing or damaged, or has other columns.
        """
        merged = self._merged()
        try:
            table = self._concatenated(merged)
        except ConfigError:
            if self._merged() == merged:
                raise
        else:
            if self._merged() == merged:
                return table
        return self.read()  # a writer merged the files meanwhile

    def _concatenated(self, merged: int) -> pa.Table:
        tables, room = list[pa.Table](), MAX_CELLS // len(self._schema)
        for file in (self._path, *self._parts(merged)):
            tables.append(_read(file, self._schema, room))
            room -= len(tables[-1])
        return pa.concat_tables(tables)

    def _parts(self, merged: int) -> list[Path]:
        """List the small files after the last that the merged one contains, in order."""
        return [file for file in self._small_files() if _number(file) > merged]

    def _small_files(self) -> list[Path]:
        pattern = re.compile(rf"{self._path.stem}-\d+\.parquet")
        return sorted(file for file in (self._path.parent / TABLES).glob("*") if pattern.fullmatch(file.name))

    def _merged(self) -> int:
        try:
            return int((read_metadata(self._path).metadata or {}).get(MERGED, 0))
        except DAMAGE:
            return 0

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows.

        Raises:
            OSError: No space or no permission; the message says what to do.
        """
        if self._last is None:
            merged = self._merged()
            self._last = max(map(_number, self._parts(merged)), default=merged)
        file = self._path.parent / TABLES / f"{self._path.stem}-{self._last + 1:06d}.parquet"
        try:
            file.parent.mkdir(exist_ok=True)
            write_table(file, table_of(list(rows), self._schema))
        except OSError as error:
            raise explained(error, file) from error
        self._last, self._rows = self._last + 1, None

    def merge(self) -> None:
        """Join the small files into the merged one."""
        if parts := self._parts(self._merged()):
            self._replace(self.read(), _number(parts[-1]))

    def truncate(self, last: int) -> None:
        """Remove the rows of later rounds."""
        table, merged = self.read(), self._merged()
        number = max(map(_number, self._parts(merged)), default=merged)
        self._replace(table.filter(pc.less_equal(table["round"], last)), number)

    def create(self, rows: Sequence[Row] = ()) -> None:
        """Make the table."""
        self._replace(table_of(list(rows), self._schema), 0)

    def _replace(self, table: pa.Table, merged: int) -> None:
        write_table(self._path, table.replace_schema_metadata({MERGED: str(merged)}))
        self._last, self._rows = merged, None
        for file in self._small_files():
            file.unlink()
        with suppress(OSError):  # another table's files are there
            (self._path.parent / TABLES).rmdir()


def _number(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


def _read(file: Path, schema: pa.Schema, max_rows: int) -> pa.Table:
    try:
        return read_table(file, schema, max_rows=max_rows)
    except PermissionError:
        raise
    except DAMAGE as error:
        state = f"damaged ({reason(error)})" if file.exists() else "missing"
        raise ConfigError(f"{file} is {state}: restore it from a copy, or start a new run") from None


def rows_if_any(path: Path, schema: pa.Schema, remedy: str) -> list[dict[str, Any]]:
    """Read the rows of a table, none where it is missing; a ConfigError that ends with the remedy where it is damaged."""
    table = table_if_any(path, schema, remedy)
    return [] if table is None else rows_of(table)


def table_if_any(path: Path, schema: pa.Schema, remedy: str) -> pa.Table | None:
    """Read a table, None where it is missing; a ConfigError that ends with the remedy where it is damaged."""
    if not path.exists():
        return None
    try:
        return read_table(path, schema)
    except DAMAGE as error:
        raise ConfigError(f"{path} is damaged ({reason(error)}): {remedy}") from None


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file atomically."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    write_atomically(path, buffer.getvalue().to_pybytes())
