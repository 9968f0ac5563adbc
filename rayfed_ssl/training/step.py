"""A step of local training, and how a GPU runs it: draws made ahead, nothing waited for, captured once and replayed."""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from rayfed_ssl.draws import StepDraws
from rayfed_ssl.models import Model
from rayfed_ssl.models.batch_norm import counting_together
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import Descent

Loss: TypeAlias = Callable[[Model, nn.Module, Batch], StepOutput]
"""What a method may put in the place of the objective's loss: takes model, state and batch."""

Term: TypeAlias = Callable[[Model, Tensor], Tensor]
"""What a method adds to each step's loss: takes the model and the first view's projections [B, p], gives a scalar."""

Replay: TypeAlias = Callable[[], object]
Capture: TypeAlias = Callable[[Callable[[], None]], Replay]
"""Records the work of a function without running it; what it gives runs the work again, on the same tensors."""

EAGER_STEPS = 3
"""Steps of a kind before it is captured: libraries choose their kernels and workspaces in the first ones."""

MIN_REPLAYS = 16
"""Replays from which a capture is worth its time, about that of ten steps."""

DRAWING = {"StochasticDepth": "p", "DropPath": "drop_prob"}
"""Layers of torchvision and timm that draw, and what they call the probability."""

CAPTURE_FAILURES: list[str] = []
"""Why captures failed in this process, which after one captures no more."""

Marked = TypeVar("Marked", bound=Callable[..., object])


def capturable(function: Marked) -> Marked:
    """Mark a loss or a term as one that can be captured: it reads and writes tensors alone, on one device."""
    function.capturable = True  # type: ignore[attr-defined]
    return function


def descend(loss: Tensor, *descents: Descent) -> None:
    """Move parameters by one step down a loss, a scalar; the others stay where they are, even if those are all.

    Gradients go from autograd to the optimizer without lying in `grad`, where each would take an operation.
    """
    parameters = [parameter for descent in descents for parameter in descent.parameters]
    if not parameters:
        return
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    gradients = {
        parameter: gradient for parameter, gradient in zip(parameters, found, strict=True) if gradient is not None
    }
    for descent in descents:
        descent.step(gradients)


class TrainingStep:
    """Loss, terms, gradients, the optimizer's step, and what the objective remembers.

    Args:
        forward: The loss.
        terms: Added to it; not part of the reported loss.
        model: Trained in place.
        state: The objective's, or an empty module.
        descent: Over the model's parameters.
        finish: Changes the state after the optimizer's step.
        device: Where all this is.
    """

    def __init__(
        self,
        forward: Loss,
        terms: Sequence[Term],
        model: Model,
        state: nn.Module,
        descent: Descent,
        finish: Callable[[StepOutput], None],
        device: torch.device,
    ) -> None:
        self._forward, self._terms = forward, terms
        self._model, self._state = model, state
        self._descent, self._finish = descent, finish
        self._sums = torch.zeros(2, device=device)

    @property
    def obstacle(self) -> str:
        """Why the step cannot be captured; empty where it can."""
        if not all(getattr(part, "capturable", False) for part in (self._forward, *self._terms)):
            return "not every loss and term of objective and method is marked as capturable"
        if any(map(_draws, self._model.modules())):
            return "the model has dropout, which draws on the device"
        return ""

    def __call__(self, batch: Batch) -> None:
        """Take one step."""
        with counting_together():
            step = self._forward(self._model, self._state, batch)
            value, added = step.loss, torch.zeros_like(step.loss)
            for term in self._terms:
                extra = term(self._model, step.projections)
                value, added = value + extra, added + extra.detach()
        descend(value, self._descent)
        self._finish(step)
        self._sums.add_(torch.stack([step.loss.detach(), added.detach()]), alpha=len(batch.index))

    def read(self, *more: Tensor) -> list[float]:
        """Read the sums over samples of losses and of terms since the last time, and scalars besides: one wait."""
        values: list[float] = torch.stack([*self._sums.unbind(), *more]).tolist()
        self._sums.zero_()
        return values


def _draws(layer: nn.Module) -> bool:
    """Whether a layer draws in training: dropout, and what torchvision and timm call leaving out a block."""
    return bool(getattr(layer, DRAWING.get(type(layer).__name__, ""), 0)) or (
        isinstance(layer, _DropoutNd) and layer.p > 0
    )


class Runner(Protocol):
    """Takes steps."""

    def __call__(self, batch: Batch, phase: Hashable) -> None:
        """Take one; steps of one phase and batch size run the same operations."""


class DeviceRunner:
    """Takes steps on an accelerator: their draws are made ahead and moved in one transfer, and they may be captured.

    The step that is captured and its replays give the bits of eager steps, as they run the same kernels on the same numbers.

    Args:
        step: Takes a step.
        device: Where it runs.
        capture: Records a step, or None where steps stay eager.
        num_steps: How many steps are to come.
    """

    def __init__(
        self, step: Callable[[Batch], None], device: torch.device, capture: Capture | None, num_steps: int
    ) -> None:
        self._step, self._capture, self._left = step, capture, num_steps
        self._draws = StepDraws(device)
        self._seen: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, tuple[Batch, Replay]] = {}

    @property
    def num_captured(self) -> int:
        """How many kinds of step have been captured."""
        return len(self._captured)

    def __call__(self, batch: Batch, phase: Hashable) -> None:
        """Take one step."""
        kind = (len(batch.index), phase)
        self._draws.ahead(kind)
        if self._capture and kind not in self._captured and self._is_due(kind):
            if self._draws.moves_values:
                warnings.warn("steps are not captured: they move values of the host", stacklevel=2)
                self._capture = None
            else:
                self._record(self._capture, kind, batch)
        if kind in self._captured:
            held, replay = self._captured[kind]
            _copy(batch, held)
            replay()
        else:
            with self._draws.serving(kind):
                self._step(batch)
        self._seen[kind] += 1
        self._left -= 1

    def _is_due(self, kind: Hashable) -> bool:
        share = self._seen[kind] / max(1, self._seen.total())
        return self._seen[kind] >= EAGER_STEPS and share * self._left >= MIN_REPLAYS

    def _record(self, capture: Capture, kind: Hashable, batch: Batch) -> None:
        labels = None if batch.labels is None else batch.labels.clone()
        held = replace(batch, images=batch.images.clone(), index=batch.index.clone(), labels=labels)

        def run() -> None:
            with self._draws.serving(kind):
                self._step(held)

        try:
            self._captured[kind] = held, capture(run)
        except RuntimeError as error:
            self._capture = None
            self._captured.clear()  # their workspaces may be gone with the failed graph's
            CAPTURE_FAILURES.append(str(error).splitlines()[0])
            warnings.warn(f"steps are not captured: {CAPTURE_FAILURES[-1]}", stacklevel=2)


def device_runner(step: TrainingStep, device: torch.device, capture: Capture | None, num_steps: int) -> DeviceRunner:
    """Make a runner that captures nothing, with a warning, where the step cannot be captured; arguments as of the class."""
    if capture and step.obstacle:
        warnings.warn(f"steps are not captured: {step.obstacle}", stacklevel=2)
        capture = None
    return DeviceRunner(step, device, capture, num_steps)


def _copy(batch: Batch, held: Batch) -> None:
    """Put a batch's tensors into the places that a captured step reads."""
    held.images.copy_(batch.images)
    held.index.copy_(batch.index)
    if batch.labels is not None and held.labels is not None:
        held.labels.copy_(batch.labels)


def capture_cuda(run: Callable[[], None]) -> Replay:
    """Record a function's kernels on the current stream in a CUDA graph; gives what launches them all at once."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()
    return graph.replay


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run on a stream of its own, as capturing wants it; in order with what came before and what comes after."""
    if device.type != "cuda":
        yield
        return
    stream, outer = _stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outer.wait_stream(stream)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all local trainings: memory and workspaces of libraries are kept by stream."""
    return torch.cuda.Stream(device)
