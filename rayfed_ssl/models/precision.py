"""Number format and memory layout of the forward pass, chosen for the device.

bf16 means autocast: weights, gradients and optimizer stay float32, convolutions and matrix products run in bfloat16.
Chosen once per run and recorded with it, because another choice gives other bits.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import nn

from rayfed_ssl.machine.processor import cpu_flags, is_portable

Dtype = Literal["fp32", "bf16"]
Module = TypeVar("Module", bound=nn.Module)

NATIVE_BF16 = frozenset({"amx_bf16", "avx512_bf16"})
"""Instruction sets that multiply bfloat16; without one it is emulated, more slowly than float32."""


@dataclass(frozen=True)
class Precision:
    """How a forward pass is computed.

    Attributes:
        dtype: "fp32", or "bf16" for autocast.
        channels_last: Whether images and feature maps lie in memory as [N, H, W, C]; shapes stay [N, C, H, W].
        compile: Whether the model goes through torch.compile, which takes up to a minute once per process.
        reason: Why this was chosen, for the record.
    """

    dtype: Dtype = "fp32"
    channels_last: bool = False
    compile: bool = False
    reason: str = "asked for"


def choose_precision(
    device: torch.device | str, requested: str = "auto", *, channels_last: bool | None = None, compile: bool = False
) -> Precision:
    """Choose the precision for "auto", the fastest that the device computes natively, or for a dtype.

    Without a given layout it is channels_last on CPUs, where all encoders but AlexNet in fp32 gained from it, and for bf16
    on GPUs.
    """
    device = torch.device(device)
    native, why = _native_bf16(device)
    dtype: Dtype
    if requested == "auto":
        dtype, reason = ("bf16" if native else "fp32"), f"auto: {why}"
    else:
        dtype = "bf16" if requested == "bf16" else "fp32"
        reason = f"asked for, emulated: {why}" if dtype == "bf16" and not native else "asked for"
    faster_last = device.type == "cpu" or (device.type == "cuda" and dtype == "bf16")
    return Precision(dtype, faster_last if channels_last is None else channels_last, compile, reason)


def prepare(model: Module, precision: Precision, device: torch.device | str) -> Module:
    """Move a model to the device and into the memory layout, in place, and compile it if asked.

    Feature maps follow the layout of the convolutions' weights, so images may come in either.
    """
    model.to(device)
    if precision.channels_last:
        model.to(memory_format=torch.channels_last)
    if precision.compile:
        model.compile()
    return model


def autocast(precision: Precision, device: torch.device | str) -> AbstractContextManager[None]:
    """Enter the number format. For fp32 it switches an outer autocast off, on devices that have one."""
    if not torch.amp.is_autocast_available(torch.device(device).type):
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=precision.dtype == "bf16")


def _native_bf16(device: torch.device) -> tuple[bool, str]:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return major >= 8, f"CUDA capability {major}.{minor}, bfloat16 needs 8.0"
    if device.type == "cpu":
        if is_portable():
            return False, "kernels are limited to AVX2"
        native = sorted(NATIVE_BF16 & cpu_flags())
        return bool(native), f"CPU has {', '.join(native)}" if native else "CPU multiplies no bfloat16"
    return False, f"bfloat16 was not tried on {device.type}"
