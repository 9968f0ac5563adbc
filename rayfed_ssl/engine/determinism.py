"""Equal bits on CUDA: the settings of torch that give a computation the same result each time on one kind of GPU.

Different kinds of GPU, and different versions of CUDA's libraries, still give different bits: their kernels sum in
different orders.
"""

import os

import torch


def set_up(device: torch.device, deterministic: bool) -> None:
    """Set this process up for a device; on others than CUDA there is nothing to set.

    Args:
        device: Where the process computes.
        deterministic: Whether to take deterministic kernels and full float32, or the fastest kernels and TF32 convolutions.
    """
    if device.type != "cuda":
        return
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs a write each
    torch.backends.cudnn.benchmark = not deterministic
    # Convolutions alone: losses multiply unit vectors by a temperature's inverse, which TF32's three digits do not survive.
    # Through the older of two interfaces: after the newer one torch.compile, which reads the older one, fails.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = not deterministic
