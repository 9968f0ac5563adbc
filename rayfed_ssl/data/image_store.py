"""The store: decoded pixels in one Arrow file, memory-mapped so that a machine holds one physical copy of them.

The file is Arrow IPC, uncompressed: a compressed one is unpacked into the private memory of every process. It holds two
record batches, train then test, with the columns `image` (fixed-size binary, C*H*W bytes) and `label` (int64), and `group`
(int64) where samples belong to something that divides them. Opening
reads the footer only: a file that is cut short or is no store is noticed, a bit flipped among pixels is not.
"""

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
from filelock import FileLock

FORMAT = 1
"""Number of the file's layout; a store with another number is rebuilt."""

_KEY = b"rayfed-ssl"


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Pictures and their classes; a set from a store is pickled as its path.

    Attributes:
        images: uint8 [N, C, H, W], read-only; memory-mapped where the set comes from a store.
        labels: Classes, int64 [N], read-only; -1 for a sample without a label.
        classes: Names of the classes.
        path: The store; None for a set in memory.
        split: Which part of the store this is: train or test.
        groups: Which of `group_names` each training sample belongs to, int64 [N]; None where no column was asked for.
        group_names: Values of the column, ascending.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    path: Path | None = None
    split: str = "train"
    groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> tuple[Callable[..., "ImageSet"], tuple[Any, ...]]:
        if self.path is None:
            return ImageSet, (self.images, self.labels, self.classes)
        return _open_split, (self.path, self.split)

    @property
    def num_classes(self) -> int:
        """Count the classes."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Give the shape of one picture: channels, height, width."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width


@dataclass(frozen=True, eq=False)
class Dataset:
    """A decoded dataset.

    Attributes:
        name: Its name in the registry.
        train: What clients learn from.
        test: What evaluation measures on.
        fingerprint: sha256 of shape, classes, pixels and labels.
        skipped: The unreadable pictures that `on_bad="skip"` left out, each with its reason.
    """

    name: str
    train: ImageSet
    test: ImageSet
    fingerprint: str
    skipped: tuple[str, ...] = ()


class Block(NamedTuple):
    """Consecutive samples on their way into a store: uint8 [n, C, H, W], int64 [n], names of skipped ones, groups [n]."""

    pixels: np.ndarray
    labels: np.ndarray
    skipped: tuple[str, ...] = ()
    groups: np.ndarray | None = None


class _Spooled(NamedTuple):
    pixels: np.ndarray
    labels: np.ndarray
    skipped: list[str]
    groups: np.ndarray | None


def open_store(path: Path) -> Dataset:
    """Open a store; nothing is decoded and no pixel is read."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        header = json.loads((reader.schema.metadata or {})[_KEY])
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (OSError, KeyError, pa.ArrowException, ValueError) as error:
        raise ValueError(f"no usable store at {path} on this machine ({error}): open the dataset again") from error
    if header["format"] != FORMAT or len(batches) != 2:
        raise ValueError(f"the store {path} has format {header['format']}, not {FORMAT}: open the dataset again")
    train, test = (
        _image_set(batch, header, path, split) for batch, split in zip(batches, ("train", "test"), strict=True)
    )
    return Dataset(header["name"], train, test, header["fingerprint"], tuple(header["skipped"]))


def alone(store: Path) -> AbstractContextManager[object]:
    """Wait until no other process of the machine writes the store, and keep them waiting until the exit."""
    store.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(store.parent / f".{store.name}.lock").acquire()


def write_store(
    path: Path, *, name: str, classes: tuple[str, ...], train: Iterable[Block], test: Iterable[Block]
) -> None:
    """Write a store from blocks of samples, atomically and in bounded memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with TemporaryFile(dir=path.parent) as train_file, TemporaryFile(dir=path.parent) as test_file:
        splits = _spool(train, train_file, digest, "train"), _spool(test, test_file, digest, "test")
        shapes = [list(split.pixels.shape[1:]) for split in splits]
        if shapes[0] != shapes[1]:
            raise ValueError(f"train pictures are {shapes[0]}, test pictures {shapes[1]} [C, H, W]: set data.size")
        digest.update(json.dumps([shapes[0], classes]).encode())
        header = {
            "format": FORMAT,
            "name": name,
            "shape": shapes[0],
            "classes": classes,
            "skipped": splits[0].skipped + splits[1].skipped,
            "fingerprint": digest.hexdigest(),
        }
        if (groups := splits[0].groups) is not None:
            values, codes = np.unique(groups, return_inverse=True)
            header["groups"] = [str(value) for value in values]
            splits = splits[0]._replace(groups=codes.astype(np.int64)), splits[1]
        _write_arrow(path, header, splits)


def _spool(blocks: Iterable[Block], file: IO[bytes], digest: "hashlib._Hash", split: str) -> _Spooled:
    """Append a split's pixels to an anonymous file, so that no split has to fit into memory."""
    labels: list[np.ndarray] = []
    skipped: list[str] = []
    groups: list[np.ndarray] = []
    shape: tuple[int, ...] = ()
    for block in blocks:
        shape = block.pixels.shape[1:] if len(block.labels) else shape
        pixels = np.ascontiguousarray(block.pixels)
        digest.update(pixels.data)
        file.write(pixels.data)
        labels.append(block.labels)
        skipped.extend(block.skipped)
        groups.extend([] if block.groups is None else [block.groups])
    targets = np.concatenate([np.empty(0, np.int64), *labels]).astype(np.int64)
    if not len(targets):
        raise ValueError(f"the {split} split has no pictures: it needs at least one")
    digest.update(targets.data)
    file.flush()
    pixels = np.memmap(file, np.uint8, "r", shape=(len(targets), *shape))
    return _Spooled(pixels, targets, skipped, np.concatenate(groups) if groups else None)


def _write_arrow(path: Path, header: dict[str, Any], splits: tuple[_Spooled, ...]) -> None:
    fields = {"image": pa.binary(math.prod(header["shape"])), "label": pa.int64()}
    fields |= {"group": pa.int64()} if "groups" in header else {}
    schema = pa.schema(fields, metadata={_KEY: json.dumps(header).encode()})
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with pa.ipc.new_file(temporary, schema) as writer:
            for split in splits:
                columns = [split.pixels, split.labels]
                if "groups" in header:
                    columns.append(np.full(len(split.labels), -1) if split.groups is None else split.groups)
                arrays = [  # pa.array would import pandas; buffers do not
                    pa.Array.from_buffers(kind, len(split.labels), [None, pa.py_buffer(column)])
                    for kind, column in zip(schema.types, columns, strict=True)
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _image_set(batch: Any, header: dict[str, Any], path: Path, split: str) -> ImageSet:
    names = tuple(header.get("groups", ()))
    kinds = ((np.uint8, math.prod(header["shape"])), *[(np.int64, 1)] * (2 if names else 1))
    images, labels, *groups = (
        np.frombuffer(column.buffers()[1], dtype, count=batch.num_rows * width)
        for column, (dtype, width) in zip(batch.columns, kinds, strict=True)
    )
    pixels, classes = images.reshape(-1, *header["shape"]), tuple(header["classes"])
    return ImageSet(pixels, labels, classes, Path(path), split, groups[0] if groups else None, names)


def _open_split(path: Path, split: str) -> ImageSet:
    dataset = open_store(path)
    return dataset.train if split == "train" else dataset.test
