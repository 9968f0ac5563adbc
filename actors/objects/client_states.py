"""Client states between two steps: in files, which processes of a machine map into memory, never in the driver.

A bucket cannot be mapped: there, states are also in the object store, as long as they fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.exceptions import ObjectLostError

from actors.objects.object_store import ItemRef, LazyMapping
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory, backend_of
from rayfed_ssl.storage.checkpoints import Stored
from rayfed_ssl.storage.filesystem import LocalDirectory
from rayfed_ssl.trees import Tree, to_torch


def is_mapped(directory: Directory) -> bool:
    """Whether a state in this directory is read by mapping its file into memory."""
    return isinstance(backend_of(directory), LocalDirectory)


@dataclass(frozen=True)
class StateRef:
    """Refers to a client's state in the checkpoint directory and, where there is one, to its copy in the object store."""

    stored: Stored
    item: ItemRef | None = None

    def read(self, directory: Directory) -> Tree:
        """Read the state from the object store, or from the checkpoint if it is not there or was lost."""
        if self.item is not None:
            try:
                return to_torch(self.item.get())
            except ObjectLostError:
                pass
        return checkpoints.read(self.stored, directory)


class StateRefs:
    """The driver's refs to the clients' last states; those beyond `max_bytes` are not held in the object store."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._refs: dict[int, StateRef] = {}

    def add(self, client_id: int, stored: Stored, item: ItemRef | None) -> None:
        """Replace a client's last state by its next."""
        previous = self._refs.pop(client_id, None)
        if previous is not None and previous.item is not None:
            self._free_bytes += previous.stored.nbytes
        fits = item is not None and 0 < stored.nbytes <= self._free_bytes
        self._refs[client_id] = StateRef(stored, item if fits else None)
        self._free_bytes -= stored.nbytes if fits else 0

    def find(self, client_id: int, stored: Stored) -> StateRef:
        """Refer to a client's state; another state than its last, as after a resume, is in the checkpoint only."""
        ref = self._refs.get(client_id)
        return ref if ref is not None and ref.stored == stored else StateRef(stored)


class ClientStates(LazyMapping):
    """Client states in ascending client id, read on access and not cached."""

    def __init__(self, refs: Mapping[int, StateRef], directory: Directory) -> None:
        super().__init__(refs)
        self._directory = directory

    def __getitem__(self, client_id: int) -> Any:
        return self._items[client_id].read(self._directory)
