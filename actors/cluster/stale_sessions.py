"""Directories of private Rays, and the removal of those whose driver was killed."""

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

PREFIX = "rayfed-"
"""Prefix of the names of these directories."""

LOCK = "owner"
"""A file in each of them that its driver keeps locked; the system unlocks it when the driver ends."""

MAX_TEMP_PATH = 24
"""Characters of a temporary directory at most, so that the paths of Ray's sockets fit into 107 bytes."""


@dataclass
class SessionDirectory:
    """The directory of a private Ray, locked by its driver."""

    path: Path
    _lock: FileLock

    @classmethod
    def create(cls) -> "SessionDirectory":
        """Create one in TMPDIR, or in /tmp where TMPDIR is too long."""
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_parent()))
        lock = FileLock(path / f".{LOCK}", thread_local=False)
        lock.acquire()
        (path / f".{LOCK}").rename(path / LOCK)  # so no other process sees the file unlocked
        return cls(path, lock)

    def remove(self) -> None:
        """Delete the directory and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def _parent() -> Path:
    default = tempfile.gettempdir()
    return Path(default if len(default) <= MAX_TEMP_PATH else "/tmp")


def remove_stale_sessions() -> list[Path]:
    """Delete, and return, this user's directories whose driver was killed, after killing the processes that use them."""
    removed = []
    for directory in _parent().glob(f"{PREFIX}*"):
        try:
            if directory.stat().st_uid != os.getuid() or not (directory / LOCK).is_file():
                continue
            with FileLock(directory / LOCK, blocking=False):
                kill_processes(directory)
                shutil.rmtree(directory, ignore_errors=True)
                removed.append(directory)
        except (OSError, Timeout):  # its driver lives, or another process is deleting it
            continue
    return removed


def kill_processes(directory: Path) -> None:
    """Kill this user's processes whose command line names a directory as an option's value, as all of Ray's do."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        arguments = process.info["cmdline"] or []
        is_own = process.info["uids"] is not None and process.info["uids"].real == os.getuid()
        if is_own and any(text.endswith(f"={directory}") or f"={directory}/" in text for text in arguments):
            with suppress(psutil.NoSuchProcess):
                process.kill()
