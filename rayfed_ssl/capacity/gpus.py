"""The GPUs of this machine and their free memory, as nvidia-smi knows them."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Gpu:
    """A GPU and its memory in bytes; `index` counts those that this process may use."""

    index: int
    name: str
    total: int
    free: int

    @property
    def is_crowded(self) -> bool:
        """Whether some process holds more of it than the driver and a screen do."""
        return self.free < 0.9 * self.total


def gpus() -> tuple[Gpu, ...]:
    """List the GPUs that this process may use, without taking any of their memory, as asking torch would.

    () also where nvidia-smi is missing or does not know, as for slices of a GPU.
    """
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(answer, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(answer: str, visible: str | None) -> tuple[Gpu, ...]:
    """Read nvidia-smi's lines (index, uuid, name, total and free MiB); `visible` is CUDA_VISIBLE_DEVICES."""
    rows = [[word.strip() for word in line.split(",")] for line in answer.splitlines()]
    rows = [row for row in rows if len(row) == 5 and row[3].isdigit() and row[4].isdigit()]
    if visible is not None:
        # CUDA takes the names up to the first that it does not know.
        matches = (next((row for row in rows if _is_named(row, name.strip())), None) for name in visible.split(","))
        rows = [row for row in takewhile(bool, matches) if row]
    return tuple(
        Gpu(place, name, int(total) * 2**20, int(free) * 2**20) for place, (_, _, name, total, free) in enumerate(rows)
    )


def _is_named(row: Sequence[str], name: str) -> bool:
    return bool(name) and (row[0] == name or row[1].startswith(name))
