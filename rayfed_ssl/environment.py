"""Versions and hardware: what bits depend on besides the settings."""

import os
import platform
import re
from contextlib import suppress
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


def cpu_model(file: Path = Path("/proc/cpuinfo")) -> str:
    """Name the processor; where Linux does not say, the architecture."""
    with suppress(OSError):
        if named := re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE):
            return named[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
