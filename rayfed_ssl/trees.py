"""Arithmetic on trees of tensors.

A tree is a tensor, an array, a number, a string, None, or a dict, list, tuple or frozen dataclass of trees. Weights,
method states, downloads and uploads are all trees. Nothing here writes to its input.
"""

import dataclasses
import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

Tree: TypeAlias = Any
Weights: TypeAlias = dict[str, Tensor]
"""Tensors by name: a state dict, or a part of one."""

ARRAYS = (Tensor, np.ndarray)

LARGE = 1 << 14
"""Bytes from which a tensor enters a digest by its BLAKE3."""


JOINED_BYTES = 1 << 18
"""Tensors with less are joined, as a call for each takes longer than copying them."""


def is_node(tree: Tree) -> bool:
    """Whether a dataclass instance, whose fields are the branches of the tree, is meant."""
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def map_leaves(function: Callable[[Any], Any], tree: Tree, stop: tuple[type, ...] = ARRAYS) -> Tree:
    """Apply `function` to every leaf; dicts, lists, tuples and dataclasses stay what they are, but for those of `stop`."""
    if isinstance(tree, stop):  # almost always
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_leaves(function, value, stop) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map_leaves(function, value, stop) for value in tree)
    if is_node(tree):
        return dataclasses.replace(
            tree, **{f.name: map_leaves(function, getattr(tree, f.name), stop) for f in dataclasses.fields(tree)}
        )
    return function(tree)


def map_together(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to the leaves that stand in the same place of several trees.

    Raises:
        ValueError: The trees differ in form, or two of their tensors in shape.
    """
    forms = {(type(one), getattr(one, "shape", None)) for one in (tree, *others)}
    if len(forms) > 1 or (isinstance(tree, dict) and any(other.keys() != tree.keys() for other in others)):
        raise ValueError("trees of different forms have nothing in the same place")
    if isinstance(tree, dict):
        return {key: map_together(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map_together(function, *values) for values in zip(tree, *others, strict=True))
    if is_node(tree):
        branches = map_together(
            function, *({f.name: getattr(t, f.name) for f in dataclasses.fields(t)} for t in (tree, *others))
        )
        return dataclasses.replace(tree, **branches)
    return function(tree, *others)


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) in a fixed order: dict keys sorted, sequences and dataclass fields as they stand."""
    if isinstance(tree, Tensor | np.ndarray):
        yield path, tree
    elif isinstance(tree, dict):
        for key in sorted(tree, key=str):
            value = tree[key]
            if isinstance(value, Tensor):  # almost always; a generator for each would take most of the time
                yield f"{path}/{key}", value
            else:
                yield from leaves(value, f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}/{index}")
    elif is_node(tree):
        for field in dataclasses.fields(tree):
            yield from leaves(getattr(tree, field.name), f"{path}/{field.name}")
    else:
        yield path, tree


def groups(tensors: Iterable[Tensor]) -> list[list[int]]:
    """Divide tensors, by index, into those to be joined: small ones of one type and device, and each large one alone."""
    by_kind: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        kind = (tensor.dtype, tensor.device) if tensor.nbytes < JOINED_BYTES else index
        by_kind.setdefault(kind, []).append(index)
    return list(by_kind.values())


def join(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors end to end; one alone shares its memory if it is contiguous."""
    parts = [tensor.reshape(-1) for tensor in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def to_torch(tree: Tree) -> Tree:
    """Turn numpy arrays into CPU tensors that share their memory: as read-only as the arrays were."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return map_leaves(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)


@dataclasses.dataclass(frozen=True)
class Flat:
    """A tree as it crosses processes, ten times cheaper than with its tensors, or with an array for each small one.

    Attributes:
        tree: The tree, with this class in the place of each tensor.
        arrays: The tensors' numbers: large ones alone, the others joined by type.
        layout: By tensor, its array's index and its shape.
    """

    tree: Tree
    arrays: list[np.ndarray]
    layout: list[tuple[int, tuple[int, ...]]]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)


def flatten(tree: Tree) -> Flat:
    """Turn a tree's tensors into arrays; large ones of the CPU share their memory."""
    tensors: list[Tensor] = []

    def take(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
        return Flat if isinstance(leaf, Tensor) else leaf

    structure, joined = map_leaves(take, tree), groups(tensors)
    arrays = [join([tensors[index] for index in group]).numpy(force=True) for group in joined]
    place = {index: number for number, group in enumerate(joined) for index in group}
    return Flat(structure, arrays, [(place[index], tuple(tensor.shape)) for index, tensor in enumerate(tensors)])


def restore(flat: Flat) -> Tree:
    """Put tensors back into a tree, which share the arrays' memory: as read-only as the arrays were."""
    arrays, layout = to_torch(flat.arrays), iter(flat.layout)
    begins = [0] * len(arrays)

    def put_back(leaf: Any) -> Any:
        if leaf is not Flat:
            return leaf
        index, shape = next(layout)
        begin, length = begins[index], math.prod(shape)
        begins[index] += length
        return arrays[index].narrow(0, begin, length).view(shape)

    return map_leaves(put_back, flat.tree, stop=(type,))


def frozen(weights: Weights) -> Weights:
    """Copy a live state dict to the CPU, contiguous, so that later training steps do not write to it.

    Tensors of another device come in one transfer, so that the processor waits once.
    """
    held = {name: value.detach() for name, value in weights.items()}
    away = [value.contiguous().view(-1).view(torch.uint8) for value in held.values() if value.device.type != "cpu"]
    parts = iter(torch.cat(away).cpu().split([len(part) for part in away]) if away else ())
    return {
        name: value.clone(memory_format=torch.contiguous_format)
        if value.device.type == "cpu"
        else next(parts).clone().view(value.dtype).view(value.shape)  # a copy lies where its type may begin
        for name, value in held.items()
    }


def nbytes(tree: Tree) -> int:
    """Bytes that the tree's tensors, numbers (8 each) and strings (UTF-8) hold."""
    if isinstance(tree, Tensor | np.ndarray):
        return int(tree.nbytes)
    if isinstance(tree, dict):
        return sum(value.nbytes if isinstance(value, Tensor) else nbytes(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return sum(map(nbytes, tree))
    if is_node(tree):
        return sum(nbytes(getattr(tree, field.name)) for field in dataclasses.fields(tree))
    if isinstance(tree, str):
        return len(tree.encode())
    return 0 if tree is None else 8


def digest(tree: Tree) -> str:
    """SHA-256 over paths, types, shapes and bits of every leaf: equal digests mean equal bits."""
    return digest_leaves(leaves(tree))


def digest_leaves(pairs: Iterable[tuple[str, Any]]) -> str:
    """Compute a tree's digest from its leaves; large tensors enter by BLAKE3, which takes a fifth of the time."""
    hasher = hashlib.sha256()
    for path, leaf in pairs:
        if isinstance(leaf, Tensor):
            leaf = leaf.detach().cpu().numpy()
        if isinstance(leaf, np.ndarray):
            hasher.update(f"{path}:{leaf.dtype.str}:{leaf.shape}:".encode())
            bits = np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b""
            hasher.update(bits if leaf.nbytes < LARGE else blake3(bits).digest())
        else:
            hasher.update(f"{path}:{type(leaf).__name__}:{leaf!r}:".encode())
    return hasher.hexdigest()


def tensor_mean(tensors: Iterable[Tensor]) -> Tensor | None:
    """Average tensors of one shape, each counting the same, in the order given; holds one at a time, None without any."""
    total, count = None, 0
    for tensor in tensors:
        total, count = tensor.clone() if total is None else total.add_(tensor), count + 1
    return None if total is None else total.div_(count)


def lerp(start: Weights, end: Weights, weight: float) -> Weights:
    """Interpolate start + weight (end - start); integer entries are taken from `end`."""
    return {
        name: torch.lerp(value, end[name], weight) if value.is_floating_point() else end[name].clone()
        for name, value in start.items()
    }


def misfit(have: Weights, want: Weights) -> tuple[str, list[int] | str, list[int] | str] | None:
    """Find the first name, in order, that differs in shape or type or that one side lacks: the name, and what either has."""
    for name in sorted({*want, *have}):
        got, expected = (list(side[name].shape) if name in side else "missing" for side in (have, want))
        if got != expected:
            return name, got, expected
        if have[name].dtype != want[name].dtype:
            return name, str(have[name].dtype), str(want[name].dtype)
    return None
