"""What crosses processes: trees as numpy arrays in Ray's object store, each stored once, and refs in their place."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError
from torch import Tensor

from actors.errors import UploadLostError
from rayfed_ssl.engine.upload_store import UPLOAD_BYTES
from rayfed_ssl.trees import Tree, leaves, map_leaves, restore

Key = TypeVar("Key")

UPLOAD_CACHE_SHARE = 0.125
"""Fraction of the object store that uploads may take: objects in use cannot be spilled."""


class Placeholder(int):
    """Index of a part, in the place of the part itself."""


def pack(messages: Mapping[Key, Any]) -> tuple[list[Tree], dict[Key, Any]]:
    """Split messages into parts so that each tensor is stored once, however many messages contain it.

    A field's value is one part, known by its identity. Where two values share a tensor without being the same object,
    their tensors are parts one by one. Values without tensors stay in the message. Messages are frozen dataclasses;
    they are returned with `Placeholder`s for the parts.
    """
    parts: list[Tree] = []
    placeholders: dict[int, Placeholder] = {}
    values = {id(value): value for message in messages.values() for value in vars(message).values()}
    values_of = _values_of_tensors(values.values())

    def placeholder(part: Tree) -> Placeholder:
        if id(part) not in placeholders:
            placeholders[id(part)] = Placeholder(len(parts))
            parts.append(part)
        return placeholders[id(part)]

    def pack_value(value: Tree) -> Tree:
        tensors = [leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor)]
        if not tensors:
            return value
        if all(len(values_of[id(tensor)]) == 1 for tensor in tensors):
            return placeholder(value)
        return map_leaves(lambda leaf: placeholder(leaf) if isinstance(leaf, Tensor) else leaf, value)

    packed_values = {key: pack_value(value) for key, value in values.items()}
    distinct: dict[tuple[int, ...], Any] = {}
    packed = {}
    for key, message in messages.items():
        held = {name: id(value) for name, value in vars(message).items()}
        if (same := tuple(held.values())) not in distinct:
            distinct[same] = replace(message, **{name: packed_values[value] for name, value in held.items()})
        packed[key] = distinct[same]
    return parts, packed


def _values_of_tensors(values: Iterable[Tree]) -> dict[int, set[int]]:
    """Collect by tensor the field values that contain it, all by identity."""
    values_of: dict[int, set[int]] = defaultdict(set)
    for value in values:
        for _, leaf in leaves(value):
            if isinstance(leaf, Tensor):
                values_of[id(leaf)].add(id(value))
    return values_of


def insert_refs(packed: Mapping[Key, Any], refs: Sequence[ObjectRef[Any]]) -> dict[Key, Any]:
    """Replace the placeholders in packed messages by refs; what was one message stays one, which is pickled once."""
    distinct = {id(message): message for message in packed.values()}
    filled = {
        key: map_leaves(lambda leaf: refs[leaf] if isinstance(leaf, Placeholder) else leaf, message)
        for key, message in distinct.items()
    }
    return {key: filled[id(message)] for key, message in packed.items()}


def fetch(message: Tree) -> Tree:
    """Replace the refs in a message by their values: tensors over shared, read-only memory."""
    refs = list(dict.fromkeys(leaf for _, leaf in leaves(message) if isinstance(leaf, ObjectRef)))
    values = dict(zip(refs, map(restore, ray.get(refs)), strict=True))
    return map_leaves(lambda leaf: values[leaf] if isinstance(leaf, ObjectRef) else leaf, message)


@dataclass(frozen=True)
class ItemRef:
    """Refers to one item of a list in the object store."""

    ref: ObjectRef[Any]
    index: int


class Uploads(Mapping[int, Any]):
    """Uploads in ascending client id, fetched on access.

    Lists of uploads that fit are cached, because unpacking a list for each of its items takes longer than adding them up;
    others are released, so that Ray may spill them.
    """

    def __init__(self, items: Mapping[int, ItemRef], cache_bytes: int = UPLOAD_BYTES) -> None:
        self._items = dict(sorted(items.items()))
        self._cache: dict[ObjectRef[Any], list[Any]] = {}
        self._free_bytes = cache_bytes

    def __getitem__(self, client_id: int) -> Any:
        item = self._items[client_id]
        if item.ref in self._cache:
            return restore(self._cache[item.ref][item.index])
        try:
            uploads = ray.get(item.ref)
        except ObjectLostError:
            raise UploadLostError(client_id) from None
        size = sum(upload.nbytes for upload in uploads if upload is not None)
        if size <= self._free_bytes:
            self._cache[item.ref] = uploads
            self._free_bytes -= size
        return restore(uploads[item.index])

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
