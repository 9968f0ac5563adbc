"""How an accelerator runs trainings: draws made ahead, nothing waited for, each kind of step captured once and replayed.

Replays have the bits of eager steps, as they run the same kernels on the same numbers.
"""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from rayfed_ssl.randomness.draws import StepDraws
from rayfed_ssl.training.contents import Contents, UndeclaredError
from rayfed_ssl.training.graphs import Graphs, Replay
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.step import Rates, Training, TrainingStep

EAGER_STEPS = 3
"""Steps of a kind before it is captured: libraries choose their kernels and workspaces in the first ones."""

MIN_REPLAYS = 16
"""Replays from which a capture is worth its time, about that of ten steps."""

MAX_GRAPHS = 64
"""Kinds of step of one kind of training that stay captured, such as sizes of last batches."""


class DeviceRunner:
    """Takes steps on an accelerator: their draws are made ahead and moved in one transfer, and they may be captured.

    Args:
        step: Takes a step.
        device: Where it runs.
        captures: Captures it, or None where steps stay eager.
    """

    def __init__(self, step: Callable[[Batch], None], device: torch.device, captures: "Captures | None" = None) -> None:
        self._step, self._captures = step, captures
        self._draws = StepDraws(device)
        self._seen: Counter[Hashable] = Counter()
        self._captured: OrderedDict[Hashable, tuple[Batch, Replay]] = OrderedDict()
        self._pool = captures.graphs.pool() if captures else None
        self._left = 0.0

    def expect(self, steps: float) -> None:
        """Say how many steps are still to come, in this training and in others of its kind."""
        self._left = steps

    def __call__(self, batch: Batch) -> None:
        """Take one step; those of one phase and batch size run the same operations."""
        kind = (len(batch.index), batch.phase)
        self._draws.ahead(kind)
        if self._captures and kind not in self._captured and self._is_due(kind):
            self._capture(self._captures, kind, batch)
        if kind in self._captured:
            self._captured.move_to_end(kind)
            held, replay = self._captured[kind]
            _copy([batch.images, batch.index, batch.labels], [held.images, held.index, held.labels])
            replay()
        else:
            self._eager(kind, batch)
        self._seen[kind] += 1
        self._left -= 1

    def forget(self) -> None:
        """Give up what was captured; steps stay eager from now on."""
        self._captures = None
        self._captured.clear()

    def _is_due(self, kind: Hashable) -> bool:
        assert self._captures is not None
        share = self._seen[kind] / max(1, self._seen.total())
        return self._seen[kind] >= self._captures.eager_steps and share * self._left >= self._captures.min_replays

    def _eager(self, kind: Hashable, batch: Batch) -> None:
        if self._captures is None:
            with self._draws.serving(kind):
                self._step(batch)
            return
        self._captures.num_eager += 1
        with self._captures.graphs.waits() as waits, self._draws.serving(kind):
            self._step(batch)
        known = self._seen[kind] > 0  # a first step makes its draws one by one
        if reason := "they move values of the host" if self._draws.moves_values else known and next(iter(waits), ""):
            self._captures.refuse(reason)
            self.forget()

    def _capture(self, captures: "Captures", kind: Hashable, batch: Batch) -> None:
        labels = None if batch.labels is None else batch.labels.clone()
        held = replace(batch, images=batch.images.clone(), index=batch.index.clone(), labels=labels)

        def run() -> None:
            with self._draws.serving(kind):
                self._step(held)

        if replay := captures.capture(run, self._pool):
            self._captured[kind] = held, replay
        if len(self._captured) > MAX_GRAPHS:
            self._captured.popitem(last=False)


class Resident:
    """A kind of training in buffers that stay where they are: model, state, moments, and what loss and terms read.

    Args:
        training: The first one of the kind, which is copied.
        contents: Of this training.
        device: Where it is.
        captures: Captures its steps.
    """

    def __init__(self, training: Training, contents: Contents, device: torch.device, captures: "Captures") -> None:
        self.training = contents.copy(training)
        self.contents = Contents.of(self.training)
        self.step = TrainingStep(self.training, device)
        for descent in self.step.descents:
            descent.allocate()
        self.run = DeviceRunner(self.step, device, captures)

    def load(self, contents: Contents) -> None:
        """Take over the values of another training of the kind."""
        _copy(contents.tensors, self.contents.tensors)
        for theirs, ours in zip(contents.generators, self.contents.generators, strict=True):
            ours.set_state(theirs.get_state())

    def store(self, training: Training, contents: Contents) -> None:
        """Give a training's model, state and generators the values of these."""
        for ours, theirs in ((self.training.model, training.model), (self.training.state, training.state)):
            _copy([*ours.parameters(), *ours.buffers()], [*theirs.parameters(), *theirs.buffers()])
        for held, generator in zip(self.contents.generators, contents.generators, strict=True):
            generator.set_state(held.get_state())


@dataclass(repr=False)
class Captures:
    """The kinds of training of a process, whose steps are captured once.

    Attributes:
        graphs: Captures work.
        eager_steps: As EAGER_STEPS.
        min_replays: As MIN_REPLAYS.
        num_captured: How many kinds of step have been captured.
        num_eager: How many steps that may be captured later have run eagerly.
        refused: Why steps are not captured, each reason once.
    """

    graphs: Graphs
    eager_steps: int = EAGER_STEPS
    min_replays: int = MIN_REPLAYS
    num_captured: int = 0
    num_eager: int = 0
    refused: list[str] = field(default_factory=list)
    _residents: OrderedDict[Hashable, Resident] = field(default_factory=OrderedDict)
    _has_failed: bool = False

    @contextmanager
    def placed(
        self, training: Training, rates: Sequence[Rates], device: torch.device, planned: int, later: float
    ) -> Iterator["Run"]:
        """Run a training in the buffers of its kind, or where it is if its steps cannot be captured.

        Args:
            training: What it reads and writes; model and state have their new values once the block has ended.
            rates: Of its optimizers.
            device: Where it is.
            planned: How many steps are to come.
            later: How many are to come in later trainings of its kind, about.
        """
        resident = contents = None
        try:
            if not self._has_failed and planned + later >= self.eager_steps + self.min_replays:
                contents = Contents.of(training)
                resident = self._resident(training, contents, device)
        except UndeclaredError as error:
            self.refuse(str(error))
        if resident is None or contents is None:
            yield Run.in_place(training, rates, device)
            return
        resident.load(contents)
        resident.step.restart(rates)
        resident.run.expect(planned + later)
        yield Run(resident.training, resident.step, resident.run)
        resident.store(training, contents)

    def capture(self, run: Callable[[], None], pool: Any) -> Replay | None:
        """Capture work; None, and from then on nothing in this process, where that fails."""
        try:
            replay = self.graphs.capture(run, pool)
        except RuntimeError as error:
            self._has_failed = True
            self.refuse(str(error).splitlines()[0])
            for resident in self._residents.values():
                resident.run.forget()  # libraries' workspaces may be gone with the failed graph's memory
            return None
        self.num_captured += 1
        return replay

    def refuse(self, reason: str) -> None:
        """Say once why steps are not captured."""
        if reason not in self.refused:
            self.refused.append(reason)
            warnings.warn(f"steps are not captured: {reason}", stacklevel=2)

    def _resident(self, training: Training, contents: Contents, device: torch.device) -> Resident:
        if contents.kind not in self._residents:
            self._residents[contents.kind] = Resident(training, contents, device, self)
        self._residents.move_to_end(contents.kind)
        while len(self._residents) > 1 and self.graphs.is_full():
            self._residents.popitem(last=False)
        return self._residents[contents.kind]


@dataclass(frozen=True)
class Run:
    """A training under way: where its parts are, and what takes its steps.

    Attributes:
        training: Its parts.
        step: Has the sums of losses.
        take: Takes a step.
    """

    training: Training
    step: TrainingStep
    take: Callable[[Batch], None]

    @classmethod
    def in_place(cls, training: Training, rates: Sequence[Rates], device: torch.device) -> "Run":
        """Take eager steps on the parts themselves."""
        step = TrainingStep(training, device)
        step.restart(rates)
        return cls(training, step, step if device.type == "cpu" else DeviceRunner(step, device))


@torch.no_grad()
def _copy(sources: Iterable[Tensor | None], targets: Iterable[Tensor | None]) -> None:
    """Copy tensors into others of the same forms, all of one type at once."""
    pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if s is not None and t is not None]
    for _, group in groupby(sorted(pairs, key=_type), _type):
        some, others = zip(*group, strict=True)
        torch._foreach_copy_(others, some)


def _type(pair: tuple[Tensor, Tensor]) -> str:
    return str(pair[0].dtype)
