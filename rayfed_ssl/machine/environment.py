"""Versions, hardware and threads: what bits depend on besides the settings."""

import ctypes
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Name the versions and the hardware that bits depend on."""
    packages = ("rayfed-ssl", "ray", "torch", "torchvision", "numpy", "pyarrow", "optuna", "scikit-learn")
    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "hardware": {
            "machine": platform.machine(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
    }


LARGE = 1 << 30
"""Bytes up to which freed memory stays with the process, as in Ray's actors (`actors.RAY_ENVIRONMENT`)."""


def keep_memory() -> None:
    """Let glibc reuse the memory of large tensors, which it gives back and faults in anew for each; nothing elsewhere."""
    if platform.system() == "Linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, LARGE)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, LARGE)  # M_TRIM_THRESHOLD


def cpu_model(file: Path = Path("/proc/cpuinfo")) -> str:
    """Name the processor; where Linux does not say, the architecture."""
    with suppress(OSError):
        if named := re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE):
            return named[1].strip()
    return platform.processor() or platform.machine()


@contextmanager
def compute_threads(number: int) -> Iterator[None]:
    """Let torch compute with this many threads: bits of reductions depend on the number, so a run fixes it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
