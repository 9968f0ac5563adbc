"""Optimizers: settings, and the descent that they make afresh for each local training.

Steps have the bits of torch.optim with fused=True, whose kernels they call. torch.optim itself imports TorchDynamo,
Inductor and SymPy at its first use, which costs every process that trains more than `import torch` does.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import Parameter

BETAS = (0.9, 0.999)
EPSILON = 1e-8
"""Adam's constants are torch's defaults."""


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """Settings that all optimizers have; the defaults are FLESD's local step (section 5.1, weight decay from its code).

    Attributes:
        lr: Learning rate, constant within a round.
        schedule: Over the rounds: "constant", or "cosine" from lr in the first round towards 0 (EasyFL's FedU and FedEMA).
        weight_decay: L2 factor.
    """

    lr: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 1e-6

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"the learning rate must be above 0, got {self.lr}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be at least 0, got {self.weight_decay}")

    def at(self, round: int, rounds: int) -> Self:
        """Set the learning rate of a round: lr (1 + cos(pi (r - 1) / R)) / 2 under "cosine", for r from 1 to R."""
        if self.schedule == "constant":
            return self
        return replace(self, lr=self.lr * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2)

    def over(self, parameters: Iterable[Parameter]) -> "Descent":
        """Make a descent with empty moments."""
        return Descent(self, parameters)

    @abstractmethod
    def moments(self, values: Tensor) -> tuple[Tensor, ...]:
        """Make a parameter's moments before its first step."""

    @abstractmethod
    def move(self, lr: float, tracks: "list[Track]") -> None:
        """Move parameters by one step; each track's age counts it already."""


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
    def of(cls, parameter: Parameter, settings: Optimizer) -> "Track":
        """Start a parameter's way."""
        values = parameter.detach() if parameter.is_contiguous() else _flat(parameter)
        return cls(parameter, values, settings.moments(values), torch.zeros((), device=values.device))

    @property
    def gradient(self) -> Tensor:
        """The gradient, laid out as the values are: autograd lays it out in memory as it finds its parameter."""
        gradient = self.parameter.grad
        assert gradient is not None, "a track is moved where there is a gradient"
        shape, stride = self.values.shape, self.values.stride()
        return gradient if gradient.stride() == stride else gradient.as_strided(shape, stride)


def _flat(tensor: Tensor) -> Tensor:
    """View a tensor as one row in the order of its memory.

    torch's kernels for the CPU copy every gradient that is not contiguous, as none is under channels_last, and then do
    not look at the copy.
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,))


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent.

    Attributes:
        momentum: Share of the previous step, not Nesterov; 0 for none.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {self.momentum}")

    def moments(self, values: Tensor) -> tuple[Tensor, ...]:
        """Make a momentum of zeros, so that the first one is the first gradient."""
        return (torch.zeros_like(values),) if self.momentum else ()

    def move(self, lr: float, tracks: list[Track]) -> None:
        """Move parameters by SGD."""
        torch._fused_sgd_(
            [track.values for track in tracks],
            [track.gradient for track in tracks],
            [moment for track in tracks for moment in track.moments],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam with L2 weight decay, as torch.optim.Adam."""

    def moments(self, values: Tensor) -> tuple[Tensor, ...]:
        """Make first and second moments of zeros."""
        return torch.zeros_like(values), torch.zeros_like(values)

    def move(self, lr: float, tracks: list[Track]) -> None:
        """Move parameters by Adam."""
        torch._fused_adam_(
            [track.values for track in tracks],
            [track.gradient for track in tracks],
            [track.moments[0] for track in tracks],
            [track.moments[1] for track in tracks],
            [],
            [track.age for track in tracks],
            lr=lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )


class Descent:
    """Parameters on their way down; a parameter without a gradient stays where it is and ages with its first one.

    Args:
        settings: How steps are made; only its round's rate counts, not its schedule.
        parameters: float32, all on one device.

    Attributes:
        lr: Learning rate of the next step.
    """

    def __init__(self, settings: Optimizer, parameters: Iterable[Parameter]) -> None:
        self.lr = settings.lr
        self._settings = settings
        self._tracks: dict[Parameter, Track | None] = dict.fromkeys(parameters)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self._tracks:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient; fused kernels do so in one pass over memory."""
        moving = []
        for parameter, known in self._tracks.items():
            if parameter.grad is not None:
                track = self._tracks[parameter] = known or Track.of(parameter, self._settings)
                moving.append(track)
        if moving:
            torch._foreach_add_([track.age for track in moving], 1)
            self._settings.move(self.lr, moving)


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"adam": Adam, "sgd": SGD}
"""Optimizers by name."""
