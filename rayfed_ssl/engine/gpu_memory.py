"""GPU memory: what is free, the limit of a process that shares a GPU, and advice when it runs out."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch

CONTEXT_BYTES = 600_000_000
"""CUDA's context and kernels in each process: 300 MB to 1 GB by NAIRR's guide; `rayfed-ssl doctor --measure` measures it."""

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


def shard_bytes(device: torch.device, share: float | None) -> int:
    """Bytes of pixels that this process keeps on a GPU: a quarter of its share, and of what is free; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return min(free, allowance(total, share or 1)) // 4


def release() -> None:
    """Return torch's cached GPU memory; without a GPU in use it does nothing."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def explain(error: BaseException, share: float | None = None) -> str:
    """Describe why a step failed; where memory ran out, also what to do."""
    text, less = str(error), "lower training.batch"
    if "DefaultCPUAllocator: can't allocate memory" in text:
        return f"{text.partition('DefaultCPUAllocator: ')[2]}: {less} or engine.actors"
    if not isinstance(error, torch.OutOfMemoryError):
        return f"{type(error).__name__}: {text}"
    text = text.partition(" Of the allocated memory")[0]
    if not share or share >= 1:
        return f"{text} Set a smaller training.batch, or see with `nvidia-smi` who else uses the GPU"
    larger = even_share(1 / max(1, round(1 / share) - 1))
    return (
        f"{text} Set engine.gpus_per_actor={larger:g} (it is {share:g}), or {less}; `rayfed-ssl doctor --measure` "
        "measures a step"
    )


def even_share(least: float) -> float:
    """Smallest share of a GPU, not below `least`, that divides it evenly: 1, 1/2, 1/3, in ten-thousandths."""
    return int(10_000 / max(1, int(1 / least + 1e-9))) / 10_000
