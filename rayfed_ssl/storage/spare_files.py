"""Large files that are not needed any more and are overwritten by the next ones.

A state of 60 MB takes 7 ms to write over another and 15 to 200 ms into a new file, whose pages the system must find.
A file that a process has open or mapped is not overwritten, so whoever still reads an old state reads what it was.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rayfed_ssl.storage.own_files import own_files

try:
    from fcntl import F_SETLEASE, F_UNLCK, F_WRLCK, fcntl
except ImportError:  # only Linux says whether a file is in use
    HAS_LEASES = False
else:
    HAS_LEASES = True

MIN_BYTES = 1 << 20
"""Smaller files take as long to write either way."""

BUFFER_BYTES = 1 << 17
"""Bytes of a file that go to the system together; a state has many small tensors."""


class SpareFiles:
    """Files to overwrite, in a directory of their own beside the files that count."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "spare"

    def remove(self, files: Iterable[Path]) -> None:
        """Remove files from where they are; as many as are removed at a time may stay to be overwritten."""
        files = list(files)
        large = [file for file in files if HAS_LEASES and _size(file) >= MIN_BYTES]
        spare = large[: max(0, len(large) - len(self._names()))]
        if spare:
            self._directory.mkdir(exist_ok=True)
        for file in spare:
            os.replace(file, self._directory / file.name)
        for file in files:
            file.unlink(missing_ok=True)

    def open(self, target: Path) -> BinaryIO | None:
        """Move a spare file of the same kind, the first word of its name, to a new path and open it to be overwritten.

        Returns None if there is none; then the path does not exist.
        """
        kind = target.name.strip(".").partition("-")[0]
        for name in self._names():
            if not name.startswith(kind):
                continue
            with suppress(FileNotFoundError):  # another process took it
                os.rename(self._directory / name, target)
                file = os.fdopen(os.open(target, os.O_WRONLY), "wb", BUFFER_BYTES)
                if _is_unused(file):
                    return file
                file.close()
                target.unlink()
        return None

    def clear(self) -> None:
        """Remove all of them."""
        for name in self._names():
            (self._directory / name).unlink(missing_ok=True)
        with suppress(OSError):
            self._directory.rmdir()

    def _names(self) -> list[str]:
        try:
            return own_files(os.listdir(self._directory))
        except FileNotFoundError:
            return []


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _is_unused(file: BinaryIO) -> bool:
    """Whether no process has the file open or mapped otherwise: only then the system gives a lease to write it."""
    try:
        fcntl(file, F_SETLEASE, F_WRLCK)
        fcntl(file, F_SETLEASE, F_UNLCK)
    except OSError:
        return False
    return True
