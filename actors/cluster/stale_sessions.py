"""Directories of private Rays, and the removal of those whose driver was killed."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

PREFIX = "rayfed-"
"""Prefix of the names of these directories."""

LOCK = "owner"
"""A file in each of them that its driver keeps locked; the system unlocks it when the driver ends."""

RAY = "r"
"""Ray's own directory in each of them, which Ray opens to all users; the name is short for MAX_TEMP_PATH."""

MPS = "mps"
"""The directory of its MPS daemon in each of them that has one."""

MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
"""The variable that tells MPS and the processes that it serves the directory of their pipes."""

MAX_TEMP_PATH = 24
"""Characters of a temporary directory at most, so that the paths of Ray's sockets fit into 107 bytes."""


@dataclass
class SessionDirectory:
    """The directory of a private Ray, which only its user can enter, locked by its driver."""

    path: Path
    _lock: FileLock

    @property
    def ray(self) -> Path:
        """The directory that Ray gets."""
        return self.path / RAY

    @classmethod
    def create(cls) -> "SessionDirectory":
        """Create one in TMPDIR, or in /tmp where TMPDIR is too long."""
        hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=_parent()))  # of mode 0700
        lock = FileLock(hidden / LOCK, thread_local=False)
        lock.acquire()
        # Its name comes last, so no other process sees it without an owner.
        return cls(hidden.rename(hidden.with_name(hidden.name[1:])), lock)

    def remove(self) -> None:
        """Delete the directory and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def _parent() -> Path:
    default = tempfile.gettempdir()
    return Path(default if len(default) <= MAX_TEMP_PATH else "/tmp")


def remove_stale_sessions() -> list[Path]:
    """Delete, and return, this user's directories whose driver was killed, after killing the processes that use them.

    One without the owner's file, which cleaners of /tmp delete after days, goes if no process uses it.
    """
    removed = []
    for directory in _parent().glob(f"{PREFIX}*"):
        try:
            status = directory.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            if not (directory / LOCK).is_file():
                if not {RAY} <= set(os.listdir(directory)) <= {RAY, MPS} or any(_users(directory)):
                    continue
                shutil.rmtree(directory, ignore_errors=True)
            else:
                with FileLock(directory / LOCK, blocking=False):
                    kill_processes(directory)
                    shutil.rmtree(directory, ignore_errors=True)
            removed.append(directory)
        except (OSError, Timeout):  # its driver lives, or another process is deleting it
            continue
    return removed


def kill_processes(directory: Path) -> None:
    """Kill this user's processes that use a directory."""
    for process in _users(directory):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _users(directory: Path) -> Iterator[psutil.Process]:
    """Find this user's processes that use a directory.

    Ray's name it in their command line as an option's value, those of MPS in their environment.
    """
    for process in psutil.process_iter(["cmdline", "uids", "environ"]):
        arguments, environment = process.info["cmdline"] or [], process.info["environ"] or {}
        is_own = process.info["uids"] is not None and process.info["uids"].real == os.getuid()
        is_of_ray = any(text.endswith(f"={directory}") or f"={directory}/" in text for text in arguments)
        if is_own and (is_of_ray or environment.get(MPS_PIPE, "").startswith(f"{directory}/")):
            yield process
