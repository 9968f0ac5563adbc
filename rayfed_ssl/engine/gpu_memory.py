"""GPU memory: the limit of a process that shares a GPU, and advice when it runs out."""

import torch

CONTEXT_BYTES = 600_000_000
"""CUDA's context and kernels in each process: 300 MB to 1 GB by NAIRR's guide."""


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
