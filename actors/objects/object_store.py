"""What crosses processes: trees of numpy arrays in Ray's object store, each stored once, and refs in their place."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError
from torch import Tensor

from rayfed_ssl.trees import Tree, leaves, map_leaves, nbytes, to_torch

Key = TypeVar("Key")


KEPT_BYTES = 1 << 28
"""Bytes of uploads that the server may hold at a time, where the object store is large enough."""

KEPT_SHARE = 0.125
"""Part of the object store that they may take: what is held cannot be spilled."""


class Slot(int):
    """Position of a parked part, in the place of the part itself."""


def park(messages: Mapping[Key, Any]) -> tuple[list[Tree], dict[Key, Any]]:
    """Take messages apart so that what several of them mention is stored once.

    A field's value is one part, known by its identity. Where two values share a tensor without being the same object,
    their tensors are parts one by one. Values without tensors stay in the message.

    Args:
        messages: Downloads or encoders, frozen dataclasses.

    Returns:
        The distinct parts, and the messages with `Slot`s in their place.
    """
    parts: list[Tree] = []
    slots: dict[int, Slot] = {}
    mentions = _mentions(messages)

    def slot(part: Tree) -> Slot:
        if id(part) not in slots:
            slots[id(part)] = Slot(len(parts))
            parts.append(part)
        return slots[id(part)]

    def take(value: Tree) -> Tree:
        tensors = [leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor)]
        if not tensors:
            return value
        if all(len(mentions[id(tensor)]) == 1 for tensor in tensors):
            return slot(value)
        return map_leaves(lambda leaf: slot(leaf) if isinstance(leaf, Tensor) else leaf, value)

    plan = {
        key: replace(message, **{field.name: take(getattr(message, field.name)) for field in fields(message)})
        for key, message in messages.items()
    }
    return parts, plan


def _mentions(messages: Mapping[Any, Any]) -> dict[int, set[int]]:
    """List by tensor the field values that hold it, all by identity."""
    found: dict[int, set[int]] = {}
    for message in messages.values():
        for field in fields(message):
            value = getattr(message, field.name)
            for _, leaf in leaves(value):
                if isinstance(leaf, Tensor):
                    found.setdefault(id(leaf), set()).add(id(value))
    return found


def fill(plan: Tree, refs: Sequence[ObjectRef[Any]]) -> Tree:
    """Put refs into the slots of a plan."""
    return map_leaves(lambda leaf: refs[leaf] if isinstance(leaf, Slot) else leaf, plan)


def fetch(message: Tree) -> Tree:
    """Replace the refs in a message by what they stand for: tensors over shared, read-only memory."""
    refs = list(dict.fromkeys(leaf for _, leaf in leaves(message) if isinstance(leaf, ObjectRef)))
    values = dict(zip(refs, to_torch(ray.get(refs)), strict=True))
    return map_leaves(lambda leaf: values[leaf] if isinstance(leaf, ObjectRef) else leaf, message)


class UploadLostError(RuntimeError):
    """An upload vanished with the machine that held it; its client has to be trained again."""

    def __init__(self, client_id: int) -> None:
        super().__init__(client_id)
        self.client_id = client_id


@dataclass(frozen=True)
class Parcel:
    """One of several things that lie in the object store together.

    Attributes:
        ref: Stands for a list of them.
        place: Which.
    """

    ref: ObjectRef[Any]
    place: int

    def open(self) -> Any:
        """Get the thing, over shared memory.

        Raises:
            ObjectLostError: It vanished with the machine that held it.
        """
        return ray.get(self.ref)[self.place]


class Uploads(Mapping[int, Any]):
    """Uploads in ascending client id, fetched when they are asked for.

    Those that fit stay, because unpacking a call's uploads for each of them anew takes longer than adding them up; others
    are let go, so that Ray may spill them.

    Args:
        parcels: By client id.
        room: Bytes of those that may stay.
    """

    def __init__(self, parcels: Mapping[int, Parcel], room: int = KEPT_BYTES) -> None:
        self._parcels = dict(sorted(parcels.items()))
        self._kept: dict[ObjectRef[Any], list[Any]] = {}
        self._room = room

    def __getitem__(self, client_id: int) -> Any:
        parcel = self._parcels[client_id]
        if parcel.ref in self._kept:
            return to_torch(self._kept[parcel.ref][parcel.place])
        try:
            together = ray.get(parcel.ref)
        except ObjectLostError:
            raise UploadLostError(client_id) from None
        size = nbytes(together)
        if size <= self._room:
            self._kept[parcel.ref] = together
            self._room -= size
        return to_torch(together[parcel.place])

    def __iter__(self) -> Iterator[int]:
        return iter(self._parcels)

    def __len__(self) -> int:
        return len(self._parcels)
