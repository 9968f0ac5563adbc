"""Digests of fixed computations: processes whose digests differ compute other bits, whatever the settings of a run."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from rayfed_ssl.models.precision import Precision, autocast
from rayfed_ssl.training.optimizers import Adam

Operation = Callable[..., Tensor]


def fingerprint(device: torch.device, precision: Precision) -> dict[str, str]:
    """Digest the results and gradients of the operations that training consists of, on fixed inputs.

    It takes a tenth of a second. Digests are the first 16 hexadecimal digits of SHA-256, by operation.
    """
    operations: Mapping[str, tuple[Operation, tuple[tuple[int, ...], ...]]] = {
        "convolution": (lambda x, w: F.conv2d(x, w, padding=1), ((32, 24, 16, 16), (40, 24, 3, 3))),
        "matrix product": (torch.matmul, ((96, 200), (200, 72))),
        "softmax": (lambda x: F.log_softmax(x, dim=1), ((64, 301),)),
        "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), ((32, 24, 9, 9),)),
    }
    digests = {}
    for name, (operation, shapes) in operations.items():
        inputs = [_values(shape).to(device).requires_grad_() for shape in shapes]
        if precision.channels_last:
            inputs = [_channels_last(tensor) for tensor in inputs]
        with autocast(precision, device):
            output = operation(*inputs).float()
        gradients = torch.autograd.grad((output * _values(output.shape).to(device)).sum(), inputs)
        digests[name] = _digest([output, *gradients])
    digests["Adam"] = _digest([_descend(device)])
    digests["normal draws"] = _digest([torch.randn(4099, generator=torch.Generator().manual_seed(0))])
    return digests


def different(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Name the operations whose bits differ; those that only one of two fingerprints has do not count."""
    return [name for name, digest in one.items() if other.get(name, digest) != digest]


def _values(shape: Iterable[int]) -> Tensor:
    """Fill a shape with floats in (-1, 1) that need no generator; division rounds alike everywhere."""
    shape = tuple(shape)
    return ((torch.arange(prod(shape)) * 7919 % 2003 - 1001) / 1002).reshape(shape)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _descend(device: torch.device) -> Tensor:
    parameter = Parameter(_values((1001,)).to(device))
    descent = Adam().over([parameter])
    for scale in (1.0, 0.3, 0.1):
        descent.step({parameter: _values((1001,)).to(device) * scale})
    return parameter.detach()


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
