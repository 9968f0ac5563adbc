"""Optimizers: settings, and the descent that they make afresh for each local training.

Steps have the bits of torch.optim with fused=True, whose kernels they call. torch.optim itself imports TorchDynamo,
Inductor and SymPy at its first use, which costs every process that trains more than `import torch` does.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import Parameter

from rayfed_ssl.randomness.draws import host_value
from rayfed_ssl.training.track import Track, by_dimension
from rayfed_ssl.validation import BelowOne, Validated

BETAS = (0.9, 0.999)
EPSILON = 1e-8
"""Adam's constants are torch's defaults."""


@dataclass(frozen=True, kw_only=True)
class Optimizer(Validated, ABC):
    """Settings that all optimizers have; the defaults are FLESD's local step (section 5.1, weight decay from its code)."""

    lr: PositiveFloat = 1e-3
    """Learning rate; the highest one of a schedule."""
    schedule: Literal["constant", "cosine", "warmup-cosine"] = "constant"
    """Of the learning rate: "constant"; "cosine", round by round from lr in the first one towards 0 (EasyFL's FedU and
    FedEMA); or "warmup-cosine", step by step over a client's local steps of all rounds (SimCLR).
    """
    warmup: BelowOne = 0.1
    """Share of these steps in which the learning rate rises linearly to lr, before a cosine takes it towards 0."""
    weight_decay: NonNegativeFloat = 1e-6
    """L2 factor."""

    def __post_init__(self) -> None:
        if self.schedule != "warmup-cosine" and self.warmup != Optimizer.warmup:
            raise ValueError(
                f"warmup has no meaning for schedule={self.schedule}: remove it or take schedule=warmup-cosine"
            )

    def at(self, round: int, rounds: int) -> Self:
        """Set the learning rate of a round: lr (1 + cos(pi (r - 1) / R)) / 2 under "cosine", for r from 1 to R."""
        if self.schedule != "cosine":
            return self
        return replace(self, lr=self.lr * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2)

    def rates(self, round: int, rounds: int, steps: int) -> Tensor | None:
        """Compute the learning rates of a round's steps under "warmup-cosine"; others stay the same within a round.

        Step s of S = `rounds` x `steps`, from 0, has lr (s + 1) / W before W = `warmup` x S, rounded, and then
        lr (1 + cos(pi (s - W) / (S - W))) / 2.

        Args:
            round: From 1.
            rounds: T.
            steps: Of the client in each round.

        Returns:
            float32 [steps] on the CPU, or None.
        """
        if self.schedule != "warmup-cosine":
            return None
        total = rounds * steps
        rising = int(self.warmup * total + 0.5)
        step = torch.arange((round - 1) * steps, round * steps, dtype=torch.float64)
        falling = (1 + (math.pi * (step - rising) / max(1, total - rising)).cos()) / 2
        return (self.lr * torch.where(step < rising, (step + 1) / max(1, rising), falling)).to(torch.float32)

    def over(self, parameters: Iterable[Parameter], rates: Tensor | None = None) -> "Descent":
        """Make a descent with empty moments; `rates` as `Descent` takes them."""
        return Descent(self, parameters, rates)

    @abstractmethod
    def moments(self, values: Tensor) -> tuple[Tensor, ...]:
        """Make a parameter's moments before its first step."""

    @abstractmethod
    def move(self, lr: float | Tensor, tracks: "list[Track]", gradients: list[Tensor]) -> None:
        """Move parameters by one step; ages count it already. A learning rate may be a scalar on the device."""


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent."""

    momentum: BelowOne = 0.9
    """Share of the previous step, not Nesterov; 0 for none."""

    def moments(self, values: Tensor) -> tuple[Tensor, ...]:
        """Make a momentum of zeros, so that the first one is the first gradient."""
        return (torch.zeros_like(values),) if self.momentum else ()

    def move(self, lr: float | Tensor, tracks: list[Track], gradients: list[Tensor]) -> None:
        """Move parameters by SGD."""
        torch._fused_sgd_(
            [track.values for track in tracks],
            gradients,
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

    kernel: ClassVar[Callable[..., Any]] = torch._fused_adam_
    betas: tuple[BelowOne, BelowOne] = BETAS
    """Decays of the first and second moments; torch's."""

    def moments(self, values: Tensor) -> tuple[Tensor, ...]:
        """Make first and second moments of zeros."""
        return torch.zeros_like(values), torch.zeros_like(values)

    def move(self, lr: float | Tensor, tracks: list[Track], gradients: list[Tensor]) -> None:
        """Move parameters by Adam."""
        type(self).kernel(
            [track.values for track in tracks],
            gradients,
            [track.moments[0] for track in tracks],
            [track.moments[1] for track in tracks],
            [],
            [track.age for track in tracks],
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as torch.optim.AdamW."""

    kernel: ClassVar[Callable[..., Any]] = torch._fused_adamw_
    weight_decay: float = 1e-2
    """Share of the values, times the learning rate, that a step takes away; torch's default."""
    exclude_1d: bool = False
    """Whether biases, scales and shifts, all of one dimension, have no decay (codes of MAE, DINO)."""

    def move(self, lr: float | Tensor, tracks: list[Track], gradients: list[Tensor]) -> None:
        """Move parameters by AdamW, with exclude_1d in two groups."""
        if not self.exclude_1d:
            super().move(lr, tracks, gradients)
            return
        for settings, group in zip((self, replace(self, weight_decay=0)), by_dimension(tracks, gradients), strict=True):
            if group:
                Adam.move(settings, lr, *map(list, zip(*group, strict=True)))


@dataclass(frozen=True, kw_only=True)
class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017, Algorithm 1) in SimCLR's form.

    A matrix or kernel w with gradient g moves by its momentum: v <- momentum v + lr r g', w <- w - v, where
    g' = g + weight_decay w and r = trust |w| / |g'|, or 1 if a norm is 0; the paper divides by |g| + weight_decay |w|.
    Biases and the scales and shifts of batch-norm have r = 1 and no decay.
    """

    lr: PositiveFloat = 0.3
    """For batches of 256; SimCLR and BYOL scale it with the batch."""
    momentum: BelowOne = 0.9
    """Share of the previous step."""
    trust: PositiveFloat = 0.001
    """A step's length over that of the layer's weights, at a learning rate of 1; SimCLR's and BYOL's."""

    def moments(self, values: Tensor) -> tuple[Tensor, ...]:
        """Make a momentum of zeros."""
        return (torch.zeros_like(values),)

    def move(self, lr: float | Tensor, tracks: list[Track], gradients: list[Tensor]) -> None:
        """Move parameters by LARS."""
        layers, vectors = by_dimension(tracks, gradients)
        if layers:
            values = [track.values for track, _ in layers]
            decayed = torch._foreach_add([gradient for _, gradient in layers], values, alpha=self.weight_decay)
            weight_norms, norms = (torch.stack(torch._foreach_norm(tensors)) for tensors in (values, decayed))
            ratios = torch.where((weight_norms > 0) & (norms > 0), self.trust * weight_norms / norms, 1.0)
            self._follow([track for track, _ in layers], torch._foreach_mul(decayed, (ratios * lr).unbind()))
        if vectors:
            self._follow([track for track, _ in vectors], torch._foreach_mul([gradient for _, gradient in vectors], lr))

    def _follow(self, tracks: list[Track], steps: tuple[Tensor, ...]) -> None:
        momenta = [track.moments[0] for track in tracks]
        torch._foreach_mul_(momenta, self.momentum)
        torch._foreach_add_(momenta, steps)
        torch._foreach_sub_([track.values for track in tracks], momenta)


class Descent:
    """Parameters on their way down; a parameter without a gradient stays where it is and ages with its first one.

    Args:
        settings: How steps are made; only its learning rate counts, not its schedule.
        parameters: float32, all on one device.
        rates: Learning rate of each step to come, on the CPU, [S], in place of `lr`.

    Attributes:
        lr: Learning rate of the next step, or the highest one of `rates`.
    """

    def __init__(self, settings: Optimizer, parameters: Iterable[Parameter], rates: Tensor | None = None) -> None:
        self._settings = settings
        self._tracks: dict[Parameter, Track | None] = dict.fromkeys(parameters)
        self.restart(settings.lr, rates)

    @torch.no_grad()
    def restart(self, lr: float, rates: Tensor | None = None) -> None:
        """Go back to before the first step: moments and ages are zeros again, where they are; `rates` as of the class."""
        self.lr = lr
        self._next_rate = None if rates is None else iter(rates.unbind()).__next__
        if zeros := [zero for track in self._tracks.values() if track for zero in (*track.moments, track.age)]:
            torch._foreach_zero_(zeros)

    def allocate(self) -> None:
        """Make the moments of all parameters that want gradients now and not in their first step."""
        for parameter in self.parameters:
            self._track(parameter)

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters that want gradients."""
        return [parameter for parameter in self._tracks if parameter.requires_grad]

    @torch.no_grad()
    def step(self, gradients: Mapping[Parameter, Tensor]) -> None:
        """Move every parameter that has a gradient; fused kernels do so in one pass over memory."""
        moving, directions = [], []
        for parameter in self._tracks:
            if (gradient := gradients.get(parameter)) is not None:
                moving.append(track := self._track(parameter))
                directions.append(track.laid_out(gradient))
        if moving:
            lr = self._rate(moving[0].values.device)
            torch._foreach_add_([track.age for track in moving], 1)
            self._settings.move(lr, moving, directions)

    def _track(self, parameter: Parameter) -> Track:
        track = self._tracks[parameter] = self._tracks[parameter] or Track.of(parameter, self._settings.moments)
        return track

    def _rate(self, device: torch.device) -> float | Tensor:
        """Give the learning rate; accelerators read it from memory, so that a captured step can have another one."""
        if self._next_rate is None and device.type == "cpu":
            return self.lr
        return host_value(self._cuda_rate if device.type == "cuda" else self._host_rate, device)

    def _host_rate(self) -> Tensor:
        return torch.tensor(self.lr, dtype=torch.float64) if self._next_rate is None else self._next_rate()

    def _cuda_rate(self) -> Tensor:
        return self._host_rate().float()  # what CUDA's fused kernels take


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "lars": LARS, "sgd": SGD}
"""Optimizers by name."""
