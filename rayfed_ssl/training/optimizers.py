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
    def move(self, lr: float, tracks: "list[Track]") -> None:
        """Move parameters of one age."""


@dataclass
class Track:
    """A parameter, its values and moments as `_flat` sees them, and the steps that it has done."""

    parameter: Parameter
    values: Tensor
    moments: tuple[Tensor, ...] = ()
    age: int = 0


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

    def move(self, lr: float, tracks: list[Track]) -> None:
        """Move parameters of one age by SGD; the first momentum is the first gradient."""
        first = bool(self.momentum) and tracks[0].age == 1
        if first:
            for track in tracks:
                track.moments = (torch.empty_like(track.values),)
        torch._fused_sgd_(
            [track.values for track in tracks],
            _gradients(tracks),
            [moment for track in tracks for moment in track.moments],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0,
            nesterov=False,
            maximize=False,
            is_first_step=first,
        )


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam with L2 weight decay, as torch.optim.Adam."""

    def move(self, lr: float, tracks: list[Track]) -> None:
        """Move parameters of one age by Adam."""
        if tracks[0].age == 1:
            for track in tracks:
                track.moments = (torch.zeros_like(track.values), torch.zeros_like(track.values))
        age = torch.full((), tracks[0].age, dtype=torch.float32, device=tracks[0].values.device)
        torch._fused_adam_(
            [track.values for track in tracks],
            _gradients(tracks),
            [track.moments[0] for track in tracks],
            [track.moments[1] for track in tracks],
            [],
            [age] * len(tracks),
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
        self._tracks = [Track(parameter, _flat(parameter)) for parameter in parameters]

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for track in self._tracks:
            track.parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient; fused kernels do so in one pass over memory."""
        by_age: dict[int, list[Track]] = {}
        for track in self._tracks:
            if track.parameter.grad is not None:
                by_age.setdefault(track.age, []).append(track)
        for tracks in by_age.values():
            for track in tracks:
                track.age += 1
            self._settings.move(self.lr, tracks)


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"adam": Adam, "sgd": SGD}
"""Optimizers by name."""


def _gradients(tracks: list[Track]) -> list[Tensor]:
    """View the gradients as the values are viewed: autograd lays them out in memory as it finds their parameters."""
    return [_flat(track.parameter.grad) for track in tracks if track.parameter.grad is not None]
