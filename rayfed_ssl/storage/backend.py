"""The interface of storage backends: files by name, in a directory or a bucket."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.storage.tensor_files import Chunk
from rayfed_ssl.trees import Tree


@dataclass(unsafe_hash=True)
class StorageBackend(ABC):
    """Files by name, each visible as a whole or not at all; a backend is pickled as its address."""

    address: str

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address,)

    def __str__(self) -> str:
        return self.address

    def resolve(self) -> "StorageBackend":
        """Return itself, which has one name on all machines, as a `Path` that is resolved."""
        return self

    def file(self, name: str) -> str:
        """Name a file in messages."""
        return f"{self.address}/{name}"

    def create(self) -> None:
        """Write, read and remove a file, so that missing permissions are found before the run starts.

        Raises:
            ConfigError: One of them fails.
        """
        content = secrets.token_bytes(8)
        try:
            self.write("probe", [content])
            if self.read("probe") != content or "probe" not in self.names():
                raise ConfigError(f"{self} does not return what is written to it: use a store with consistent reads")
            self.delete(["probe"])
        except OSError as error:
            raise ConfigError(
                f"states cannot be written to {self} ({error.strerror or error}): correct engine.checkpoints"
            ) from None

    @abstractmethod
    def names(self) -> list[str]:
        """List all files."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def write(self, name: str, content: Iterable[Chunk]) -> None:
        """Write a file atomically; an OSError says whether space, permission or connection is missing."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Read a file; FileNotFoundError if there is none."""

    @abstractmethod
    def read_tree(self, name: str) -> Tree:
        """Read a file that holds a tree; CheckpointError if it is missing or damaged."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove files; missing ones are ignored."""
