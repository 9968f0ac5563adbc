"""The interface of storage backends: files by name, in a directory or a bucket."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from rayfed_ssl.storage.tensor_files import Chunk
from rayfed_ssl.trees import Tree


class StorageBackend(ABC):
    """Files by name. A file is visible as a whole or not at all, even if its writer is killed.

    Backends travel to other processes by their address.

    Attributes:
        address: Names the backend on every machine.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address,)

    def __str__(self) -> str:
        return self.address

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.address == str(other)

    def __hash__(self) -> int:
        return hash(self.address)

    def resolve(self) -> "StorageBackend":
        """Return itself: unlike a `Path`, it has one name on all machines."""
        return self

    def file(self, name: str) -> str:
        """Name a file in messages."""
        return f"{self.address}/{name}"

    @abstractmethod
    def create(self) -> None:
        """Make the directory or check the bucket, and test that it is writable.

        Raises:
            ConfigError: It is not.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """List all files."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def write(self, name: str, content: Iterable[Chunk]) -> None:
        """Write a file atomically.

        Raises:
            OSError: No space, no permission or no connection; the message says which.
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
    def delete(self, names: Iterable[str]) -> None:
        """Remove files; missing ones are ignored."""
