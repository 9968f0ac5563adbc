"""Reading files that somebody else may have written: regular files alone, of bounded size, nesting and number of keys.

A run of 10,000 clients, a tenth of them in each of 300 rounds, writes 2 MB of run.json, 2 MB of each round's manifest and
tables of two million rows; recipes and sweeps have a few kB. The limits lie above that, and low enough that any file is
read, or refused, in less than 1 GB and 5 seconds.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from pydantic_core import from_json

MAX_JSON = 16 << 20
"""Bytes of a JSON file."""

MAX_KEYS = 1 << 18
"""Keys of all objects of a JSON file: each can be a mistake, which takes a kB."""

MAX_YAML = 1 << 16
"""Bytes of a YAML file, of which PyYAML reads 50 kB a second."""

MAX_YAML_VALUES, MAX_YAML_DEPTH = 1 << 15, 32
"""Values in a YAML file, where an alias counts as all that it stands for, and levels of lists and mappings in each other."""

MAX_DIGITS = 300

MAX_HEADER = 16 << 20
"""Bytes of the header of a safetensors file."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; an OSError for anything else, such as a pipe, which would wait for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_bytes(path: Path, limit: int = MAX_JSON) -> bytes:
    """Read a regular file; an OSError for one of more than `limit` bytes."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit >> 10} KiB", str(path))
    return content


def plain_json(content: bytes) -> Any:
    """Read JSON as plain data.

    Raises:
        ValueError: It is no JSON, has too many keys, nests deeper than 200 levels, or holds a NUL or half a surrogate pair.
    """
    if content.count(b":") > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    if b"\\u0000" in content:
        raise ValueError("it holds a NUL character")
    return from_json(content)


def read_json(path: Path) -> Any:
    """Read a JSON file as plain data; an OSError or ValueError says why it cannot be read."""
    return plain_json(read_bytes(path))


def check_header(path: Path) -> None:
    """Refuse a safetensors file whose header is too large to be looked at; an OSError says so."""
    with open_regular(path) as file:
        if int.from_bytes(file.read(8), "little") > MAX_HEADER:
            raise OSError(errno.EFBIG, f"its header is larger than {MAX_HEADER >> 10} KiB", str(path))


def check_plain(tree: Any) -> Any:
    """Return data that were YAML; a ValueError for too many or too deep ones, for text with a NUL and for huge integers."""
    count, stack = 0, [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        if count > MAX_YAML_VALUES or depth > MAX_YAML_DEPTH:
            raise ValueError(f"it has more than {MAX_YAML_VALUES} values with its aliases, or {MAX_YAML_DEPTH} levels")
        if isinstance(node, dict):
            stack += [(part, depth + 1) for pair in node.items() for part in pair]
        elif isinstance(node, list | tuple):
            stack += [(part, depth + 1) for part in node]
        elif isinstance(node, str) and b"\0" in node.encode():  # half a surrogate pair is a UnicodeEncodeError
            raise ValueError("it holds a NUL character")
        elif isinstance(node, int) and abs(node) >= 10**MAX_DIGITS:
            raise ValueError(f"it holds an integer of more than {MAX_DIGITS} digits")
    return tree
