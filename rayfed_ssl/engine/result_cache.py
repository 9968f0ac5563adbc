"""Results that take long to compute, in JSON files that are named after everything they depend on.

A version of this package counts as one code. A file that is missing or damaged is as none, and one that cannot be written
is done without.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from rayfed_ssl.foreign.reading import read_bytes
from rayfed_ssl.machine.environment import cpu_model, environment
from rayfed_ssl.storage.filesystem import write_atomically

Result = TypeVar("Result")


class CachedResult(Generic[Result]):
    """A result in a directory.

    Args:
        directory: Where the file lies.
        facts: What the result depends on, besides this machine and its software.
        kind: The result's type, as pydantic validates it.
    """

    def __init__(self, directory: Path, facts: Mapping[str, Any], kind: type[Result]) -> None:
        text = json.dumps({**facts, "processor": cpu_model(), **environment()}, sort_keys=True, default=str)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:32]
        self._file = directory / f"{self.key}.json"
        self._type = TypeAdapter(kind)

    def read(self) -> Result | None:
        """Read the result; None if it is not there."""
        with suppress(OSError, ValueError):
            return self._type.validate_json(read_bytes(self._file), strict=True)
        return None

    def write(self, result: Result) -> None:
        """Keep the result for later runs."""
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, self._type.dump_json(result))
