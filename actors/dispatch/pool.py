"""A pool of client actors: each item is assigned to an actor, the longest goes first, and dead actors are replaced."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayTaskError

from actors.cluster.health import CHECK_INTERVAL
from actors.dispatch.calls import ActorCall, Completed, Failed, PoolRun, Submit
from actors.dispatch.queue import WorkItem, WorkQueue
from actors.dispatch.starts import READY_TIMEOUT, kill_actor
from actors.errors import (
    ACTOR_DEATHS,
    STORE_FULL,
    ClusterError,
    death_reason,
    first_line,
    is_machine_failure,
    store_full_error,
)

MAX_MACHINE_DEATHS = 20
"""Machines that may die under one item before the run ends: not the item's fault, but no progress either."""


@dataclass(frozen=True)
class _Start:
    """An actor that is being created: first waiting to be placed, then opening its data."""

    slot: int
    attempts: int
    is_placed: bool = False


class ActorPool:
    """Actors in numbered slots, all alike, that hold nothing between two calls that cannot be computed again.

    An actor that died is created again. While others live it waits to be placed for as long as it takes, because a machine
    may replace one that died; meanwhile the others do its work.

    An item is tried `attempts` times if its actor dies. `check` raises `ClusterError` if Ray is dead.

    Attributes:
        actors: The present actors by slot, without slots where new ones could not work.
        retries: Items that were run again because their actor died or their inputs were lost.
    """

    def __init__(
        self, create: Callable[[], Any], number: int, attempts: int, check: Callable[[], None] = lambda: None
    ) -> None:
        self.retries = 0
        self.actors: dict[int, Any] = {slot: create() for slot in range(number)}
        self._create, self._attempts, self._check = create, attempts, check
        self._idle = list(self.actors)
        self._starting: dict[ObjectRef[Any], _Start] = {}
        self._last_alive = time.monotonic()

    @property
    def idle(self) -> list[Any]:
        """Actors that are ready and have nothing to do."""
        return [self.actors[slot] for slot in self._idle]

    def run(
        self,
        items: Iterable[WorkItem],
        submit: Submit,
        *,
        assigned: Mapping[Any, int] | None = None,
        call_seconds: float = 0.0,
        deadline: float | None = None,
        restore_inputs: Callable[[], None] = lambda: None,
    ) -> Iterator[Completed | Failed]:
        """Run items, those that take longest first, and yield the result of each when it has one.

        `assigned` are slots by key; an item without one may go to any. Items of known duration share a call up to a sum of
        `call_seconds`. At the deadline, a time of `time.monotonic`, unfinished items fail, and the actors that run them are
        replaced; items that are done by then count, even if their results are received later. `restore_inputs` is called
        before an item is repeated whose inputs were lost with a machine.
        """
        if not self.actors:
            raise _no_actors("none is left")
        run = PoolRun(submit, WorkQueue(items, assigned or {}, call_seconds), restore_inputs)
        self._last_alive = time.monotonic()
        try:
            while True:
                if deadline is None or time.monotonic() < deadline:
                    self._dispatch(run)
                if not run.running and not run.queue:
                    return
                ended = self._wait(run, deadline)
                if ended is None:
                    yield from self._fail_late(run)
                    return
                if ended in self._starting:
                    self._continue_start(ended)
                else:
                    yield from self._results(run, ended)
        finally:
            self._idle += [call.slot for call in run.running.values()]

    def _dispatch(self, run: PoolRun) -> None:
        for slot in list(self._idle):
            items = run.queue.take(slot, len(self.actors))
            if items:
                self._idle.remove(slot)
                *refs, last = run.submit(self.actors[slot], items)
                run.running[last] = ActorCall(slot, items, refs)

    def _wait(self, run: PoolRun, deadline: float | None) -> ObjectRef[Any] | None:
        """Wait until a call ends or a new actor is ready; None at the deadline."""
        while True:
            waiting = [*run.running, *self._starting]
            timeout = CHECK_INTERVAL if deadline is None else min(CHECK_INTERVAL, max(0.0, deadline - time.monotonic()))
            ended = ray.wait(waiting, num_returns=1, timeout=timeout)[0] if waiting else []
            if ended:
                return ended[0]
            if deadline is not None and time.monotonic() >= deadline:
                return None
            self._check()
            self._check_alive(run)

    def _check_alive(self, run: PoolRun) -> None:
        """Give up the run if no actor has lived for too long."""
        if run.running or self._idle or any(start.is_placed for start in self._starting.values()):
            self._last_alive = time.monotonic()
        elif time.monotonic() > self._last_alive + READY_TIMEOUT:
            raise _no_actors(f"new ones could not be placed within {READY_TIMEOUT:g} s")

    def _results(self, run: PoolRun, last: ObjectRef[Any]) -> Iterator[Completed | Failed]:
        """Yield the results of a call that ended, or requeue its items."""
        call = run.running.pop(last)
        self._last_alive = time.monotonic()
        try:
            values = ray.get(last)
        except ObjectLostError as error:
            self._idle.append(call.slot)
            run.restore_inputs()
            yield from self._repeat(run, call, error)
        except STORE_FULL as error:
            self._idle.append(call.slot)
            yield from self._repeat(run, call, error)
        except RayTaskError as error:
            self._idle.append(call.slot)
            for item in call.items:
                yield Failed(item.key, first_line(error.cause), error.cause)
        except ACTOR_DEATHS as error:
            self._check()
            self._replace(call.slot)
            yield from self._repeat(run, call, error)
        else:
            self._idle.append(call.slot)
            yield from call.results(values)

    def _repeat(self, run: PoolRun, call: ActorCall, error: BaseException) -> Iterator[Failed]:
        """Requeue items, each to be run alone, which shows which of them killed the actor."""
        is_machine, is_alone = is_machine_failure(error), len(call.items) == 1
        for item in call.items:
            run.machine_deaths[item.key] += is_machine
            run.deaths[item.key] += is_alone and not is_machine
            if run.machine_deaths[item.key] >= MAX_MACHINE_DEATHS:
                text = f"{MAX_MACHINE_DEATHS} machines died under one step ({death_reason(error)})"
                raise ClusterError(f"{text}: see `ray status`, then resume the run")
            if run.deaths[item.key] >= self._attempts:
                if isinstance(error, STORE_FULL):
                    raise store_full_error(error)
                if not isinstance(error, ACTOR_DEATHS):
                    text = f"the inputs of client steps were lost {self._attempts} times ({first_line(error)})"
                    raise ClusterError(f"{text}: see `ray status`, then resume the run")
                text = f"its actor died in {run.deaths[item.key]} of {self._attempts} attempts ({death_reason(error)})"
                yield Failed(item.key, text, killed_actors=True)
            else:
                self.retries += 1
                run.queue.requeue(item)

    def _fail_late(self, run: PoolRun) -> Iterator[Failed]:
        for call in run.running.values():
            self._replace(call.slot)
        late = [item for call in run.running.values() for item in call.items]
        run.running.clear()
        for item in (*late, *run.queue.drain()):
            yield Failed(item.key, "it was not done in time", is_late=True)

    def _replace(self, slot: int, attempts: int = 1) -> None:
        kill_actor(self.actors[slot])  # it may only be unreachable, and must write nothing any more
        self.actors[slot] = self._create()
        self._starting[self.actors[slot].__ray_ready__.remote()] = _Start(slot, attempts)

    def _continue_start(self, ready: ObjectRef[Any]) -> None:
        """Let a new actor open its data, then give it work; or create another one if it died at once."""
        start = self._starting.pop(ready)
        try:
            ray.get(ready)
        except ACTOR_DEATHS as error:
            self._check()
            attempts = start.attempts + (not is_machine_failure(error))
            if attempts > self._attempts:
                reason = f"each of {start.attempts} new ones died while it started ({death_reason(error)})"
                self._remove(start.slot, reason)
            else:
                self._replace(start.slot, attempts)
        except RayTaskError as error:
            self._remove(start.slot, f"a new one cannot open the run ({first_line(error.cause)})")
        else:
            if start.is_placed:
                self._idle.append(start.slot)
            else:
                opened = self.actors[start.slot].ready.remote()
                self._starting[opened] = _Start(start.slot, start.attempts, is_placed=True)

    def _remove(self, slot: int, reason: str) -> None:
        kill_actor(self.actors.pop(slot))
        if not self.actors:
            raise _no_actors(reason)
        warnings.warn(
            f"the run continues with {len(self.actors)} client actors, one less: {reason}", RuntimeWarning, stacklevel=2
        )

    def close(self) -> None:
        """Kill the actors."""
        for actor in self.actors.values():
            kill_actor(actor)
        self.actors.clear()
        self._idle.clear()
        self._starting.clear()


def _no_actors(reason: str) -> ClusterError:
    return ClusterError(f"all client actors died, and {reason}: see `ray status` and memory, then resume the run")
