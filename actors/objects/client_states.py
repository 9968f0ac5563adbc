"""Client states between two steps: in files, which processes of a machine share as they share memory, never in the driver.

A bucket has no such files: there, states stay in the object store too, as long as it has room.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ray.exceptions import ObjectLostError

from actors.objects.object_store import Parcel
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory, backend_of
from rayfed_ssl.storage.checkpoints import Stored
from rayfed_ssl.storage.filesystem import LocalDirectory
from rayfed_ssl.trees import Tree, to_torch


def is_mapped(directory: Directory) -> bool:
    """Whether a state that was just written is read back from memory: the pages of its file."""
    return isinstance(backend_of(directory), LocalDirectory)


@dataclass(frozen=True)
class Memory:
    """A client's state.

    Attributes:
        stored: Where it lies.
        parcel: Where it lies in the object store, if it does.
    """

    stored: Stored
    parcel: Parcel | None = None

    def recall(self, directory: Directory) -> Tree:
        """Read the state from the object store, or from the checkpoint if it is not there or was lost."""
        if self.parcel is not None:
            try:
                return to_torch(self.parcel.open())
            except ObjectLostError:
                pass
        return checkpoints.read(self.stored, directory)


class MemoryCache:
    """What the driver knows of client states.

    Args:
        room: Bytes that the states may take in the object store; those that find none are read from the checkpoint.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._memories: dict[int, Memory] = {}

    def keep(self, client_id: int, stored: Stored, parcel: Parcel | None) -> None:
        """Remember a client's next state in the place of its last."""
        self._forget(client_id)
        fits = parcel is not None and 0 < stored.nbytes <= self._room
        self._memories[client_id] = Memory(stored, parcel if fits else None)
        self._room -= stored.nbytes if fits else 0

    def _forget(self, client_id: int) -> None:
        before = self._memories.pop(client_id, None)
        if before is not None and before.parcel is not None:
            self._room += before.stored.nbytes

    def find(self, client_id: int, stored: Stored) -> Memory:
        """Find a client's state; another state than the last one, as after a resume, is in the checkpoint only."""
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
