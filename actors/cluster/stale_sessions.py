"""The directories of Rays of our own, and what drivers that were killed left of theirs: files and processes."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

PREFIX = "rayfed-"
"""What the names of these directories begin with."""

OWNER = "owner"
"""A file in each of them that its driver keeps locked; the system unlocks it when the driver ends, however it ends."""

SOCKET_ROOM = 24
"""Longest path of a temporary directory in which the names of Ray's sockets, 107 bytes at most, still fit."""


@dataclass
class OwnDirectory:
    """A directory that is ours while the lock is held.

    Attributes:
        path: Where Ray puts its files.
    """

    path: Path
    _lock: FileLock

    @classmethod
    def make(cls) -> "OwnDirectory":
        """Make one in TMPDIR, or in /tmp where that is too long a name.

        Raises:
            OSError: There is no place for it.
        """
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_place()))
        unseen = path / f".{OWNER}"
        lock = FileLock(unseen, thread_local=False)
        lock.acquire()
        unseen.rename(path / OWNER)  # so nobody ever sees the file unlocked while its driver lives
        return cls(path, lock)

    def remove(self) -> None:
        """Delete the directory with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def _place() -> Path:
    usual = tempfile.gettempdir()
    return Path(usual if len(usual) <= SOCKET_ROOM else "/tmp")


def clear_leftovers() -> list[Path]:
    """Delete what this user's killed drivers left here, after ending the processes that still use it.

    Returns:
        The directories that are gone.
    """
    cleared = []
    for directory in _place().glob(f"{PREFIX}*"):
        try:
            if directory.stat().st_uid != os.getuid() or not (directory / OWNER).is_file():
                continue
            with FileLock(directory / OWNER, blocking=False):
                _end_users(directory)
                shutil.rmtree(directory, ignore_errors=True)
                cleared.append(directory)
        except (OSError, Timeout):  # its driver lives, it is not one of these, or another process is just deleting it
            continue
    return cleared


def _end_users(directory: Path) -> None:
    """Kill Ray's processes whose command line names a directory; the driver's own does not."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        words = process.info["cmdline"] or []
        mine = process.info["uids"] is not None and process.info["uids"].real == os.getuid()
        if mine and any(word.endswith(f"={directory}") or f"={directory}/" in word for word in words):
            process.kill()
