"""How busy a GPU is: nvidia-smi's utilization, the part of the time in which any kernel runs, of all processes."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from statistics import fmean

import torch

BUSY_SECONDS = 5.0
"""How long work is repeated while the GPU is watched, of which nvidia-smi takes about one to start."""


def busy_share(work: Callable[[], object]) -> float | None:
    """Repeat work, and measure the part of the time in which it keeps the GPU busy, in (0, 1]; None if nothing tells."""
    utilization, end = Utilization(), time.monotonic() + BUSY_SECONDS
    utilization.start()
    try:
        while time.monotonic() < end:
            work()
    finally:
        percent = utilization.stop()
    return max(percent, 1.0) / 100 if percent is not None else None


class Utilization:
    """Samples the GPU's utilization with nvidia-smi in a process of its own; None where that is missing or cannot tell."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def start(self) -> None:
        """Begin to sample every 100 ms."""
        if not torch.cuda.is_initialized() or shutil.which("nvidia-smi") is None:
            return
        gpu = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        query = ["nvidia-smi", "-i", gpu, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
        self._process = subprocess.Popen(query, stdout=self._file, stderr=subprocess.DEVNULL, text=True)

    def stop(self) -> float | None:
        """Give the mean in percent."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._file.seek(0)
        return mean_of(self._file.read())


def mean_of(answer: str) -> float | None:
    """Average nvidia-smi's lines; None if no line is a number."""
    values = [float(line) for line in answer.split() if line.isdigit()]
    return fmean(values) if values else None
