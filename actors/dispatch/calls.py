"""Jobs on their way: what is known of them while they run, and what becomes of them."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray import ObjectRef

from actors.dispatch.queue import Job, Queues


@dataclass(frozen=True)
class Done:
    """A finished job.

    Attributes:
        key: Which.
        value: What the actor gave for it.
        refs: The call's other refs, which the jobs of the call have in common.
        place: The job's place among them.
    """

    key: Any
    value: Any
    refs: tuple[ObjectRef[Any], ...]
    place: int


@dataclass(frozen=True)
class Failed:
    """A job that has no result.

    Attributes:
        key: Which.
        reason: Why, in one line.
        cause: What its call raised, or None if its actor died in every attempt or its time was up.
        deadly: Whether its actor died in every attempt.
        late: Whether its time was up.
    """

    key: Any
    reason: str
    cause: BaseException | None = None
    deadly: bool = False
    late: bool = False


Submit = Callable[[Any, Sequence[Job]], Sequence[ObjectRef[Any]]]
"""Calls an actor with some jobs. The last ref gives a list with a value for each; the others are for all of them."""


@dataclass(frozen=True)
class Call:
    """Jobs that an actor was given together, and the refs to what it will give back."""

    slot: int
    jobs: Sequence[Job]
    refs: Sequence[ObjectRef[Any]]

    def done(self, values: Sequence[Any]) -> Iterator[Done]:
        """Give each job its value."""
        for place, (job, value) in enumerate(zip(self.jobs, values, strict=True)):
            yield Done(job.key, value, tuple(self.refs), place)


@dataclass
class Run:
    """What is known of the jobs of one `ActorPool.run`.

    Attributes:
        submit: Calls an actor with some of them.
        queues: Those that wait.
        store_again: Called before a job is repeated whose inputs vanished.
        running: Calls by the last of their refs.
        deaths: How often a job ran alone when its actor died or objects were not to be had, by key.
        machines: How often its machine died, by key.
    """

    submit: Submit
    queues: Queues
    store_again: Callable[[], None]
    running: dict[ObjectRef[Any], Call] = field(default_factory=dict)
    deaths: Counter[Hashable] = field(default_factory=Counter)
    machines: Counter[Hashable] = field(default_factory=Counter)
