"""Datasets of Hugging Face: a directory that `save_to_disk` has written, or a name on the Hub.

Such a directory is read without its library, which follows addresses that the files name.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from struct import error as StructError
from struct import unpack_from
from threading import Timer
from typing import Any

import numpy as np
import pyarrow as pa

from rayfed_ssl.data.decoding import Picture, Source
from rayfed_ssl.data.folders import is_saved
from rayfed_ssl.data.tables import TEST_NAMES, Columns, Table, encoded, read_splits
from rayfed_ssl.errors import reason
from rayfed_ssl.foreign.parquet import DAMAGE
from rayfed_ssl.foreign.reading import open_regular, read_json

_ROWS_PER_BYTE = 8
"""Most rows of a file for each of its bytes: a bit is the smallest cell that takes any room."""

SILENCE = 10.0
"""Seconds after which a line says that something is still being fetched."""


def find_hub(path: Path, download: bool, columns: Columns) -> Source:
    """Find a dataset, which its library fetches if it is not on this machine; pictures are decoded later.

    Args:
        path: A directory, or owner/name.
        download: Without meaning: the library keeps what it has fetched.
        columns: Names of columns; those that are None are found by their types.

    Raises:
        ValueError: The library or the dataset is missing or damaged, or no column or several could be meant.
    """
    splits, files = _saved(path) if is_saved(path) else _fetched(path)
    train = splits.get("train", next(iter(splits.values())) if len(splits) == 1 else None)
    if train is None:
        raise ValueError(f"{path} has the splits {', '.join(splits)}: it needs one called train, or a single one")
    test = next((splits[name] for name in TEST_NAMES if name in splits), None)
    parts = [train] if test is None else [train, test]
    pictures = partial(_pictures, path if is_saved(path) else Path("/"))
    table = Table(lambda: train.schema, parts, path, lambda part, name: part[name].to_pylist(), len, pictures)
    return Source(files, partial(read_splits, table, columns), has_test=test is not None)


def _pictures(directory: Path, part: pa.Table, image: str, rows: np.ndarray) -> Iterator[tuple[str, Picture]]:
    column = part[image]
    for row in rows.tolist():
        yield f"row {row}", encoded(column[row].as_py(), directory)


def _saved(path: Path) -> tuple[Mapping[str, pa.Table], tuple[Path, ...]]:
    """Map the splits of a directory by name, and name their files."""
    try:
        directories = {"train": path}
        if not (path / "state.json").is_file():
            directories = {split: _inside(path, split) for split in read_json(path / "dataset_dict.json")["splits"]}
        files = {
            split: [_inside(place, file["filename"]) for file in read_json(place / "state.json")["_data_files"]]
            for split, place in directories.items()
        }
        splits = {split: pa.concat_tables(map(_mapped, names)) for split, names in files.items()}
    except (*DAMAGE, LookupError, TypeError, StructError) as error:
        raise ValueError(
            f"data.path={path} is no complete directory of save_to_disk ({reason(error)}): write it again"
        ) from error
    return splits, tuple(file for names in files.values() for file in names)


def _inside(directory: Path, name: str) -> Path:
    """Join the name of a file or a directory; a ValueError for one that leads elsewhere."""
    if name != Path(name).name or name in ("", "..") or "\0" in name:
        raise ValueError(f"it names {name!r}, which lies outside of {directory}")
    return directory / name


def _mapped(file: Path) -> pa.Table:
    """Map an Arrow stream whose offsets, indices and texts are checked before anything uses them."""
    with open_regular(file) as opened:
        size = opened.seek(0, 2)
    with pa.memory_map(str(file)) as mapped:
        if any(_is_compressed(message.metadata.to_pybytes()) for message in pa.ipc.MessageReader.open_stream(mapped)):
            raise ValueError(f"{file.name} is compressed, and save_to_disk compresses nothing")
        mapped.seek(0)
        table = pa.ipc.open_stream(mapped).read_all()
    if table.num_rows > _ROWS_PER_BYTE * size:
        raise ValueError(f"{file.name} says that it has {table.num_rows} rows in {size} bytes")
    table.validate(full=True)
    return table


def _is_compressed(message: bytes) -> bool:
    """Whether an Arrow message has a batch whose buffers say how large they become: `RecordBatch.compression`."""
    header = _field(message, _follow(message, 0), 2)
    kind = _field(message, _follow(message, 0), 1)
    batch = _follow(message, header)
    if message[kind] == 2:  # a dictionary's batch is a field of it
        batch = _follow(message, _field(message, batch, 1))
    return message[kind] in (2, 3) and _field(message, batch, 3) > 0


def _field(message: bytes, table: int, number: int) -> int:
    """Find a field of a table of FlatBuffers; 0 where it is left out."""
    vtable = table - unpack_from("<i", message, table)[0]
    if 4 + 2 * number >= unpack_from("<H", message, vtable)[0]:
        return 0
    offset: int = unpack_from("<H", message, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _follow(message: bytes, at: int) -> int:
    target: int = at + unpack_from("<I", message, at)[0]
    return target


def _fetched(path: Path) -> tuple[Mapping[str, pa.Table], tuple[Path, ...]]:
    """Have the library open a dataset of the Hub, memory-mapped; its splits by name, and their files."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise ValueError(
            "data.name=hub needs datasets, which is not installed: pip install 'rayfed-ssl[hub]'"
        ) from None
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of each new try
    line = f"fetching {path} from the Hub goes on; HF_HUB_OFFLINE=1 takes what this machine has without asking it"
    silence = Timer(SILENCE, warnings.warn, [line])
    silence.start()
    try:
        loaded = datasets.load_dataset(str(path))
    except Exception as error:  # the library's own, its HTTP client's and its parsers' errors have no common parent
        raise ValueError(
            f"data.path={path} is neither a directory of a dataset nor one that this machine gets from the Hub "
            f"({reason(error)}): write it with save_to_disk where there is internet, copy the directory here, and set "
            "data.path to it"
        ) from error
    finally:
        silence.cancel()
    parts: Mapping[str, Any] = loaded if isinstance(loaded, Mapping) else {"train": loaded}
    files = {Path(entry["filename"]) for part in parts.values() for entry in part.cache_files}
    return {split: part.data.table for split, part in parts.items()}, tuple(sorted(files))
