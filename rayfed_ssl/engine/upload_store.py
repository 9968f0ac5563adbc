"""The uploads of a round in one process: some in memory, the others in a file without a name that goes with the process."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from rayfed_ssl.storage.addresses import Directory, backend_of
from rayfed_ssl.storage.filesystem import LocalDirectory, explained
from rayfed_ssl.trees import Flat, flatten, nbytes, restore

UPLOAD_BYTES = 1 << 28
"""Bytes of uploads that may be in memory at a time, besides the one that is being read."""


@dataclass(frozen=True)
class _Spilled:
    """An upload whose arrays, of these types and lengths, lie one after the other in the file."""

    flat: Flat
    begin: int
    arrays: list[tuple[np.dtype[Any], int]]


class UploadStore(Mapping[int, Any]):
    """Uploads in ascending client id; those that memory has no room for are read from the file on each access."""

    def __init__(self) -> None:
        self._uploads: dict[int, Any] = {}
        self._free_bytes = UPLOAD_BYTES
        self._file: IO[bytes] | None = None

    def add(self, client_id: int, upload: Any, directory: Directory) -> None:
        """Add an upload; the file is in this directory, or where that is a bucket in the system's for such files.

        Raises:
            OSError: No space or no permission; the message says what to do.
        """
        if (size := nbytes(upload)) <= self._free_bytes:
            self._free_bytes -= size
            self._uploads[client_id] = upload
        else:
            self._uploads[client_id] = self._write(flatten(upload), directory)

    def _write(self, flat: Flat, directory: Directory) -> _Spilled:
        backend = backend_of(directory)
        folder = backend.path if isinstance(backend, LocalDirectory) else Path(tempfile.gettempdir())
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (it is open for a round)
            begin = self._file.seek(0, os.SEEK_END)
            for array in flat.arrays:
                self._file.write(array.view(np.uint8).data)
            self._file.flush()
        except OSError as error:
            raise explained(error, folder / "uploads") from error
        return _Spilled(replace(flat, arrays=[]), begin, [(array.dtype, len(array)) for array in flat.arrays])

    def __getitem__(self, client_id: int) -> Any:
        upload = self._uploads[client_id]
        if not isinstance(upload, _Spilled):
            return upload
        assert self._file is not None, "it holds this upload"
        self._file.seek(upload.begin)
        arrays = [np.frombuffer(self._file.read(length * dtype.itemsize), dtype) for dtype, length in upload.arrays]
        return restore(replace(upload.flat, arrays=arrays))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._uploads))

    def __len__(self) -> int:
        return len(self._uploads)

    def clear(self) -> None:
        """Free memory and file."""
        if self._file is not None:
            self._file.close()
        self._uploads, self._free_bytes, self._file = {}, UPLOAD_BYTES, None
