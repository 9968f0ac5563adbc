"""A parameter on its way down: its values and moments as torch's fused kernels want them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter


@dataclass
class Track:
    """A parameter on its way.

    Attributes:
        parameter: The parameter.
        values: Its values, as `_flat` sees them if they are not contiguous.
        moments: Of the gradients, laid out as the values are.
        age: Steps done, float32 scalar on the device.
    """

    parameter: Parameter
    values: Tensor
    moments: tuple[Tensor, ...]
    age: Tensor

    @classmethod
    def of(cls, parameter: Parameter, moments: Callable[[Tensor], tuple[Tensor, ...]]) -> "Track":
        """Start a parameter's way."""
        values = parameter.detach() if parameter.is_contiguous() else _flat(parameter)
        return cls(parameter, values, moments(values), torch.zeros((), device=values.device))

    def laid_out(self, gradient: Tensor) -> Tensor:
        """Lay a gradient out as the values are."""
        shape, stride = self.values.shape, self.values.stride()
        if gradient.stride() == stride:
            return gradient
        strides = zip(gradient.shape, gradient.stride(), self.parameter.stride(), strict=True)
        if any(size > 1 and ours != theirs for size, ours, theirs in strides):
            gradient = torch.empty_like(self.parameter).copy_(gradient)
        return gradient.as_strided(shape, stride)


def _flat(tensor: Tensor) -> Tensor:
    """View a tensor as one row in the order of its memory.

    torch's kernels for the CPU copy every gradient that is not contiguous, as none is under channels_last, and then do
    not look at the copy.
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,))


Moving = tuple[Track, Tensor]


def by_dimension(tracks: list[Track], gradients: list[Tensor]) -> tuple[list[Moving], list[Moving]]:
    """Divide parameters with their gradients into matrices and kernels, and biases, scales and shifts."""
    pairs = list(zip(tracks, gradients, strict=True))
    layers, vectors = ([pair for pair in pairs if (pair[0].parameter.ndim > 1) is wide] for wide in (True, False))
    return layers, vectors
