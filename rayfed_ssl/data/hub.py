"""Datasets of Hugging Face: a directory that `save_to_disk` has written, or a name on the Hub."""

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_ssl.data.decoding import Picture, Source
from rayfed_ssl.data.tables import TEST_NAMES, Columns, Table, encoded, find_columns, read_splits
from rayfed_ssl.errors import reason


def find_hub(path: Path, download: bool, columns: Columns) -> Source:
    """Find a dataset, which its library fetches if it is not on this machine; pictures are decoded later.

    Args:
        path: A directory, or owner/name.
        download: Without meaning: the library keeps what it has fetched.
        columns: Names of columns; those that are None are found by their types.

    Raises:
        ValueError: The library or the dataset is missing, or no column or several could be meant.
    """
    splits = _load(path)
    train = splits.get("train", next(iter(splits.values())) if len(splits) == 1 else None)
    if train is None:
        raise ValueError(f"{path} has the splits {', '.join(splits)}: it needs one called train, or a single one")
    test = next((splits[name] for name in TEST_NAMES if name in splits), None)
    parts = [train] if test is None else [train, test]
    files = tuple(sorted({Path(entry["filename"]) for part in parts for entry in part.cache_files}))

    table = Table(train.features.arrow_schema, parts, path, lambda part, name: list(part[name]), len, _pictures)
    found, notes = find_columns(table, columns)
    return Source(files, partial(read_splits, table, found), has_test=test is not None, notes=notes)


def _pictures(part: Any, image: str, rows: np.ndarray) -> Iterator[tuple[str, Picture]]:
    from datasets import Image

    pictures = part.select_columns([image]).cast_column(image, Image(decode=False))
    for row in rows.tolist():
        yield f"row {row}", encoded(pictures[row][image], Path("/"))


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
        raise ValueError(
            f"data.path={path} is neither a directory of a dataset nor one that this machine gets from the Hub "
            f"({reason(error)}): write it with save_to_disk where there is internet, copy the directory here, and set "
            "data.path to it"
        ) from error
    splits = loaded if isinstance(loaded, Mapping) else {"train": loaded}
    return {name: split.with_format(None) for name, split in splits.items()}  # values, not a saved format's tensors
