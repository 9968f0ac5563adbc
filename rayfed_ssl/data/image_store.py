"""The store: decoded pixels in files that are memory-mapped, so that a machine holds one physical copy of them.

It is a directory with the pixels (uint8) and labels (int64) of train and test as they lie in memory, `train-groups` (int64)
where samples belong to something that divides them, and `header.json`. Opening reads the header only: a file that is cut
short is noticed, a bit flipped among pixels is not.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock

from rayfed_ssl.foreign.reading import open_regular, read_bytes

FORMAT = 4
"""Number of the layout; one of another layout has another name."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Pictures and their classes; a set from a store is pickled as its path.

    Attributes:
        images: uint8 [N, C, H, W], read-only; memory-mapped where the set comes from a store.
        labels: Classes, int64 [N], read-only; -1 for a sample without a label.
        classes: Names of the classes.
        path: The store; None for a set in memory.
        split: Which part of the store this is: train or test.
        groups: Number of the column's value of each training sample, int64 [N], values ascending; None without a column.
        group_names: The column's values by number, as text.
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
        shared: How many test pictures have the pixels of a training picture.
        has_test: Whether it comes with a test split, and none was split off.
        notes: What the user should know about the files that it was made of.
    """

    name: str
    train: ImageSet
    test: ImageSet
    fingerprint: str
    skipped: tuple[str, ...] = ()
    shared: int = 0
    has_test: bool = True
    notes: tuple[str, ...] = ()


class Block(NamedTuple):
    """Consecutive samples on their way into a store: uint8 [n, C, H, W], int64 [n], names of skipped ones, groups [n].

    `dim` are the smallest and largest values of each picture that uses hardly any of its range.
    """

    pixels: np.ndarray
    labels: np.ndarray
    skipped: tuple[str, ...] = ()
    groups: np.ndarray | None = None
    dim: tuple[tuple[int, int], ...] = ()


def open_store(path: Path, notes: tuple[str, ...] = ()) -> Dataset:
    """Open a store; nothing is decoded and no pixel is read."""
    try:
        header = json.loads(read_bytes(path / "header.json"))
        train, test = (_image_set(path, split, header) for split in ("train", "test"))
        more = (tuple(header["skipped"]), int(header["shared"]), bool(header["has_test"]))
        notes += tuple(header["notes"])
        if strange := [
            text for text in (header["name"], header["fingerprint"], *train.classes) if type(text) is not str
        ]:
            raise TypeError(f"its header has {strange[0]!r:.80} for a name")
        return Dataset(header["name"], train, test, header["fingerprint"], *more, notes)
    except (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"no usable store at {path} on this machine ({error}): open the dataset again") from error


def alone(store: Path) -> AbstractContextManager[object]:
    """Wait until no other process of the machine writes the store, and keep them waiting until the exit."""
    store.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(store.parent / f".{store.name}.lock").acquire()


def write_store(
    path: Path,
    *,
    name: str,
    classes: tuple[str, ...],
    train: Iterable[Block],
    test: Iterable[Block],
    has_test: bool = True,
    notes: tuple[str, ...] = (),
) -> None:
    """Write a store from blocks of samples, atomically and in bounded memory; `notes` are kept for the user."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with _naming(path), TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
        draft = Path(temporary, "store")
        draft.mkdir()
        first, second = (_write_split(draft, *each, digest) for each in (("train", train), ("test", test)))
        shape = first["shape"]
        if shape != second["shape"]:
            raise ValueError(f"train pictures are {shape}, test pictures {second['shape']} [C, H, W]: set data.size")
        digest.update(json.dumps([shape, classes]).encode())
        header: dict[str, Any] = {
            "name": name,
            "classes": classes,
            "train": first,
            "test": second,
            "fingerprint": digest.hexdigest(),
        }
        header["skipped"] = first.pop("skipped") + second.pop("skipped")
        dim, total = first.pop("dim") + second.pop("dim"), first["count"] + second["count"]
        header["notes"] = [*notes, *_dim_note(dim, total)]
        train_pictures = set(first.pop("pictures"))
        header["has_test"] = has_test
        header["shared"] = sum(picture in train_pictures for picture in second.pop("pictures"))
        (draft / "header.json").write_text(json.dumps(header))
        shutil.rmtree(path, ignore_errors=True)  # a damaged one
        draft.rename(path)


def _dim_note(dim: list[tuple[int, int]], total: int) -> tuple[str, ...]:
    """Tell of pictures that use less than a sixteenth of their range, or one value of it, if they are more than a few."""
    blank = sum(low == high for low, high in dim)
    as_bright_as_can_be = (255, 65535)
    ranges = [(low, high) for low, high in dim if low < high and high not in as_bright_as_can_be]
    notes = []
    if len(ranges) > DIM_SHARE * total:
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        notes.append(
            f"dim: {len(ranges):,} of {total:,} pictures fill less than a sixteenth of their range, with values from {low} "
            f"to {high}: data.white={high} makes the largest white"
        )
    if blank > DIM_SHARE * total:
        notes.append(f"blank: {blank:,} of {total:,} pictures have one value everywhere")
    return tuple(notes)


DIM_SHARE = 0.01
"""So many dim pictures are night, or empty tiles, and no matter of scale."""


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the store in the error of a full disk, which names no file."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(path)
        raise


def _write_split(directory: Path, split: str, blocks: Iterable[Block], digest: "hashlib._Hash") -> dict[str, Any]:
    """Write a split's files, and describe it for the header."""
    labels: list[np.ndarray] = []
    skipped: list[str] = []
    pictures: list[bytes] = []
    groups: list[np.ndarray] = []
    dim: list[tuple[int, int]] = []
    shape: tuple[int, ...] = ()
    with (directory / f"{split}-images").open("wb") as file:
        for block in blocks:
            shape = block.pixels.shape[1:] if len(block.labels) else shape
            pixels = np.ascontiguousarray(block.pixels)
            digest.update(pixels.data)
            file.write(pixels.data)
            pictures.extend(hashlib.blake2b(picture, digest_size=16).digest() for picture in pixels)
            labels.append(block.labels)
            skipped.extend(block.skipped)
            groups.extend([] if block.groups is None else [block.groups])
            dim.extend(block.dim)
    targets = np.concatenate([np.empty(0, np.int64), *labels]).astype(np.int64)
    if not len(targets):
        raise ValueError(f"the {split} split has no pictures: it needs at least one")
    digest.update(targets.data)
    targets.tofile(directory / f"{split}-labels")
    names: list[str] = []
    if groups:
        values, numbers = np.unique(np.concatenate(groups), return_inverse=True)
        numbers.astype(np.int64).tofile(directory / f"{split}-groups")
        names = [str(value) for value in values]
    facts = {"count": len(targets), "shape": list(shape), "groups": names}
    return facts | {"skipped": skipped, "pictures": pictures, "dim": dim}


def _image_set(path: Path, split: str, header: dict[str, Any]) -> ImageSet:
    def mapped(column: str, dtype: type[np.generic], *shape: int) -> np.ndarray:
        with open_regular(path / f"{split}-{column}") as file:
            return np.asarray(np.memmap(file, dtype, "r", shape=shape))

    count, shape, names = (header[split][key] for key in ("count", "shape", "groups"))
    images, labels = mapped("images", np.uint8, count, *shape), mapped("labels", np.int64, count)
    groups = mapped("groups", np.int64, count) if names else None
    if not all(isinstance(name, str) for name in header["classes"]):
        raise TypeError("its classes have names that are no strings")
    return ImageSet(images, labels, tuple(header["classes"]), path, split, groups, tuple(names or ()))


def _open_split(path: Path, split: str) -> ImageSet:
    dataset = open_store(path)
    return dataset.train if split == "train" else dataset.test
