"""Digests of fixed computations: processes whose digests differ compute other bits, whatever the settings of a run."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from rayfed_ssl.config.sections import Engine
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.models.precision import Precision, autocast
from rayfed_ssl.training.optimizers import Adam
from rayfed_ssl.training.task import Task

Operation = Callable[..., Tensor]
Operations = Mapping[str, tuple[Operation, tuple[tuple[int, ...], ...]]]

DIGESTED = 1 << 19
"""How many numbers of a tensor a digest covers: a kernel computes all alike, and gradients of weights sum over samples."""


def _batch_norm(images: Tensor) -> Tensor:
    return F.batch_norm(images, None, None, training=True)


def _attend(*inputs: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*(tensor.unflatten(0, (16, 3)) for tensor in inputs))


OPERATIONS: Operations = {
    "convolution": (partial(F.conv2d, padding=1), ((32, 24, 16, 16), (40, 24, 3, 3))),
    "matrix product": (torch.matmul, ((96, 200), (200, 72))),
    "softmax": (partial(F.log_softmax, dim=1), ((64, 301),)),
    "batch norm": (_batch_norm, ((32, 24, 9, 9),)),
}
"""Operations that training consists of, and the shapes of their inputs."""

LARGE: Operations = {
    "large convolution": (partial(F.conv2d, padding=1), ((128, 64, 16, 16), (64, 64, 3, 3))),
    "strided convolution": (partial(F.conv2d, stride=2), ((128, 64, 16, 16), (128, 64, 1, 1))),
    "large matrix product": (torch.matmul, ((256, 2048), (2048, 128))),
    "large batch norm": (_batch_norm, ((128, 64, 16, 16),)),
    "attention": (_attend, ((48, 65, 64),) * 3),
    "sum": (torch.sum, ((1 << 20,),)),
}
"""For GPUs, whose libraries divide a long sum by its size and by the number of multiprocessors."""


@dataclass(frozen=True)
class Arithmetic:
    """How a process computes the steps of a run, which decides their bits.

    Attributes:
        device: As torch names it.
        precision: What was chosen for the device.
        fingerprint: Digests by operation; none where `engine.deterministic=false` lets the device choose kernels by time.
    """

    device: str
    precision: Precision
    fingerprint: dict[str, str]

    @classmethod
    def of(cls, task: Task, engine: Engine) -> Self:
        """Take the fingerprint of this process, with the threads of a client's step."""
        with compute_threads(engine.threads):
            repeats = engine.deterministic or task.device.type == "cpu"
            digests = fingerprint(task.device, task.precision) if repeats else {}
        return cls(str(task.device), task.precision, digests)


def fingerprint(device: torch.device, precision: Precision) -> dict[str, str]:
    """Digest the results and gradients of the operations that training consists of, on fixed inputs.

    It takes a tenth of a second on a CPU. Digests are the first 16 hexadecimal digits of SHA-256, by operation.
    """
    digests = {}
    for name, (operation, shapes) in {**OPERATIONS, **({} if device.type == "cpu" else LARGE)}.items():
        inputs = [_values(shape, device).requires_grad_() for shape in shapes]
        if precision.channels_last:
            inputs = [_channels_last(tensor) for tensor in inputs]
        with autocast(precision, device):
            output = operation(*inputs).float()
        gradients = torch.autograd.grad((output * _values(output.shape, device)).sum(), inputs)
        digests[name] = _digest([output, *gradients])
    digests["Adam"] = _digest([_descend(device)])
    digests["normal draws"] = _digest([torch.randn(4099, generator=torch.Generator().manual_seed(0))])
    return digests


def different(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Name the operations whose bits differ; those that only one of two fingerprints has do not count."""
    return [name for name, digest in one.items() if other.get(name, digest) != digest]


def _values(shape: Iterable[int], device: torch.device) -> Tensor:
    """Fill a shape with floats in (-1, 1) that need no generator; the CPU divides, as a GPU may round otherwise."""
    shape = tuple(shape)
    period = ((torch.arange(2003) * 7919 % 2003 - 1001) / 1002).to(device)
    return period.repeat(prod(shape) // 2003 + 1)[: prod(shape)].reshape(shape)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _descend(device: torch.device) -> Tensor:
    parameter = Parameter(_values((1001,), device))
    descent = Adam().over([parameter])
    for scale in (1.0, 0.3, 0.1):
        descent.step({parameter: _values((1001,), device) * scale})
    return parameter.detach()


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().flatten()[:DIGESTED].cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
