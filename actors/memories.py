"""Client states between two steps: on disk always, in the object store while it has room, in the driver never."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError

from rayfed_ssl import checkpoints
from rayfed_ssl.checkpoints import Stored
from rayfed_ssl.places import Directory
from rayfed_ssl.trees import Tree, to_torch


@dataclass(frozen=True)
class Memory:
    """A client's state: where it lies on disk and, while the object store has room, a ref to it."""

    stored: Stored
    ref: ObjectRef[Any] | None = None

    def recall(self, directory: Directory) -> Tree:
        """Read the state from the object store, or from the checkpoint if it is not there or was lost."""
        if self.ref is not None:
            try:
                return to_torch(ray.get(self.ref))
            except ObjectLostError:
                pass
        return checkpoints.read(self.stored, directory)


class MemoryCache:
    """The driver's refs to client states.

    Args:
        room: Bytes that the states may take in the object store; those that find none are read from disk.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._memories: dict[int, Memory] = {}
        self._sizes: dict[int, int] = {}

    def keep(self, client_id: int, stored: Stored, ref: ObjectRef[Any], size: int) -> None:
        """Remember a client's next state, of `size` bytes, in the place of its last."""
        self._room += self._sizes.pop(client_id, 0)
        fits = 0 < size <= self._room
        self._memories[client_id] = Memory(stored, ref if fits else None)
        if fits:
            self._sizes[client_id] = size
            self._room -= size

    def find(self, client_id: int, stored: Stored) -> Memory:
        """Find a client's state; another state than the last one, as after a resume, is on disk only."""
        kept = self._memories.get(client_id)
        return kept if kept is not None and kept.stored == stored else Memory(stored)


class Memories(Mapping[int, Any]):
    """Client states in ascending client id, read when they are asked for and not kept."""

    def __init__(self, memories: Mapping[int, Memory], directory: Directory) -> None:
        self._memories, self._directory = dict(sorted(memories.items())), directory

    def __getitem__(self, client_id: int) -> Any:
        return self._memories[client_id].recall(self._directory)

    def __iter__(self) -> Iterator[int]:
        return iter(self._memories)

    def __len__(self) -> int:
        return len(self._memories)
