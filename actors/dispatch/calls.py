"""Calls of actors: what is known of them while they run, and their results."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray import ObjectRef

from actors.dispatch.queue import WorkItem, WorkQueue


@dataclass(frozen=True)
class Completed:
    """The result of a work item: the actor's value, and the call's other refs, in which the item is at `index`."""

    key: Any
    value: Any
    refs: tuple[ObjectRef[Any], ...]
    index: int


@dataclass(frozen=True)
class Failed:
    """A work item without a result: its call raised `cause`, its actor died in every attempt, or it was late."""

    key: Any
    reason: str
    cause: BaseException | None = None
    killed_actors: bool = False
    is_late: bool = False


Submit = Callable[[Any, Sequence[WorkItem]], Sequence[ObjectRef[Any]]]
"""Calls an actor with some items. The last ref gives a list with a value for each; the others are common to all."""


@dataclass(frozen=True)
class ActorCall:
    """Items that an actor was given together, and the refs that it will fulfil."""

    slot: int
    items: Sequence[WorkItem]
    refs: Sequence[ObjectRef[Any]]

    def results(self, values: Sequence[Any]) -> Iterator[Completed]:
        """Give each item its value."""
        for index, (item, value) in enumerate(zip(self.items, values, strict=True)):
            yield Completed(item.key, value, tuple(self.refs), index)


@dataclass
class PoolRun:
    """The state of one `ActorPool.run`: running calls are by the last of their refs, counts by the key of an item.

    `deaths` counts how often an item ran alone when its actor died or objects were not available.
    """

    submit: Submit
    queue: WorkQueue
    restore_inputs: Callable[[], None]
    running: dict[ObjectRef[Any], ActorCall] = field(default_factory=dict)
    deaths: Counter[Hashable] = field(default_factory=Counter)
    machine_deaths: Counter[Hashable] = field(default_factory=Counter)
