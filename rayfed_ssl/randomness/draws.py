"""Random draws: made on the host by CPU generators, whatever the device, and moved to the device; all but dropout's.

So a seed gives the same draws on every device, and no draw waits for one. The draws of a training step can be made ahead of
it and moved in one transfer.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 16
"""Packed tensors start at multiples of this many bytes, so that each can be viewed under its own type."""


def move(values: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to the device without waiting for it.

    Raises:
        RuntimeError: A CUDA graph is being captured, which would repeat these values in every replay.
    """
    if device.type == "cpu":
        return values
    if (steps := _STEPS.get()) is not None:
        steps.moves_values = True
    return _moved(values, device)


def _moved(values: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return values.to(device, non_blocking=True)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("values of the host were moved within a captured step")
    return values.pin_memory().to(device, non_blocking=True)


def draw(function: Callable[..., Tensor], *args: Hashable, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw on the host and give the result on the device.

    Args:
        function: Makes a CPU tensor from `args` and `generator=`, as torch.randn and torch.randperm do.
        args: Its other arguments; the same in each step of a kind (see `StepDraws`).
        generator: A CPU generator.
        device: Where the result is wanted.
    """
    return _on_device(Request(function, args, generator), device)


def host_value(function: Callable[[], Tensor], device: torch.device) -> Tensor:
    """Compute on the host what changes from step to step without chance, such as a learning rate; moved as draws are.

    Args:
        function: Gives a CPU tensor of one shape and type; called once a step, in the order of steps.
        device: Where the result is wanted.
    """
    return _on_device(Request(function, (), None), device)


class Request(NamedTuple):
    """One draw, or one value of the host."""

    function: Callable[..., Tensor]
    args: tuple[Hashable, ...]
    generator: torch.Generator | None

    def drawn(self) -> Tensor:
        """Make it, on the CPU."""
        return (
            self.function(*self.args) if self.generator is None else self.function(*self.args, generator=self.generator)
        )


def _on_device(request: Request, device: torch.device) -> Tensor:
    steps = _STEPS.get()
    return move(request.drawn(), device) if steps is None else steps.take(request)


class StepDraws:
    """Draws of training steps on a device, made ahead of each step and moved in one transfer.

    A kind of step, such as those of one batch size, makes the same draws in the same order each time. Its first step makes
    them one by one as they are asked for and records them; `ahead` repeats them for a later one. Generators give the same
    numbers either way.

    Args:
        device: Where the draws are wanted.

    Attributes:
        moves_values: Whether a step has moved other values of the host, which a captured step would repeat.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.moves_values = device, False
        self._kinds: dict[Hashable, _Kind] = {}
        self._serving: _Kind | None = None
        self._next = 0

    def ahead(self, kind: Hashable) -> None:
        """Make the draws of the next step of this kind, unless it is the first."""
        if kind in self._kinds:
            self._kinds[kind].fill()

    @contextmanager
    def serving(self, kind: Hashable) -> Iterator[None]:
        """Let `draw` take what was drawn ahead for this kind, or record its first step."""
        known = kind in self._kinds
        self._serving, self._next = self._kinds.setdefault(kind, _Kind()), 0
        token = _STEPS.set(self)
        try:
            yield
            if known:
                assert self._next == len(self._serving.requests), "steps of one kind make the same draws"
            else:
                self._serving.allocate(self._device)
        except BaseException:
            if not known:  # otherwise what was drawn ahead is there for another try
                self._kinds.pop(kind, None)
            raise
        finally:
            _STEPS.reset(token)

    def take(self, request: Request) -> Tensor:
        """Give the next draw of the step that runs."""
        assert self._serving is not None, "draw asks within a step only"
        if self._serving.buffer is None:
            return _moved(self._serving.first(request), self._device)
        assert self._serving.requests[self._next : self._next + 1] == [request], "steps of one kind make the same draws"
        self._next += 1
        return self._serving.views[self._next - 1]


@dataclass
class _Kind:
    """Draws of one kind of step: what they are, and one buffer on the device with a view of each."""

    requests: list[Request] = field(default_factory=list)
    forms: list[tuple[torch.dtype, torch.Size, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    buffer: Tensor | None = None
    views: list[Tensor] = field(default_factory=list)

    def first(self, request: Request) -> Tensor:
        values = request.drawn()
        self.requests.append(request)
        self.forms.append((values.dtype, values.shape, values.nbytes))
        self.sizes.append(-(-values.nbytes // ALIGNMENT) * ALIGNMENT)
        return values

    def allocate(self, device: torch.device) -> None:
        self.buffer = torch.empty(sum(self.sizes), dtype=torch.uint8, device=device)
        self.views = [
            part[:nbytes].view(dtype).view(shape)
            for part, (dtype, shape, nbytes) in zip(self.buffer.split(self.sizes), self.forms, strict=True)
        ]

    def fill(self) -> None:
        assert self.buffer is not None, "a kind is known once its first step is over"
        packed = torch.empty(len(self.buffer), dtype=torch.uint8, pin_memory=self.buffer.device.type == "cuda")
        for request, part in zip(self.requests, packed.split(self.sizes), strict=True):
            values = request.drawn().contiguous().view(-1).view(torch.uint8)
            part[: len(values)] = values
        self.buffer.copy_(packed, non_blocking=True)


_STEPS: ContextVar[StepDraws | None] = ContextVar("steps", default=None)
