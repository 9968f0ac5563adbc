"""Where a run's states lie: a directory of one machine or, on NFS, of all; or a bucket.

A file is there as a whole or not at all, whoever is killed while writing it: a directory moves it into place, a bucket
shows an object once its upload is complete. Only a bucket that fails during an upload may show a part, which digests tell
from the whole. A file outlives a power loss from when it was settled; what is in a bucket
always does. Places travel to other processes by their address.
"""

import errno
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.storage.background import Settling, Task, side_by_side
from rayfed_ssl.storage.tensor_files import EARLIER, Chunk, read_path
from rayfed_ssl.trees import Tree

SYNCED_AT_ONCE = 8
"""Files that are flushed to disk side by side."""

WRITTEN_AT_ONCE = 1 << 17
"""Bytes of a file that go to the system together; a state has many small tensors."""

REACHABLE = "engine.checkpoints must name a place that all machines reach (NFS or s3://)"


class Place(ABC):
    """Files by name.

    Attributes:
        is_durable: Whether what is written here outlives a power loss without being settled.
        address: What names the place on every machine.
        kept: Files that the kept rounds refer to, by round, where this process knows them.
        settling: Flushes rounds to disk.
    """

    is_durable = False

    def __init__(self, address: str) -> None:
        self.address = address
        self.kept: dict[int, frozenset[str]] | None = None
        self.settling = Settling()
        self._removal: Task | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address,)

    def __str__(self) -> str:
        return self.address

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.address == str(other)

    def __hash__(self) -> int:
        return hash(self.address)

    def resolve(self) -> "Place":
        """Name the place for other processes, as `Path.resolve` does: it has only one name."""
        return self

    def file(self, name: str) -> str:
        """Name a file for people."""
        return f"{self.address}/{name}"

    @abstractmethod
    def create(self) -> None:
        """Make the place, and see that it can be written.

        Raises:
            ConfigError: It cannot.
        """

    def names(self) -> list[str]:
        """List all files."""
        self.wait()
        return self._names()

    @abstractmethod
    def _names(self) -> list[str]:
        """List all files, those that are about to be removed too."""

    @abstractmethod
    def write(self, name: str, content: Iterable[Chunk], *, durably: bool = False) -> None:
        """Write a file as a whole or not at all, and perhaps settle it.

        Raises:
            OSError: There is no room, no permission, no connection; the message says which.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Read a file.

        Raises:
            FileNotFoundError: There is none.
        """

    @abstractmethod
    def read_tree(self, name: str) -> Tree:
        """Read a file that holds a tree.

        Raises:
            CheckpointError: It is missing or damaged.
        """

    @abstractmethod
    def settle(self, names: Collection[str]) -> None:
        """See that files outlive a power loss.

        Raises:
            CheckpointError: One is not there.
        """

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove files; one that is gone already is no error."""

    def delete_later(self, names: Collection[str]) -> None:
        """Remove files that nothing refers to while something else goes on; what fails is found again by `names`."""
        self.wait()
        self._removal = Task(partial(self._delete_quietly, names), "removal")

    def _delete_quietly(self, names: Collection[str]) -> None:
        with suppress(OSError):
            self.delete(names)

    def wait(self) -> None:
        """Wait until nothing is being removed any more."""
        if self._removal is not None:
            self._removal.wait()
            self._removal = None

    def rest(self) -> None:
        """Wait until nothing is being removed or flushed any more, as a run that ends must before another may go on.

        Raises:
            Exception: What flushing raised.
        """
        self.wait()
        self.settling.wait()


class Folder(Place):
    """A directory."""

    def __init__(self, address: str | Path) -> None:
        self.path = Path(address).resolve()
        super().__init__(str(self.path))

    def create(self) -> None:
        """Make the directory."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write("probe", [b"?"])
            self.delete(["probe"])
        except OSError as error:
            raise ConfigError(
                f"states cannot be written to {self.path} ({error.strerror}): make room or correct engine.checkpoints"
            ) from None

    def _names(self) -> list[str]:
        """List all files."""
        try:
            with os.scandir(self.path) as entries:
                return [entry.name for entry in entries]
        except FileNotFoundError:
            return []

    def write(self, name: str, content: Iterable[Chunk], *, durably: bool = False) -> None:
        """Write beside the path, then move into place."""
        try:
            write_whole(self.path / name, content, durably=durably)
        except OSError as error:
            raise explained(error, self.path / name) from error

    def read(self, name: str) -> bytes:
        """Read a file."""
        return (self.path / name).read_bytes()

    def read_tree(self, name: str) -> Tree:
        """Map a file that holds a tree."""
        try:
            return read_path(self.path / name)
        except FileNotFoundError:
            advice = EARLIER if self.path.is_dir() else f"{REACHABLE}, and {socket.gethostname()} does not"
            raise CheckpointError(f"{self.path / name} is missing: {advice}") from None

    def settle(self, names: Collection[str]) -> None:
        """Flush files, several at a time, and the directory that names them."""
        side_by_side(self._flush, names, SYNCED_AT_ONCE)
        _flush_directory(self.path)

    def _flush(self, name: str) -> None:
        try:
            descriptor = os.open(self.path / name, os.O_RDWR)
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.path / name} was written elsewhere and is not on {socket.gethostname()}: {REACHABLE}"
            ) from None
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise explained(error, self.path / name) from error
        finally:
            os.close(descriptor)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)


def write_whole(path: Path, content: Iterable[Chunk], *, durably: bool) -> None:
    """Write beside the path, perhaps flush to disk, then move into place: readers see all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb", buffering=WRITTEN_AT_ONCE) as file:
            for chunk in content:
                file.write(chunk)
            file.flush()
            if durably:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file as a whole, so that it outlives a power loss."""
    write_whole(path, [content], durably=True)
    _flush_directory(path.parent)


def explained(error: OSError, path: Path) -> OSError:
    """Name the file that could not be written, and what to do where that is known."""
    what = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = f"{what}, make room and go on with `rayfed-ssl resume`"
    elif error.errno == errno.ENOENT:
        what = f"no such directory on {socket.gethostname()}, {REACHABLE}"
    return OSError(error.errno, what, str(path))


def _flush_directory(path: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


Directory: TypeAlias = Path | Place


def place_of(directory: Directory) -> Place:
    """Take a path for the directory that it names."""
    return directory if isinstance(directory, Place) else Folder(directory)


def open_place(address: str) -> Place:
    """Open a place by its address: a path, file:///path, s3://bucket/prefix or gs://bucket/prefix.

    Raises:
        ConfigError: There is no such kind of place, or the address holds a password.
    """
    if "://" not in address:
        return Folder(Path(address).expanduser())
    parts = urlsplit(address)
    if parts.scheme == "file":
        return Folder(parts.path)
    if parts.scheme not in ("s3", "gs", "gcs") or not parts.netloc:
        raise ConfigError(
            f"engine.checkpoints={address} names no place: give a directory, s3://bucket/prefix or gs://..."
        )
    if parts.username or parts.password:
        raise ConfigError(
            "engine.checkpoints holds a password, which the run's record would show: leave it out and set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or an instance's role"
        )
    from rayfed_ssl.storage.cloud import Bucket  # clients of clouds take a tenth of a second to import

    return Bucket(address)


def inside(address: str, name: str) -> str:
    """Name a place inside another one; what an address says after a question mark stays at its end."""
    base, mark, options = address.partition("?") if "://" in address else (address, "", "")
    return f"{base.rstrip('/')}/{name}{mark}{options}"
