"""GPU memory: what is free, the limit of a process that shares a GPU, and advice when it runs out."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch

CONTEXT_BYTES = 600_000_000
"""What a process holds of a GPU beside torch's tensors: CUDA's context and kernels.

NAIRR's guide for GPU estimates says 300 MB to 1 GB; `rayfed-ssl doctor --measure` measures it.
"""

QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.free", "--format=csv,noheader,nounits")
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


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
        rows = list(takewhile(bool, (_named(rows, name.strip()) for name in visible.split(","))))
    return tuple(
        Gpu(place, name, int(total) * 2**20, int(free) * 2**20) for place, (_, _, name, total, free) in enumerate(rows)
    )


def _named(rows: Sequence[list[str]], name: str) -> list[str]:
    """Find a GPU; CUDA takes the names up to the first that it does not know."""
    return next((row for row in rows if name and (row[0] == name or row[1].startswith(name))), [])


def allowance(total: int, share: float, context: int = CONTEXT_BYTES) -> int:
    """Bytes of tensors that a process may hold with a `share` below 1 of a GPU of `total` bytes.

    Every process holds a `context` beside its tensors, also the server's, which reserves no share.
    """
    return max(0, int(share * (total - context)) - context)


def limit_process(share: float | None) -> None:
    """Limit this process to its share of a GPU; None, 0 and whole GPUs are not limited."""
    if share and share < 1 and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(allowance(total, share) / total)


def release() -> None:
    """Return torch's cached GPU memory; without a GPU in use it does nothing."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def explain(error: BaseException, share: float | None = None) -> str:
    """Describe why a step failed; where memory ran out, also what was requested, the limit and what to do."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return _gpu_ran_out(text, share)
    if "DefaultCPUAllocator: can't allocate memory" in text:
        wanted = _first(r"tried to allocate (\d+ bytes)", text)
        return f"out of memory: it asked for {_amount(wanted)} more: lower engine.actors or training.batch"
    return f"{type(error).__name__}: {text}"


def _gpu_ran_out(text: str, share: float | None) -> str:
    """Read torch's numbers: "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ... this process has ..."."""
    wanted = _first(r"[Tt]ried to allocate ([\d.]+ \w+)", text)
    held = _first(r"this process has ([\d.]+ \w+) memory in use", text)
    allowed = _first(r"([\d.]+ \w+) allowed", text)
    limit = allowed or _first(r"total capacity of ([\d.]+ \w+)", text)
    got = f"with {_amount(held)} in use of {_amount(limit)}{' that it may take' if allowed else ''}"
    return f"out of GPU memory: it asked for {_amount(wanted)} more {got}: {_advice(wanted + held, limit, share)}"


def _advice(needed: int, limit: int, share: float | None) -> str:
    less = "lower training.batch"
    if not share or share >= 1:
        return f"{less}, or see with `nvidia-smi` who else uses the GPU"
    larger = even_share(min(1.0, share * max(needed / limit if limit else 2.0, 1.0)))
    if larger <= share:
        larger = even_share(1 / max(1, round(1 / share) - 1))
    return f"set engine.gpus_per_actor={larger:g} (it is {share:g}), or {less}; `rayfed-ssl doctor --measure` says what fits"


def even_share(least: float) -> float:
    """Smallest share of a GPU, not below `least`, that divides it evenly: 1, 1/2, 1/3, in ten-thousandths."""
    return int(10_000 / max(1, int(1 / least + 1e-9))) / 10_000


def _first(pattern: str, text: str) -> int:
    """Find an amount in a text, in bytes; 0 if there is none."""
    found = re.search(pattern, text)
    if found is None:
        return 0
    number, unit = found[1].split()
    return int(float(number) * UNITS.get(unit, 1))


def _amount(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
