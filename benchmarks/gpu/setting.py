"""Where and on what a call measures: device, sizes, data, and the configurations that follow from them."""

import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.synthetic import write
from rayfed_ssl.config.schema import Config

Row = dict[str, Any]
"""A line of the table: a case and the values of `table.COLUMNS` that it has."""

STEP_BATCHES = {16: 4, 128: 6, 1024: 10}
"""Batch sizes of measured steps, and what they are in a dry run."""


@dataclass(frozen=True)
class Outcome:
    """What a unit of a piece measured; one that is not finished continues in the next call."""

    rows: list[Row]
    finished: bool = True


@dataclass(frozen=True)
class Setting:
    """What the command line asks for.

    Attributes:
        out: Directory of results, runs and logs.
        data: Directory of CIFAR-10, as torchvision or Hugging Face keep it; None for synthetic images.
        dry_run: Whether everything runs on the CPU at about a hundredth of the size.
        minutes: How long a call may take.
    """

    out: Path
    data: Path | None
    dry_run: bool
    minutes: float

    @property
    def device(self) -> str:
        """The device's name in a configuration."""
        return "cpu" if self.dry_run else "cuda"

    @property
    def encoder(self) -> str:
        """The encoder that stands for all."""
        return "cnn" if self.dry_run else "resnet18"

    def size(self, full: int, dry: int) -> int:
        """Choose a size."""
        return dry if self.dry_run else full

    def prepare(self) -> None:
        """Make the synthetic images, unless they are there."""
        self.out.mkdir(parents=True, exist_ok=True)
        if self.data is None and not self._store.exists():
            write(self._store, self.size(50_000, 500), self.size(10_000, 100))

    @property
    def _store(self) -> Path:
        return self.out / "synthetic"

    @property
    def overrides(self) -> list[str]:
        """This device and data as settings of a configuration."""
        if self.data is None:
            data = ["data.name=store", f"data.path={self._store}"]
        elif (self.data / "cifar-10-batches-py").is_dir():
            data = ["data.name=cifar10", f"data.path={self.data}"]
        else:
            data = ["data.name=parquet", f"data.path={self.data}"]
        if self.dry_run:
            data += ["data.train_limit=500", "data.test_limit=100"]
        return [*data, "engine.executor=local", f"engine.device={self.device}", "engine.trackers=[]"]

    def config(self, recipe: str, *overrides: str) -> Config:
        """Load a recipe for this device and data."""
        usual = ["training.views=flesd-cifar", f"model.encoder={self.encoder}"]
        return Config.load(recipe, *self.overrides, *usual, *overrides)

    @cached_property
    def machine(self) -> dict[str, Any]:
        """Describe what results of one file must have in common."""
        properties = None if self.dry_run else torch.cuda.get_device_properties(0)
        return {
            "dry run": self.dry_run,
            "device": platform.processor() or platform.machine() if properties is None else properties.name,
            "memory GB": None if properties is None else round(properties.total_memory / 1e9, 1),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "CUDA": None if self.dry_run else torch.version.cuda,
            "cuDNN": None if self.dry_run else torch.backends.cudnn.version(),
            "data": "synthetic" if self.data is None else str(self.data),
        }
