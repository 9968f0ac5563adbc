"""Training steps and views on their own, eager and captured."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.meters import flops_per_pair, peak_flops, peak_memory, start_memory
from benchmarks.gpu.setting import STEP_BATCHES, Outcome, Row, Setting
from rayfed_ssl.capacity.utilization import Utilization
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.training.captured import Captures, DeviceRunner
from rayfed_ssl.training.graphs import CudaGraphs, own_stream
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import digest

OBJECTIVES = ("simclr", "byol", "moco")
EPOCHS = 5
"""Epochs of a measured training; the first, in which kernels are chosen and captured, and the last do not count."""

STEPS = {16: 100, 128: 40, 1024: 20}
DRY_STEPS = 6
VIEW_STEPS = 500
DRY_VIEW_STEPS = 20


class Reruns:
    """Stands for captures on the CPU: a replay runs the work once more."""

    def pool(self) -> None:
        """Need no memory of its own."""

    def capture(self, run: Callable[[], None], pool: None) -> Callable[[], None]:
        """Give the work itself."""
        return run

    @contextmanager
    def waits(self) -> Iterator[list[str]]:
        """Find none."""
        yield []

    def is_full(self) -> bool:
        """Have memory for all."""
        return False


def captures_on(device: torch.device) -> Captures:
    """Choose how work is captured."""
    return Captures(CudaGraphs(device) if device.type == "cuda" else Reruns())


@dataclass(frozen=True)
class TimedShard(Shard):
    """A shard that notes when its epochs start; the epoch before has then been waited for."""

    starts: list[float] = field(default_factory=list)
    utilization: Utilization = field(default_factory=Utilization)

    def batches(self, positions: Any) -> Any:
        """Gather batches, as any shard does."""
        if len(self.starts) == 1:
            self.utilization.start()
        self.starts.append(time.perf_counter())
        return super().batches(positions)


def steps(setting: Setting, objective: str, batch: int, *, deterministic: bool = True) -> Outcome:
    """Measure training steps in both number formats, eager and captured."""
    narrow = ["objective.hidden=40"] if setting.dry_run and objective == "byol" else []
    rows: list[Row] = []
    for precision in ("fp32", "bf16"):
        config = setting.config(
            "flesd-table1-cifar10",
            *("method=fedavg", "public=null", f"objective={objective}", "rounds=1", "training.drop_last=true"),
            *(f"training.total_epochs={EPOCHS}", f"training.batch={setting.size(batch, STEP_BATCHES[batch])}"),
            *(f"engine.precision={precision}", f"engine.deterministic={str(deterministic).lower()}"),
            *narrow,
        )
        federation = Federation.open(config)
        number = config.training.batch * setting.size(STEPS[batch], DRY_STEPS)
        eager, captured = (_train(federation, number, capture) for capture in (False, True))
        captured.row["equal"] = captured.digest == eager.digest
        name = f"{objective}, batch {config.training.batch}, {precision}"
        suffix = "" if deterministic else ", not deterministic"
        format = "tf32" if precision == "fp32" and not deterministic else precision
        for mode, measured in (("eager", eager), ("captured", captured)):
            rate = measured.row["rate"]
            peak = peak_flops(format)
            share = None if peak is None else rate * eager.flops / peak
            about = {"case": f"{name}, {mode}{suffix}", "unit": "pairs/s", "flops": eager.flops, "share": share}
            rows.append(about | measured.row)
    return Outcome(rows)


@dataclass(frozen=True)
class _Measured:
    row: Row
    digest: str
    flops: float


def _train(federation: Federation, num_samples: int, capture: bool) -> _Measured:
    """Train from the initial weights; everything but the way in which steps run is equal."""
    captures = captures_on(federation.task.device) if capture else None
    task = replace(federation.task, captures=captures)
    start_memory()
    images = federation.dataset.train.images
    shard = TimedShard.of(images, torch.arange(num_samples).numpy() % len(images), task.device)
    assert isinstance(shard, TimedShard)
    generator = torch.Generator().manual_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weights, metrics = task.train(task.initial_weights(), task.encoder, shard, generator, round=1)
    seconds = median(later - start for start, later in zip(shard.starts[1:-1], shard.starts[2:], strict=True))
    num_steps = metrics["steps"] / EPOCHS
    notes = [str(entry.message) for entry in caught if "captured" in str(entry.message)]
    if captures:
        notes.append(f"captured kinds of step: {captures.num_captured}")
    row: Row = {
        "rate": num_steps * task.batch / seconds,
        "milliseconds": 1e3 * seconds / num_steps,
        "memory": peak_memory(),
        "utilization": shard.utilization.stop(),
        "note": "; ".join(notes),
    }
    flops = 0.0 if capture else flops_per_pair(federation.task, shard)
    return _Measured(row, digest({**weights, "loss": metrics["loss"]}), flops)


def views(setting: Setting) -> Outcome:
    """Measure the two views of batches, without a model."""
    config = setting.config("flesd-table1-cifar10", "method=fedavg", "public=null")
    federation = Federation.open(config)
    rows: list[Row] = []
    for full, dry in STEP_BATCHES.items():
        batch = setting.size(full, dry)
        number = setting.size(VIEW_STEPS, DRY_VIEW_STEPS)
        images = torch.from_numpy(federation.dataset.train.images[:batch].copy()).to(federation.task.device)
        eager, captured = (_draw_views(federation.task, images, number, capture) for capture in (False, True))
        captured[0]["equal"] = torch.equal(eager[1], captured[1])
        for mode, (row, _) in (("eager", eager), ("captured", captured)):
            rows.append({"case": f"batch {batch}, {mode}", "unit": "views/s", **row})
    return Outcome(rows)


def _draw_views(task: Task, images: Tensor, number: int, capture: bool) -> tuple[Row, Tensor]:
    generator = torch.Generator().manual_seed(3)
    held = torch.zeros(2 * len(images), task.channels, task.size, task.size, device=task.device)

    def step(batch: Batch) -> None:
        held.copy_(task.stacked_views(batch.images, generator))

    start_memory()
    batch = Batch(images, torch.arange(len(images), device=task.device), None, 0)
    warm_up = 5
    captures = captures_on(task.device) if capture else None
    runner = DeviceRunner(step, task.device, captures)
    runner.expect(warm_up + number)
    utilization = Utilization()
    with own_stream(task.device):
        for _ in range(warm_up):
            runner(batch)
        held.sum().item()  # waits for the device
        utilization.start()
        start = time.perf_counter()
        for _ in range(number):
            runner(batch)
        held.sum().item()
        seconds = (time.perf_counter() - start) / number
    row: Row = {
        "rate": len(held) / seconds,
        "milliseconds": 1e3 * seconds,
        "memory": peak_memory(),
        "utilization": utilization.stop(),
        "note": f"captured kinds of step: {captures.num_captured}" if captures else "",
    }
    return row, held.cpu()
