"""Tables that a run adds rows to, at a cost in time and memory that does not grow with what is there already.

A table is a Parquet file and, while a run goes on, a journal beside it: an Arrow stream to which each round adds one batch,
flushed to disk. The journal says how many rows of the Parquet file it follows, so whoever is killed at whatever moment while
one is merged into the other, every row is read once. A batch that was cut off belongs to a round that was not committed.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_ssl.places import explained, write_durably

Row = Mapping[str, Any]

AFTER = b"after"
"""Key in the journal's schema: rows of the Parquet file that the journal follows."""


class GrowingTable:
    """Rows on disk.

    Args:
        path: The Parquet file; the journal is beside it.
        schema: Columns and types.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._journal = path.with_suffix(".arrows")
        self._file: Any = None
        self._writer: Any = None
        self._table: pa.Table | None = None
        self._rows: list[dict[str, Any]] | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, kept in memory until more are added."""
        if self._rows is None:
            self._rows = (self._table if self._table is not None else self.read()).to_pylist()
            self._table = None
        return self._rows

    def load(self) -> None:
        """Read all rows now, for who wants to know whether they can be read.

        Raises:
            OSError, ValueError: As `read`.
        """
        self._table = self.read()

    def read(self) -> pa.Table:
        """Read all rows.

        Raises:
            OSError: The Parquet file is missing.
            ValueError: It is damaged, or has other columns.
        """
        return self._with_journal(self._checked(pq.read_table(self._path)))

    def salvage(self) -> bool:
        """Keep what can be read of a damaged table; a Parquet file that cannot is put aside as NAME.parquet.damaged.

        Returns:
            Whether all was whole.
        """
        with suppress(OSError, ValueError, pa.ArrowException):
            self.load()
            return True
        empty = self._schema.empty_table()
        try:
            table = self._checked(pq.read_table(self._path))
        except (OSError, ValueError, pa.ArrowException):
            table = empty
            with suppress(FileNotFoundError):
                self._path.rename(self._path.with_suffix(".parquet.damaged"))
        with suppress(OSError, ValueError, pa.ArrowException):
            table = self._with_journal(table) if table.num_rows else self._journal_alone()
        self.replace(table)
        return False

    def _journal_alone(self) -> pa.Table:
        with pa.OSFile(str(self._journal)) as file:
            return pa.Table.from_batches(_complete_batches(file)[1], self._schema)

    def _checked(self, table: pa.Table) -> pa.Table:
        if set(table.schema.names) != set(self._schema.names):
            raise ValueError(
                f"a table has columns {', '.join(table.schema.names)} instead of {', '.join(self._schema.names)}"
            )
        return table.select(self._schema.names).cast(self._schema)

    def _with_journal(self, table: pa.Table) -> pa.Table:
        try:
            with pa.OSFile(str(self._journal)) as file:
                after, batches = _complete_batches(file)
        except FileNotFoundError:
            return table
        merged = after + sum(batch.num_rows for batch in batches) <= len(table)
        if merged or after > len(table):  # it was merged, or cut back, and not yet removed
            return table
        return pa.concat_tables([table[:after], pa.Table.from_batches(batches, self._schema)])

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows, on disk when this returns.

        Raises:
            OSError: There is no room; the message says what to do.
        """
        self._rows = self._table = None
        if self._writer is None:
            self._begin()
        try:
            self._writer.write_batch(pa.RecordBatch.from_pylist(list(rows), self._schema))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise explained(error, self._journal) from error

    def _begin(self) -> None:
        """Begin a journal; an old one, of another process, is merged first."""
        self.merge()
        schema = self._schema.with_metadata({AFTER: str(pq.read_metadata(self._path).num_rows)})
        self._file = self._journal.open("wb")
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_stream(self._file, schema, options=options)

    def merge(self) -> None:
        """Write the journal's rows into the Parquet file."""
        if self._journal.exists():
            self.replace(self.read())

    def replace(self, table: pa.Table) -> None:
        """Put other rows in the place of all."""
        self._rows = self._table = self._writer = None
        write_table(self._path, table)
        if self._file is not None:
            self._file.close()
            self._file = None
        self._journal.unlink(missing_ok=True)

    def create(self, rows: Sequence[Row] = ()) -> None:
        """Make the table."""
        self.replace(pa.Table.from_pylist(list(rows), schema=self._schema))

    def truncate(self, column: str, last: int) -> None:
        """Remove rows that have more than a number in a column."""
        table = self.read()
        self.replace(table.filter(pc.less_equal(table[column], last)))


def _complete_batches(file: Any) -> tuple[int, list[pa.RecordBatch]]:
    """Read a journal up to where its writer was killed; without a header it follows nothing and holds nothing."""
    batches = []
    after = 0
    try:
        with pa.ipc.open_stream(file) as stream:
            after = int(stream.schema.metadata[AFTER])
            for batch in stream:
                batches.append(batch)  # noqa: PERF402 (what came before a cut counts)
    except (pa.ArrowInvalid, OSError):
        pass
    return after, batches


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file as a whole or not at all."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    write_durably(path, buffer.getvalue().to_pybytes())
