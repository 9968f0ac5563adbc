"""Datasets of Hugging Face: a directory that `save_to_disk` has written, or a name on the Hub."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_ssl.data.decoding import Picture, Source, Split
from rayfed_ssl.data.tables import NO_COLUMNS, Columns, choose, encoded, group_values, number_classes
from rayfed_ssl.errors import nearest

USUAL_LABELS = ("label", "labels", "fine_label", "target", "class")


def find_hub(path: Path, download: bool, columns: Columns = NO_COLUMNS, *, test_names: tuple[str, ...] = ()) -> Source:
    """Find a dataset, which its library fetches if it is not on this machine; pictures are decoded later.

    Args:
        path: A directory, or owner/name.
        download: Without meaning: the library keeps what it has fetched.
        columns: Names of columns; those that are None are found by their types.
        test_names: What a test split may be called.

    Raises:
        ValueError: The library or the dataset is missing, or no column or several could be meant.
    """
    splits = _load(path)
    train = splits.get("train", next(iter(splits.values())) if len(splits) == 1 else None)
    if train is None:
        raise ValueError(f"{path} has the splits {', '.join(splits)}: it needs one called train, or a single one")
    test = next((splits[name] for name in test_names if name in splits), None)
    parts = [train] if test is None else [train, test]
    files = tuple(sorted({Path(entry["filename"]) for part in parts for entry in part.cache_files}))

    def read() -> tuple[Split, Split | None, tuple[str, ...]]:
        names = _columns(train, columns, path)
        raw = [list(part[names.label]) for part in parts]
        known = getattr(train.features[names.label], "names", None)
        labels, classes = number_classes(raw, known, path)
        groups = None if names.group is None else group_values(list(train[names.group]), names.group)
        first, *second = (_split(part, names.image, values) for part, values in zip(parts, labels, strict=True))
        return Split(first.labels, first.read, groups), next(iter(second), None), tuple(classes)

    return Source(files, read, has_test=test is not None)


def _split(part: Any, image: str | None, labels: np.ndarray) -> Split:
    from datasets import Image

    pictures = part.select_columns([image]).cast_column(image, Image(decode=False))

    def read(rows: np.ndarray) -> Iterator[tuple[str, Picture]]:
        for row in rows.tolist():
            yield f"row {row}", encoded(pictures[row][image], Path())

    return Split(labels, read)


def _columns(train: Any, asked: Columns, path: Path) -> Columns:
    """Name the columns of pictures and labels, by their types where they are not named."""
    from datasets import ClassLabel, Image

    features = train.features
    for key, name in (("data.image", asked.image), ("data.label", asked.label), ("partition.column", asked.group)):
        if name is not None and name not in features:
            raise ValueError(f"{key}: {path} has no column {name!r}{nearest(name, features)}")
    pictures = [name for name, kind in features.items() if isinstance(kind, Image)]
    if (
        asked.image is not None
        and asked.image not in pictures
        and getattr(features[asked.image], "dtype", None) != "binary"
    ):
        raise ValueError(f"data.image: {asked.image!r} of {path} holds no pictures: name another column")
    classes = [name for name, kind in features.items() if isinstance(kind, ClassLabel)]
    usual = [name for name in USUAL_LABELS if name in features][:1]
    label = asked.label or choose(
        classes if len(classes) == 1 else usual or classes, (), "label column", "data.label", list(features), path
    )
    image = asked.image or choose(pictures, ("img", "image"), "picture column", "data.image", list(features), path)
    return Columns(image, label, asked.group)


def _load(path: Path) -> Mapping[str, Any]:
    """Open the splits by name, memory-mapped."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise ValueError(
            "data.name=hub needs datasets, which is not installed: pip install 'rayfed-ssl[hub]'"
        ) from None
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of each new try
    on_disk = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
    try:
        loaded = datasets.load_from_disk(str(path)) if on_disk else datasets.load_dataset(str(path))
    except Exception as error:  # the library's own, its HTTP client's and its parsers' errors have no common parent
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"data.path={path} is neither a directory of a dataset nor one that this machine gets from the Hub ({reason}): "
            "write it with save_to_disk where there is internet, copy the directory here, and set data.path to it"
        ) from error
    return loaded if isinstance(loaded, Mapping) else {"train": loaded}
