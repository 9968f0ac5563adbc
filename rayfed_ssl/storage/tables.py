"""Tables that a run adds rows to, at a cost in time and memory that does not grow with what is there already.

A table is a Parquet file and, while a run goes on, a journal beside it: an Arrow stream to which each round adds one batch,
flushed to disk. The journal says how many rows of the Parquet file it follows, so whoever is killed at whatever moment while
one is merged into the other, every row is read once. A batch that was cut off belongs to a round that was not committed.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_ssl.storage.filesystem import explained, write_durably

Row = Mapping[str, Any]

DAMAGE = (OSError, ValueError, SystemError, pa.ArrowException)
"""What reading a damaged file raises."""

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
        return self._joined(self._checked(self._parquet()), self._read_journal())

    def salvage(self, beginning: Sequence[Row] = ()) -> None:
        """Keep what can be read of a damaged table; the files that cannot stay beside it, as NAME.damaged.

        Args:
            beginning: Rows that the table was made with, in case its Parquet file is lost.

        Raises:
            OSError, MemoryError: A file cannot be read now, which is no damage; nothing was changed.
        """
        try:
            table: pa.Table | None = self._checked(self._parquet())
        except DAMAGE as error:
            _raise_if_passing(error)
            table = None
        journal = self._read_journal()
        if table is not None and (journal is None or not journal.damaged):
            self._table = self._joined(table, journal)  # as `load`: whoever asks next need not read it again
            return
        rows = [] if journal is None else journal.batches
        if table is None:
            first = pa.Table.from_pylist(list(beginning), schema=self._schema)
            found = pa.concat_tables([first, pa.Table.from_batches(rows, self._schema)])
            _put_aside(self._path)
        else:
            found = self._joined(table, journal)
        _put_aside(self._journal)  # before its rows are anywhere else, so that none is ever counted twice
        self.replace(found)

    def _parquet(self) -> pa.Table:
        return pq.read_table(self._path, page_checksum_verification=True)

    def _checked(self, table: pa.Table) -> pa.Table:
        if set(table.schema.names) != set(self._schema.names):
            raise ValueError(
                f"a table has columns {', '.join(table.schema.names)} instead of {', '.join(self._schema.names)}"
            )
        table = table.select(self._schema.names).cast(self._schema)
        table.validate(full=True)
        return table

    def _joined(self, table: pa.Table, journal: "_Journal | None") -> pa.Table:
        if journal is None:
            return table
        merged = journal.after + sum(batch.num_rows for batch in journal.batches) <= len(table)
        if merged or journal.after > len(table):  # it was merged, or cut back, and not yet removed
            return table
        return pa.concat_tables([table[: journal.after], pa.Table.from_batches(journal.batches, self._schema)])

    def _read_journal(self) -> "_Journal | None":
        if self._journal.is_dir():
            return _Journal(0, [], damaged=True)
        try:
            with pa.OSFile(str(self._journal)) as file:
                return _read_batches(file, self._schema)
        except FileNotFoundError:
            return None

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


@dataclass(frozen=True)
class _Journal:
    """What could be read of a journal.

    Attributes:
        after: Rows of the Parquet file that it follows.
        batches: What was added, up to where its writer was killed.
        damaged: Whether it is no journal of this table's, or holds what nobody wrote.
    """

    after: int
    batches: list[pa.RecordBatch]
    damaged: bool = False


def _read_batches(file: Any, schema: pa.Schema) -> _Journal:
    """Read a journal up to where its writer was killed; without a header it follows nothing and holds nothing."""
    batches: list[pa.RecordBatch] = []
    try:
        stream = pa.ipc.open_stream(file)
        after = int(stream.schema.metadata[AFTER])
        if not stream.schema.equals(schema):
            raise ValueError("it has other columns")
    except (*DAMAGE, KeyError, TypeError):
        return _Journal(0, [], damaged=file.size() > 0)
    while True:
        try:
            batch = stream.read_next_batch()
        except StopIteration:
            return _Journal(after, batches)
        except (pa.ArrowInvalid, OSError):  # what came before a cut counts
            return _Journal(after, batches)
        except (*DAMAGE, KeyError, TypeError):
            return _Journal(after, batches, damaged=True)
        try:
            batch.validate(full=True)
        except pa.ArrowException:
            return _Journal(after, batches, damaged=True)
        batches.append(batch)


def _raise_if_passing(error: BaseException) -> None:
    """Pass on what says nothing of a file's content: no permission, no memory, a disk or a network that is away."""
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.EISDIR):
        raise error


def _put_aside(path: Path) -> None:
    """Rename a file, over no other, so that nothing is lost that somebody may still read."""
    if not path.exists():
        return
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged" + ("" if number == 1 else f"-{number}"))).exists():
        number += 1
    path.rename(aside)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file as a whole or not at all."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, write_page_checksum=True)
    write_durably(path, buffer.getvalue().to_pybytes())
