"""Datasets by name, opened from a store that is decoded once per machine.

The store's key holds the files' names, sizes and modification times and every setting that changes the result. It
leaves contents out, because reading them would cost what the store saves.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from rayfed_ssl import formats
from rayfed_ssl.data.decoding import MAX_PIXELS, WINDOW, OnBad, Source, Split, all_gray, decode, picture_suffixes
from rayfed_ssl.data.folders import (
    ANNOTATIONS,
    METADATA,
    SITE,
    Passed,
    by_class,
    check_nesting,
    first_directory,
    metadata_column,
    pass_over,
    passed_over,
    saved_hint,
)
from rayfed_ssl.data.hub import find_hub
from rayfed_ssl.data.image_store import FORMAT, Dataset, ImageSet, alone, open_store, write_store
from rayfed_ssl.data.partitions import random_rows, stratified_split
from rayfed_ssl.data.tables import NO_COLUMNS, TEST_NAMES, TRAIN_NAMES, Columns, find_parquet
from rayfed_ssl.data.torch_datasets import check_torch, find_torch, find_torchvision, find_vision, vision_names
from rayfed_ssl.errors import nearest, printable
from rayfed_ssl.foreign import plugins
from rayfed_ssl.machine.resources import free_memory


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a dataset before it is opened.

    Attributes:
        description: One line for listings.
        find: Finds its files in a directory; True downloads them first.
        size: Native side in pixels; None where it depends on the pictures.
        channels: Native channels, likewise.
        needs_path: Whether data.path is required.
        has_columns: Whether it is a table whose columns can be named; `find` takes them as a third argument.
        is_remote: Whether data.path may be a name that is no directory.
    """

    description: str
    find: Callable[..., Source]
    size: int | None = None
    channels: int | None = None
    needs_path: bool = False
    has_columns: bool = False
    is_remote: bool = False


def open_dataset(
    name: str,
    *,
    path: Path | None = None,
    size: int | None = None,
    channels: int | None = None,
    train_limit: int | None = None,
    test_limit: int | None = None,
    test_fraction: float = 0.2,
    validation: float | None = None,
    seed: int = 0,
    cache: Path | None = None,
    download: bool = False,
    on_bad: OnBad = "error",
    max_pixels: int = MAX_PIXELS,
    white: int | None = None,
    image: str | None = None,
    label: str | None = None,
    group: str | None = None,
    classes: Sequence[str | int] | None = None,
    on_progress: Callable[[str, int, int, int], None] | None = None,
    on_planned: Callable[[Dataset], None] | None = None,
) -> Dataset:
    """Open a dataset; decodes it on the first call with these settings, and takes milliseconds afterwards.

    The settings are those of `rayfed_ssl.config.sections.Data`, and `group` is a column that is stored with the training
    samples. Stores lie in `cache`. While decoding, `on_progress` gets the split's name, the pictures done, their total, and
    the bytes of pixels. Before pictures of known size are decoded, `on_planned` gets the dataset with blank ones, and may
    raise.
    """
    columns = Columns(image, label, group)
    info, source = find_dataset(name, path, download, columns)
    # Asking for the native format is not asking for another store.
    size, channels = None if size == info.size else size, None if channels == info.channels else channels
    settings: dict[str, Any] = {"name": name, "size": size, "channels": channels, "on_bad": on_bad}
    settings |= {"train_limit": train_limit, "test_limit": test_limit}
    settings |= {} if max_pixels == MAX_PIXELS else {"max_pixels": max_pixels}
    settings |= {} if white is None else {"white": white}
    settings |= {} if source.has_test else {"test_fraction": test_fraction}
    settings |= {} if validation is None else {"validation": validation}
    settings |= {"seed": seed} if not source.has_test or train_limit or test_limit or validation else {}
    settings |= {key: value for key, value in dataclasses.asdict(columns).items() if value is not None}
    if classes is not None:
        source, settings["classes"] = _of_classes(source, classes), list(classes)
    directory = cache or platformdirs.user_cache_path("rayfed-ssl") / "stores"
    store = directory / f"{plugins.short(name)}-{_key(_root(path), source.files, settings)}"
    with suppress(ValueError):
        return open_store(store, source.notes)
    try:
        lock = alone(store)
    except OSError as error:
        raise ValueError(
            f"decoded data cannot be kept in {store.parent} ({error.strerror}): name another directory in XDG_CACHE_HOME"
        ) from None
    with lock:
        with suppress(ValueError):
            return open_store(store, source.notes)  # another process has just written it
        train, test, names, notes = _read(source, test_fraction, (train_limit, test_limit), validation, seed)
        channels = channels or info.channels or (1 if all_gray(train) and all_gray(test) else 3)
        if side := size or info.size:
            _check_room(len(train.labels) + len(test.labels), side, channels, store.parent)
            if on_planned:
                blank = [_blank(split, names, (channels, side, side)) for split in (train, test)]
                on_planned(Dataset(name, blank[0], blank[1], fingerprint=""))
        convert = partial(decode, size=size, channels=channels, on_bad=on_bad, max_pixels=max_pixels, white=white)
        report = on_progress or (lambda split, done, total, num_bytes: None)
        write_store(
            store,
            name=name,
            classes=names,
            train=convert(train, on_progress=partial(report, "train")),
            test=convert(test, on_progress=partial(report, "test")),
            has_test=source.has_test,
            notes=notes,
        )
        return open_store(store, source.notes)


def dataset_info(name: str) -> DatasetInfo:
    """Find a dataset by name, also one from outside: a class or function that gives a torch `Dataset` of images."""
    library, _, class_name = name.partition(":")
    if library == "torchvision" and class_name:
        return DatasetInfo("of torchvision", partial(find_vision, class_name), needs_path=True)
    target = plugins.find("dataset", name, DATASETS, _suggestion)
    if isinstance(target, DatasetInfo):
        return target
    check_torch(name, target)
    return DatasetInfo(plugins.summary(target), partial(find_torch, name, target))


def _suggestion(name: str, choices: list[str]) -> str:
    """Suggest torchvision's dataset of a name, or else the nearest of the choices."""
    vision = {other.lower(): other for other in vision_names()}
    return f": did you mean torchvision:{vision[name.lower()]}?" if name.lower() in vision else nearest(name, choices)


def _read(
    source: Source, test_fraction: float, limits: tuple[int | None, int | None], validation: float | None, seed: int
) -> tuple[Split, Split, tuple[str, ...], tuple[str, ...]]:
    """Read labels, choose samples, and give the classes and notes on samples that are not taken."""
    train, test, classes = source.read()
    notes = train.notes
    if test is None:
        train, test = _hold_out(train, test_fraction, seed)
    elif (labeled := test.labels >= 0).any() and not labeled.all():
        notes += (f"passed over: {(~labeled).sum():,} test samples without a label",)
        test = test.select(np.flatnonzero(labeled))
    # Two seeds for two subsets: one seed would pick the same row numbers in both splits.
    train = train.select(random_rows(len(train.labels), limits[0], seed))
    if validation is not None:
        train, test = _hold_out(train, validation, seed + 2)
    test = test.select(random_rows(len(test.labels), limits[1], seed + 1))
    return train, test, classes, notes


def _of_classes(source: Source, wanted: Sequence[str | int]) -> Source:
    """Keep the samples of some classes, which are numbered anew in their old order."""

    def read() -> tuple[Split, Split | None, tuple[str, ...]]:
        train, test, classes = source.read()
        if unknown := [
            each for each in wanted if each not in (range(len(classes)) if isinstance(each, int) else classes)
        ]:
            raise ValueError(
                f"data.classes={unknown[0]} is no class of the {len(classes)} here, such as {', '.join(classes[:5])}"
                f"{nearest(str(unknown[0]), classes)}"
            )
        numbers = sorted({each if isinstance(each, int) else classes.index(each) for each in wanted})

        def kept(split: Split) -> Split:
            chosen = split.select(np.flatnonzero(np.isin(split.labels, numbers)))
            return replace(chosen, labels=np.searchsorted(numbers, chosen.labels), notes=split.notes)

        return kept(train), None if test is None else kept(test), tuple(classes[number] for number in numbers)

    return replace(source, read=read)


def _check_room(num_pictures: int, side: int, channels: int, directory: Path) -> None:
    """Refuse, before any is decoded, pictures that memory or the directory's disk cannot hold."""
    each, text = channels * side**2, f"{num_pictures:,} pictures of {side}x{side} pixels"
    needs = {
        "disk": (num_pictures * each, shutil.disk_usage(directory).free),
        "memory": (2 * min(WINDOW, num_pictures) * each, free_memory()),
    }
    for what, (needed, free) in needs.items():
        if needed > free:
            raise ValueError(
                f"{text} take {formats.size(needed)} of {what} to decode, but {formats.size(free)} are free: lower "
                "data.size or data.train_limit"
            )


def _blank(split: Split, classes: tuple[str, ...], shape: tuple[int, int, int]) -> ImageSet:
    """Describe a split before its pictures [C, H, W] are decoded; blank ones take no memory."""
    images = np.broadcast_to(np.uint8(0), (len(split.labels), *shape))
    if split.groups is None:
        return ImageSet(images, split.labels, classes)
    values, numbers = np.unique(split.groups, return_inverse=True)
    return ImageSet(images, split.labels, classes, groups=numbers.astype(np.int64), group_names=tuple(map(str, values)))


def _hold_out(train: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Take from the training samples some to measure on, of those with a label if there are any."""
    labeled = np.flatnonzero(train.labels >= 0)
    able = labeled if len(labeled) else np.arange(len(train.labels))
    held_out = able[stratified_split(train.labels[able], fraction, seed)[1]]
    return train.select(np.setdiff1d(np.arange(len(train.labels)), held_out)), train.select(held_out)


def _root(path: Path | None) -> Path:
    return (path or platformdirs.user_cache_path("rayfed-ssl") / "datasets").resolve()


def find_dataset(
    name: str, path: Path | None, download: bool, columns: Columns = NO_COLUMNS
) -> tuple[DatasetInfo, Source]:
    """Find a dataset's files; a ValueError says how to get them where they are not there."""
    info = dataset_info(name)
    if info.needs_path and path is None:
        raise ValueError(f"dataset {name} has no default place: set data.path to its directory")
    if name == "digits" and path is not None:
        raise ValueError(f"dataset digits has no files, got data.path={path}: set data.name=folder or another dataset")
    if path is not None and not path.exists() and not (download or info.is_remote):
        raise ValueError(f"data.path {path} does not exist: set it to the directory with the files of data.name={name}")
    if name == "folder" and path is not None and path.is_file():
        raise ValueError(f"data.path {path} is a file: set it to the directory that holds one directory for each class")
    if columns != NO_COLUMNS and not info.has_columns:
        tables = ", ".join(other for other, about in DATASETS.items() if about.has_columns)
        named = ", ".join(value for value in dataclasses.astuple(columns) if value is not None)
        raise ValueError(f"dataset {name} has no columns, got {named}: take {tables}, or another partition")
    place = path if info.is_remote and path is not None else _root(path)
    return info, info.find(place, download, columns) if info.has_columns else info.find(place, download)


def _key(root: Path, files: Sequence[Path], settings: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT, settings]).encode())
    # The directory's own name counts, its place does not: a copy that keeps the times shares the store.
    place = str(root.parent)
    for file in map(str, files):
        status = os.stat(file, follow_symlinks=os.path.exists(file))  # a link to nowhere is an unreadable picture
        digest.update(os.fsencode(f"\n{file.removeprefix(place)} {status.st_size} {status.st_mtime_ns}"))
    return digest.hexdigest()[:24]


def _find_digits(path: Path, download: bool) -> Source:
    def read() -> tuple[Split, None, tuple[str, ...]]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
        return Split.of_pixels(pixels, digits.target), None, tuple(str(name) for name in digits.target_names)

    return Source((), read, has_test=False)


def _find_store(path: Path, download: bool) -> Source:
    """Find a store that `keep` has written."""
    stored = open_store(path)
    train, test = (Split.of_pixels(part.images, part.labels) for part in (stored.train, stored.test))
    return Source((path / "header.json",), lambda: (train, test, stored.train.classes), has_test=True)


def _find_folder(path: Path, download: bool, columns: Columns) -> Source:
    """Find pictures in one directory per class, under train and test or val, or all in one place.

    The names of splits count in any case where no other directory is there: a class may be called Train. A column is one
    of metadata.csv, beside the training pictures' classes or the splits; without that file, the column `site` stands for a
    directory above those of classes.
    """
    if columns != Columns(group=columns.group):
        raise ValueError("data.image and data.label name columns of tables, and a folder's classes are directories")
    folders = (folder for folder in sorted(path.glob("*/"), reverse=True) if not folder.name.startswith("."))
    named, root = {folder.name.lower(): folder for folder in folders}, path / "train"
    if not root.is_dir():
        are_splits = named.keys() <= {*TRAIN_NAMES, *TEST_NAMES}
        root = next((named[name] for name in TRAIN_NAMES if are_splits and name in named), path)
    tests = [named[name] for name in TEST_NAMES if name in named and root != path]
    passed: Passed = Counter()
    group = columns.group
    table = next((file for each in (root, path) if (file := each / METADATA).is_file()), root / METADATA)
    has_sites = group == SITE and not table.is_file()
    if group is not None and not (has_sites or table.is_file()):
        raise ValueError(
            f"there is no column {group!r} without {table}: write one with the columns file_name and "
            f"{group}, or take {SITE}, the directories above those of classes"
        )
    train = by_class(root, passed, level=int(has_sites))
    classes = tuple(sorted({name for name, _ in train}))
    if not train and has_sites:
        raise ValueError(
            f"no pictures in {root}/SITE/CLASS: partition.column={SITE} takes the first directories of a folder for sites "
            f"and those in them for classes: move the pictures, or write {table}"
        )
    if not train:
        raise ValueError(
            f"no pictures in class directories of {root} ({', '.join(picture_suffixes())}): "
            f"{saved_hint(path) or 'set data.path to a directory with train/<class>/ and test/<class>/, or with <class>/'}; "
            f"pictures without classes go into one such directory{'; '.join(['', *passed_over(passed)])}"
        )
    notes = () if has_sites else check_nesting(root, train)
    test: list[tuple[str, Path]] = []
    for folder in tests:
        skipped: Passed = Counter()
        samples = by_class(folder, skipped, level=int(has_sites))
        if has_sites and not samples:  # a test set may be common to all sites
            skipped = Counter()
            samples = by_class(folder, skipped)
        labels = {label for label, _ in samples}
        # Tiny-ImageNet's test/images has no labels; its val is the test set.
        if test or (labels == {"images"} and "images" not in classes):
            unused = f"in {printable(folder.name)}, which is not used"
            passed[f"picture {unused}", f"pictures {unused}"] += len(samples)
            continue
        if unknown := labels - set(classes):
            raise ValueError(f"{folder} has the class {min(unknown)}, which {root} has not: add or remove it")
        test, passed = samples, passed + skipped
    if root != path:
        for entry in sorted(path.iterdir()):
            if entry.name.startswith("."):
                passed["hidden file or directory", "hidden files and directories"] += 1
            elif not entry.is_dir():
                pass_over(passed, entry.name)
            elif entry not in (root, *tests):
                passed[f"directory beside {root.name}", f"directories beside {root.name}"] += 1
    number = {name: index for index, name in enumerate(classes)}

    training_files, groups = [file for _, file in train], None
    if has_sites:
        groups = np.array([first_directory(root, file) for file in training_files])
    elif group is not None:
        groups = metadata_column(table, training_files, group)

    def split(samples: list[tuple[str, Path]], groups: np.ndarray | None = None) -> Split:
        labels = np.array([number[name] for name, _ in samples], np.int64)
        return Split(labels, lambda rows: ((str(samples[row][1]), samples[row][1]) for row in rows), groups)

    annotations = [file for each in (root, *tests) if (file := each / ANNOTATIONS).is_file()]
    annotations += [table] if table.is_file() and group is not None else []
    passed["file .csv", "files .csv"] -= group is not None and not has_sites
    files = (*(file for _, file in train + test), *annotations)
    return Source(
        files,
        lambda: (split(train, groups), split(test) if test else None, classes),
        bool(test),
        notes + passed_over(passed),
    )


def _vision(
    description: str, class_name: str, folder: str, size: int, channels: int, train: str = "", test: str = ""
) -> DatasetInfo:
    splits: tuple[dict[str, Any], dict[str, Any]] = ({"train": True}, {"train": False})
    if train:
        splits = {"split": train}, {"split": test}
    return DatasetInfo(description, partial(find_torchvision, class_name, folder, splits), size, channels)


_STL10 = ("STL10", "stl10_binary", 96, 3)

DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo("scikit-learn's 1,797 handwritten digits, 8x8 gray; no files needed", _find_digits, 8, 1),
    "cifar10": _vision("50,000 + 10,000 photographs, 10 classes", "CIFAR10", "cifar-10-batches-py", 32, 3),
    "cifar100": _vision("50,000 + 10,000 photographs, 100 classes", "CIFAR100", "cifar-100-python", 32, 3),
    "fashion-mnist": _vision("60,000 + 10,000 gray pictures, 10 classes", "FashionMNIST", "FashionMNIST/raw", 28, 1),
    "stl10": _vision("5,000 + 8,000 photographs, 10 classes", *_STL10, "train", "test"),
    "stl10-unlabeled": _vision(
        "stl10, and 100,000 photographs with label -1 to train on", *_STL10, "train+unlabeled", "test"
    ),
    "parquet": DatasetInfo(
        "Parquet files in Hugging Face's image layout", find_parquet, needs_path=True, has_columns=True
    ),
    "hub": DatasetInfo(
        "a Hugging Face dataset: what save_to_disk wrote, or owner/name",
        find_hub,
        needs_path=True,
        has_columns=True,
        is_remote=True,
    ),
    "folder": DatasetInfo("pictures in one directory per class", _find_folder, needs_path=True, has_columns=True),
    "store": DatasetInfo("a torch Dataset that Python has given, as `keep` stored it", _find_store, needs_path=True),
}
