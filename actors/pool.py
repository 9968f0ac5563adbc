"""A pool of client actors: each job has a home, the longest goes first, and whoever dies is replaced."""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayTaskError

from actors.cluster import ClusterError, first_line
from actors.queues import Job, Queues
from actors.supervision import DEATHS, FULL, READY_TIMEOUT, store_is_full, why_dead


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
class _Call:
    slot: int
    jobs: Sequence[Job]
    refs: Sequence[ObjectRef[Any]]

    def done(self, values: Sequence[Any]) -> Iterator[Done]:
        for place, (job, value) in enumerate(zip(self.jobs, values, strict=True)):
            yield Done(job.key, value, tuple(self.refs), place)


@dataclass
class _Run:
    """What is known of the jobs of one `run`."""

    submit: Submit
    queues: Queues
    store_again: Callable[[], None]
    running: dict[ObjectRef[Any], _Call] = field(default_factory=dict)
    deaths: dict[Hashable, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Start:
    slot: int
    deadline: float
    tries: int


class ActorPool:
    """Actors that are all alike, in numbered slots, and hold nothing between two calls that could not be had again.

    A job's home is a slot. An idle actor takes what is at home with it, and when nothing is left there, the longest job
    of the slot that has most to do: a guest, whose home stays where it is.

    Args:
        make: Makes an actor.
        number: How many.
        attempts: How often a job is tried whose actor dies.
        check: Raises `ClusterError` if Ray is dead, so that nobody waits for it.

    Attributes:
        actors: The present actors by slot; a slot whose actor found no place again is gone.
        retries: Jobs that were run again because their actor died or their inputs vanished.
        guests: Jobs that ran in another slot than their home.
    """

    def __init__(
        self, make: Callable[[], Any], number: int, attempts: int, check: Callable[[], None] = lambda: None
    ) -> None:
        self.retries = self.guests = 0
        self.actors: dict[int, Any] = {slot: make() for slot in range(number)}
        self._make, self._attempts, self._check = make, attempts, check
        self._idle = list(self.actors)
        self._starting: dict[ObjectRef[Any], _Start] = {}

    def run(
        self,
        jobs: Iterable[Job],
        submit: Submit,
        *,
        homes: Mapping[Any, int] | None = None,
        call_seconds: float = 0.0,
        deadline: float | None = None,
        store_again: Callable[[], None] = lambda: None,
    ) -> Iterator[Done | Failed]:
        """Run jobs, those that take longest first, and yield each when it is done or has failed.

        Args:
            jobs: In any order.
            submit: Calls an actor with some of them.
            homes: Slots by key; a job without one is at home nowhere.
            call_seconds: Jobs of known length are put together up to this sum; 0 gives each its own call.
            deadline: A time of `time.monotonic` at which jobs that are not done fail, and actors that are busy with
                them are replaced.
            store_again: Called before a job is repeated whose inputs vanished with the machine that held them.

        Raises:
            ClusterError: No actor is left.
        """
        queues = Queues(jobs, homes or {}, call_seconds)
        run = _Run(submit, queues, store_again)
        try:
            while True:
                self._hand_out(run)
                if not run.running and not queues:
                    return
                ended = self._next(run, deadline)
                if ended is None:
                    yield from self._time_is_up(run)
                    return
                if ended in self._starting:
                    self._take_in(ended)
                else:
                    yield from self._results(run, ended)
        finally:
            self._idle += [call.slot for call in run.running.values()]

    def _hand_out(self, run: _Run) -> None:
        for slot in list(self._idle):
            jobs = run.queues.take(slot, len(self.actors))
            if jobs:
                self._idle.remove(slot)
                self.guests += sum(run.queues.homes.get(job.key, slot) != slot for job in jobs)
                *refs, last = run.submit(self.actors[slot], jobs)
                run.running[last] = _Call(slot, jobs, refs)

    def _next(self, run: _Run, deadline: float | None) -> ObjectRef[Any] | None:
        """Wait until a call ends or a new actor is ready; None when the time is up."""
        while True:
            left = 5.0 if deadline is None else min(5.0, deadline - time.monotonic())
            if left <= 0:
                return None
            ended, _ = ray.wait([*run.running, *self._starting], num_returns=1, timeout=left)
            if ended:
                return ended[0]
            self._check()
            self._give_up_late()

    def _results(self, run: _Run, last: ObjectRef[Any]) -> Iterator[Done | Failed]:
        """Take the results of a call that ended, or see to its repetition."""
        call = run.running.pop(last)
        try:
            values = ray.get(last)
        except ObjectLostError as error:
            self._idle.append(call.slot)
            run.store_again()
            yield from self._repeat(run, call, error)
        except FULL as error:
            self._idle.append(call.slot)
            yield from self._repeat(run, call, error)
        except RayTaskError as error:
            self._idle.append(call.slot)
            for job in call.jobs:
                yield Failed(job.key, first_line(error.cause), error.cause)
        except DEATHS as error:
            self._check()
            self._replace(call.slot)
            yield from self._repeat(run, call, error)
        else:
            self._idle.append(call.slot)
            yield from call.done(values)

    def _repeat(self, run: _Run, call: _Call, error: BaseException) -> Iterator[Failed]:
        """Put jobs back, each to be run alone: which of them killed the actor shows only then."""
        alone = len(call.jobs) == 1
        for job in call.jobs:
            run.deaths[job.key] = run.deaths.get(job.key, 0) + alone
            if run.deaths[job.key] >= self._attempts:
                if not isinstance(error, DEATHS):
                    raise _out_of_objects(error, self._attempts)
                text = f"its actor died in {run.deaths[job.key]} of {self._attempts} attempts ({why_dead(error)})"
                yield Failed(job.key, text, deadly=True)
            else:
                self.retries += 1
                run.queues.put_back(job)

    def _time_is_up(self, run: _Run) -> Iterator[Failed]:
        for call in list(run.running.values()):
            ray.kill(self.actors[call.slot])
            self._replace(call.slot)
        late = [job for call in run.running.values() for job in call.jobs]
        run.running.clear()
        for job in (*late, *run.queues.rest()):
            yield Failed(job.key, "it was not done in time", late=True)

    def _replace(self, slot: int, tries: int = 1) -> None:
        self.actors[slot] = self._make()
        self._starting[self.actors[slot].ready.remote()] = _Start(slot, time.monotonic() + READY_TIMEOUT, tries)

    def _take_in(self, ready: ObjectRef[Any]) -> None:
        """Give work to a new actor, or make another one if it died at once."""
        start = self._starting.pop(ready)
        try:
            ray.get(ready)
        except DEATHS as error:
            self._check()
            if start.tries >= self._attempts:
                self._remove(start.slot, f"each of {start.tries} new ones died while it started ({why_dead(error)})")
            else:
                self._replace(start.slot, start.tries + 1)
        except RayTaskError as error:
            raise ClusterError(f"a new client actor cannot open the run ({first_line(error.cause)})") from error
        else:
            self._idle.append(start.slot)

    def _give_up_late(self) -> None:
        """Go on without actors that find no place again, for example because a machine is gone."""
        for ready, start in list(self._starting.items()):
            if time.monotonic() > start.deadline:
                del self._starting[ready]
                ray.kill(self.actors[start.slot])
                self._remove(start.slot, f"new ones found no place within {READY_TIMEOUT:g} s")

    def _remove(self, slot: int, reason: str) -> None:
        del self.actors[slot]
        if not self.actors:
            raise ClusterError(
                f"all client actors died, and {reason}: see `ray status` and memory, then resume the run"
            )

    def close(self) -> None:
        """End the actors, whatever they are doing."""
        for actor in self.actors.values():
            ray.kill(actor)
        self.actors.clear()
        self._idle.clear()
        self._starting.clear()


def _out_of_objects(error: BaseException, attempts: int) -> ClusterError:
    """Say why the object store does not give or take what a job needs."""
    if isinstance(error, FULL):
        return store_is_full(error)
    return ClusterError(
        f"what client steps need was lost {attempts} times ({first_line(error)}): see `ray status`, then resume the run"
    )
