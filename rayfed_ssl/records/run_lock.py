"""The lock of a run's directory: one process at a time writes a run, or starts one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from filelock import FileLock, Timeout

from rayfed_ssl.errors import BusyError, ConfigError, is_utf8


def refuse_used(directory: Path) -> None:
    """Raise a ConfigError for anything but a missing directory or one that holds nothing but the lock of a start."""
    states = directory / "checkpoints"
    folders = (folder for folder in (directory, states) if folder.is_dir())
    content = (path for folder in folders for path in folder.iterdir())
    if (directory.exists() and not directory.is_dir()) or any(
        path not in (states, states / "lock") for path in content
    ):
        raise ConfigError(
            f"{directory} is not an empty directory: name another one with --out, or resume the run in it"
        )
    refuse_unwritable(directory)


def refuse_unwritable(directory: Path) -> None:
    """Raise a ConfigError for a directory in which nothing can be written, or whose name Ray does not take."""
    if not is_utf8(str(directory.absolute())):
        raise ConfigError(f"{directory} is no UTF-8: name another directory with --out")
    above = next(parent for parent in (directory, *directory.absolute().parents) if parent.exists())
    takes_files = above.is_dir() and os.access(above, os.W_OK)
    if not directory.exists():
        try:
            os.rmdir(mkdtemp(dir=above))  # os.access says yes to root, in /proc too
        except OSError:
            takes_files = False
    if not takes_files:
        raise ConfigError(f"{directory} cannot be made, {above} takes no files: name another directory with --out")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes from writing a run; a BusyError if one does."""
    states = directory / "checkpoints"
    states.mkdir(parents=True, exist_ok=True)
    with locked_states(states, directory):
        yield


@contextmanager
def locked_states(states: Path, name: object) -> Iterator[None]:
    """Keep other processes from writing states; a BusyError says that one runs what has them."""
    try:
        lock = FileLock(states / "lock").acquire(blocking=False)
    except Timeout:
        raise BusyError(f"another process is running {name}: wait for it or stop it") from None
    with lock:
        yield


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Keep a new run's directory from other processes, and leave nothing there if the run does not begin.

    Raises:
        ConfigError: Another process starts or runs a run there, or the directory is used.
    """
    refuse_used(directory)
    is_new = not directory.exists()
    with locked(directory):
        refuse_used(directory)  # again: another process may have run there until now
        try:
            yield
        finally:
            if not (directory / "run.json").exists():
                _clear(directory, is_new)


def _clear(directory: Path, is_new: bool) -> None:
    with suppress(OSError):  # another process waits for the lock, or there are other files
        (directory / "checkpoints" / "lock").unlink()
        (directory / "checkpoints").rmdir()
        if is_new:
            directory.rmdir()
