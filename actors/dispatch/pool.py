"""A pool of client actors: each job has a home, the longest goes first, and whoever dies is replaced."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayTaskError

from actors.cluster.connect import ClusterError, first_line
from actors.cluster.health import LOOK_EVERY
from actors.dispatch.calls import Call, Done, Failed, Run, Submit
from actors.dispatch.queue import Job, Queues
from actors.placement.restarts import (
    DEATHS,
    FULL,
    OPEN_TIMEOUT,
    READY_TIMEOUT,
    end_actor,
    is_of_machine,
    store_is_full,
    why_dead,
)

MACHINES_LOST = 20
"""Machines that may die under one job before the run ends: no fault of the job's, but no progress either."""


@dataclass(frozen=True)
class _Start:
    """An actor that is being made: without a place at first, then opening its data."""

    slot: int
    tries: int
    opening_since: float | None = None


class ActorPool:
    """Actors that are all alike, in numbered slots, and hold nothing between two calls that could not be had again.

    A job's home is a slot. An idle actor takes what is at home with it, and when nothing is left there, the longest job
    of the slot that has most to do: a guest, whose home stays where it is.

    An actor that died is made anew. While others live it waits for a place as long as it takes, because a machine may
    come in the place of one that is gone; meanwhile the others do its work.

    Args:
        make: Makes an actor.
        number: How many.
        attempts: How often a job is tried whose actor dies.
        check: Raises `ClusterError` if Ray is dead, so that nobody waits for it.

    Attributes:
        actors: The present actors by slot; a slot where new ones could not work is gone.
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
        self._lived = time.monotonic()

    @property
    def idle(self) -> list[Any]:
        """Actors that are there and have nothing to do."""
        return [self.actors[slot] for slot in self._idle]

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
                them are replaced. What is done by then counts, however late it is looked at.
            store_again: Called before a job is repeated whose inputs vanished with the machine that held them.

        Raises:
            ClusterError: No actor is left.
        """
        if not self.actors:
            raise _nobody("none is left")
        queues = Queues(jobs, homes or {}, call_seconds)
        run = Run(submit, queues, store_again)
        self._lived = time.monotonic()
        try:
            while True:
                if deadline is None or time.monotonic() < deadline:
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

    def _hand_out(self, run: Run) -> None:
        for slot in list(self._idle):
            jobs = run.queues.take(slot, len(self.actors))
            if jobs:
                self._idle.remove(slot)
                self.guests += sum(run.queues.homes.get(job.key, slot) != slot for job in jobs)
                *refs, last = run.submit(self.actors[slot], jobs)
                run.running[last] = Call(slot, jobs, refs)

    def _next(self, run: Run, deadline: float | None) -> ObjectRef[Any] | None:
        """Wait until a call ends or a new actor is ready; None when the time is up."""
        while True:
            waiting = [*run.running, *self._starting]
            left = LOOK_EVERY if deadline is None else min(LOOK_EVERY, max(0.0, deadline - time.monotonic()))
            ended = ray.wait(waiting, num_returns=1, timeout=left)[0] if waiting else []
            if ended:
                return ended[0]
            if deadline is not None and time.monotonic() >= deadline:
                return None
            self._check()
            self._check_life(run)

    def _check_life(self, run: Run) -> None:
        """Wait for new actors as long as there is hope.

        Raises:
            ClusterError: None has lived for too long.
        """
        now = time.monotonic()
        for ready, start in list(self._starting.items()):
            if start.opening_since is not None and now > start.opening_since + OPEN_TIMEOUT:
                del self._starting[ready]
                self._remove(start.slot, f"a new one had not opened its data after {OPEN_TIMEOUT:g} s")
        if run.running or self._idle or any(start.opening_since is not None for start in self._starting.values()):
            self._lived = now
        elif now > self._lived + READY_TIMEOUT:
            raise _nobody(f"new ones found no place within {READY_TIMEOUT:g} s")

    def _results(self, run: Run, last: ObjectRef[Any]) -> Iterator[Done | Failed]:
        """Take the results of a call that ended, or see to its repetition."""
        call = run.running.pop(last)
        self._lived = time.monotonic()
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

    def _repeat(self, run: Run, call: Call, error: BaseException) -> Iterator[Failed]:
        """Put jobs back, each to be run alone: which of them killed the actor shows only then.

        Raises:
            ClusterError: What jobs need is not to be had.
        """
        lost_machine, alone = is_of_machine(error), len(call.jobs) == 1
        for job in call.jobs:
            run.machines[job.key] += lost_machine
            run.deaths[job.key] += alone and not lost_machine
            if run.machines[job.key] >= MACHINES_LOST:
                text = f"{MACHINES_LOST} machines died under one step ({why_dead(error)})"
                raise ClusterError(f"{text}: see `ray status`, then resume the run")
            if run.deaths[job.key] >= self._attempts:
                if not isinstance(error, DEATHS):
                    raise _out_of_objects(error, self._attempts)
                text = f"its actor died in {run.deaths[job.key]} of {self._attempts} attempts ({why_dead(error)})"
                yield Failed(job.key, text, deadly=True)
            else:
                self.retries += 1
                run.queues.put_back(job)

    def _time_is_up(self, run: Run) -> Iterator[Failed]:
        for call in list(run.running.values()):
            self._replace(call.slot)
        late = [job for call in run.running.values() for job in call.jobs]
        run.running.clear()
        for job in (*late, *run.queues.rest()):
            yield Failed(job.key, "it was not done in time", late=True)

    def _replace(self, slot: int, tries: int = 1) -> None:
        end_actor(self.actors[slot])  # it may only be out of reach, and must write nothing any more
        self.actors[slot] = self._make()
        self._starting[self.actors[slot].__ray_ready__.remote()] = _Start(slot, tries)

    def _take_in(self, ready: ObjectRef[Any]) -> None:
        """Let a new actor open its data, then give it work; or make another one if it died at once."""
        start = self._starting.pop(ready)
        try:
            ray.get(ready)
        except DEATHS as error:
            self._check()
            tries = start.tries + (not is_of_machine(error))
            if tries > self._attempts:
                self._remove(start.slot, f"each of {start.tries} new ones died while it started ({why_dead(error)})")
            else:
                self._replace(start.slot, tries)
        except RayTaskError as error:
            self._remove(start.slot, f"a new one cannot open the run ({first_line(error.cause)})")
        else:
            if start.opening_since is None:
                opened = self.actors[start.slot].ready.remote()
                self._starting[opened] = _Start(start.slot, start.tries, time.monotonic())
            else:
                self._idle.append(start.slot)

    def _remove(self, slot: int, reason: str) -> None:
        end_actor(self.actors.pop(slot))
        if not self.actors:
            raise _nobody(reason)
        warnings.warn(
            f"one client actor less from now on, {len(self.actors)} go on: {reason}", RuntimeWarning, stacklevel=2
        )

    def close(self) -> None:
        """End the actors, whatever they are doing."""
        for actor in self.actors.values():
            end_actor(actor)
        self.actors.clear()
        self._idle.clear()
        self._starting.clear()


def _nobody(reason: str) -> ClusterError:
    return ClusterError(f"all client actors died, and {reason}: see `ray status` and memory, then resume the run")


def _out_of_objects(error: BaseException, attempts: int) -> ClusterError:
    """Say why the object store does not give or take what a job needs."""
    if isinstance(error, FULL):
        return store_is_full(error)
    return ClusterError(
        f"what client steps need was lost {attempts} times ({first_line(error)}): see `ray status`, then resume the run"
    )
