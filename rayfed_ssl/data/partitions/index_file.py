"""Partitions from a file that lists the samples of each client."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import FailFast, Field, TypeAdapter, ValidationError

from rayfed_ssl.data.partitions.rows import Rows, Shards, sorted_shards
from rayfed_ssl.errors import reason
from rayfed_ssl.foreign.parquet import DAMAGE, is_string, read_table
from rayfed_ssl.foreign.reading import plain_json, read_bytes
from rayfed_ssl.validation import AbsolutePath

IndexPath = Annotated[
    AbsolutePath,
    Field(
        description="File of the indices of each client: JSON (.json), or Parquet with the columns client and index."
    ),
]

_Indices = Annotated[list[Annotated[int, Field(ge=-(2**63), lt=2**63)]], FailFast()]
_LISTS, _OBJECT = TypeAdapter(Annotated[list[_Indices], FailFast()]), TypeAdapter(dict[str, _Indices])


def from_file(labels: np.ndarray, num_clients: int, path: IndexPath) -> Shards:
    """Give each client the samples that a file lists; samples that it does not list are left out.

    A JSON file holds a list of lists of indices, one list a client, as SSD (2025) publishes its splits, or an object from
    client to list. A Parquet file has the columns `client` and `index`, one row a sample. Clients with names are numbered
    in ascending order, by value if all names are numbers. Indices count the samples of the training set from 0.

    Raises:
        ValueError: The file cannot be read, or has another number of clients.
    """
    try:
        shards = _read_json(path, num_clients) if path.suffix.lower() == ".json" else _read_parquet(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({reason(error)}): set partition.path to a file of indices") from error
    _check_number(path, len(shards), num_clients)
    return sorted_shards(list(shards.values()))


def _check_number(path: Path, number: int, num_clients: int) -> None:
    if number != num_clients:
        raise ValueError(
            f"{path} has {number} clients, but clients.number is {num_clients}: set clients.number={number}"
        )


def _read_json(path: Path, num_clients: int) -> dict[str, Rows]:
    try:
        tree = plain_json(read_bytes(path))
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read as JSON ({error}): write one list of indices for each client"
        ) from error
    if isinstance(tree, list | dict):
        _check_number(path, len(tree), num_clients)
    try:
        if isinstance(tree, dict):
            groups = _ordered(_OBJECT.validate_python(tree, strict=True))
        else:
            groups = list(enumerate(_LISTS.validate_python(tree, strict=True)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ", ".join(f"{what} {at}" for what, at in zip(("client", "entry"), first["loc"], strict=False))
        raise ValueError(
            f"{path} must hold a list of indices for each client: {where or 'the file'}: {first['msg'].lower()}, got "
            f"{str(first['input'])[:40]!r}"
        ) from error
    return {str(client): np.array(rows, np.int64) for client, rows in groups}


def _read_parquet(path: Path) -> dict[str, Rows]:
    try:
        table = read_table(path, columns=["client", "index"], any_codec=True)
    except OSError:
        raise
    except DAMAGE as error:
        raise ValueError(
            f"{path} is neither .json nor a Parquet file of numbers and strings ({reason(error)}): write the columns client "
            "and index, one row a sample"
        ) from error
    client, index = table["client"], table["index"]
    named = pa.types.is_integer(client.type) or is_string(client.type)
    if not named or not pa.types.is_integer(index.type) or index.null_count or client.null_count:
        raise ValueError(
            f"{path} must hold an integer or a string as client and an integer as index in every row, got {client.type} and "
            f"{index.type}, or empty cells: convert the columns"
        )
    names, numbers = np.unique(client.to_numpy(), return_inverse=True)
    order = np.argsort(numbers, kind="stable")
    shards = np.split(index.to_numpy()[order].astype(np.int64), np.bincount(numbers).cumsum()[:-1])
    return {str(name): rows for name, rows in _ordered(dict(zip(names.tolist(), shards, strict=True)))}


def _ordered(shards: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Sort clients by name, as numbers if all names are numbers."""
    numeric = all(str(client).isdecimal() for client in shards)
    return sorted(shards.items(), key=lambda item: int(item[0]) if numeric else str(item[0]))
