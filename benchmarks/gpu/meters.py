"""What is measured beside time: FLOPs, the share of the GPU's peak, and its memory."""

import gc
from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models.precision import choose_precision
from rayfed_ssl.training.task import Task

PEAK_TERAFLOPS = {
    "H200": {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5},
    "H100 80GB HBM3": {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5},
    "A100": {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0},
}
"""NVIDIA's data sheets, dense, by a part of the GPU's name; other GPUs get no share."""

COUNTED = 4


def flops_per_pair(task: Task, shard: Shard) -> float:
    """Count a training step's FLOPs a pair of views: convolutions and matrix products, a multiply-add as two.

    One step of four samples is counted on the CPU, forward and backward. The part of a contrastive loss that grows with
    the square of the batch is counted for four samples too.
    """
    cpu = torch.device("cpu")
    small = replace(task, device=cpu, precision=choose_precision(cpu, "fp32"), batch=COUNTED, epochs=1)
    images = Shard(shard.images[:COUNTED].cpu(), torch.arange(COUNTED))
    with FlopCounterMode(display=False) as counter:
        small.train(small.initial_weights(), small.encoder, images, torch.Generator().manual_seed(0), round=1)
    return float(counter.get_total_flops()) / COUNTED


def peak_flops(format: str) -> float | None:
    """Look up the peak FLOP/s of the GPU in "fp32", "tf32" or "bf16"; None if it is not known, or there is none."""
    if not torch.cuda.is_initialized():
        return None
    name = torch.cuda.get_device_name()
    return next((1e12 * peaks[format] for key, peaks in PEAK_TERAFLOPS.items() if key in name), None)


def start_memory() -> None:
    """Forget the peak of the GPU's memory so far."""
    if torch.cuda.is_initialized():
        gc.collect()  # captured steps and their memory are in reference cycles
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> int | None:
    """Bytes of tensors on the GPU at most since `start_memory`; None without a GPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
