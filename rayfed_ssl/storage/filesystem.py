"""Files in a directory: of one machine, or on NFS of all."""

import errno
import os
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.foreign.reading import read_bytes
from rayfed_ssl.storage.backend import StorageBackend
from rayfed_ssl.storage.tensor_files import RESTORE, Chunk, read_path
from rayfed_ssl.trees import Tree

REACHABLE = "engine.checkpoints must name a directory that all machines share (NFS), or s3://"

BUFFER_BYTES = 1 << 17
"""Bytes of a file that go to the system together; a state has many small tensors."""


class LocalDirectory(StorageBackend):
    """A directory."""

    def __init__(self, address: str | Path) -> None:
        self.path = Path(address).resolve()
        super().__init__(str(self.path))

    def create(self) -> None:
        """Make the directory and check it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self} cannot be made ({error.strerror}): correct engine.checkpoints") from None
        super().create()

    def names(self) -> list[str]:
        """List all files."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def exists(self, name: str) -> bool:
        """Whether there is such a file; on NFS this asks the server, unlike a listing."""
        return (self.path / name).exists()

    def write(self, name: str, content: Iterable[Chunk]) -> None:
        """Write a file atomically."""
        try:
            write_atomically(self.path / name, content)
        except OSError as error:
            raise explained(error, self.path / name) from error

    def read(self, name: str) -> bytes:
        """Read a file."""
        return read_bytes(self.path / name)

    def read_tree(self, name: str) -> Tree:
        """Map a file that holds a tree."""
        try:
            return read_path(self.path / name)
        except FileNotFoundError:
            unreachable = f"{REACHABLE}, and {socket.gethostname()} does not reach this one"
            advice = RESTORE if self.path.is_dir() else unreachable
            raise CheckpointError(f"{self.path / name} is missing: {advice}") from None

    def delete(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | Iterable[Chunk]) -> None:
    """Write beside the path, then move into place: readers see the whole file or none."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb", buffering=BUFFER_BYTES) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):  # a name that is too long has no file to remove either
            temporary.unlink()


def explained(error: OSError, path: Path) -> OSError:
    """Name the file that could not be written, and what to do where that is known."""
    message = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        message = f"{message}, free space and continue with `rayfed-ssl resume`"
    elif error.errno == errno.ENOENT:
        message = f"no such directory on {socket.gethostname()}, {REACHABLE}"
    return OSError(error.errno, message, str(path))
