"""A pool of client actors: longest job first, one job at a time per actor, and a new actor for each that dies."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayTaskError

from actors.cluster import ClusterError, first_line
from actors.supervision import DEATHS, READY_TIMEOUT, why_dead


@dataclass(frozen=True)
class Job:
    """Work for one actor.

    Attributes:
        key: What the job is known by: a client's id, an encoder's name.
        submit: Calls the actor; when the last ref arrives, the job is done.
        cost: Expected time, in any unit.
    """

    key: Any
    submit: Callable[[Any], Sequence[ObjectRef[Any]]]
    cost: float = 0.0


@dataclass(frozen=True)
class Done:
    """A finished job: the value of its last ref, and the other refs."""

    key: Any
    value: Any
    refs: tuple[ObjectRef[Any], ...]


class JobError(RuntimeError):
    """A job that failed.

    Attributes:
        key: Which.
        reason: Why, in one line.
        cause: What the job raised, or None if its actor died in every attempt.
    """

    def __init__(self, key: Any, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{key}: {reason}")
        self.key, self.reason, self.cause = key, reason, cause


@dataclass(frozen=True)
class _Call:
    job: Job
    index: int
    refs: tuple[ObjectRef[Any], ...]


class ActorPool:
    """Actors that are all alike and hold nothing between two jobs.

    Args:
        make: Makes an actor.
        number: How many.
        attempts: How often a job is tried whose actor dies.

    Attributes:
        actors: The present actors.
        retries: Jobs that were run again because their actor died.
    """

    def __init__(self, make: Callable[[], Any], number: int, attempts: int) -> None:
        self.retries = 0
        self.actors = [make() for _ in range(number)]
        self._make, self._attempts = make, attempts
        self._idle = deque(range(number))
        self._starting: dict[int, tuple[ObjectRef[Any], float]] = {}

    def run(self, jobs: Iterable[Job], store_again: Callable[[], None] = lambda: None) -> Iterator[Done]:
        """Run jobs, those of highest cost first, and yield each when it is done.

        Args:
            jobs: In any order.
            store_again: Called before a job is repeated whose inputs vanished with the machine that held them.

        Raises:
            JobError: A job raised something, or its actor died in every attempt.
            ClusterError: An actor that died cannot be replaced.
        """
        waiting = deque(sorted(jobs, key=lambda job: job.cost, reverse=True))
        running: dict[ObjectRef[Any], _Call] = {}
        failures: dict[Any, int] = {}
        try:
            self._submit(waiting, running)
            while running:
                last = self._next(running)
                call = running.pop(last)
                done = self._result(call, last, failures, store_again)
                if done is None:
                    waiting.appendleft(call.job)
                self._idle.append(call.index)
                self._submit(waiting, running)
                if done is not None:
                    yield done
        finally:
            self._idle += [call.index for call in running.values()]

    def _submit(self, waiting: deque[Job], running: dict[ObjectRef[Any], _Call]) -> None:
        while waiting and self._idle:
            job, index = waiting.popleft(), self._idle.popleft()
            *refs, last = job.submit(self.actors[index])
            running[last] = _Call(job, index, tuple(refs))

    def _next(self, running: dict[ObjectRef[Any], _Call]) -> ObjectRef[Any]:
        """Wait until a call ends."""
        while True:
            ended, _ = ray.wait(list(running), num_returns=1, timeout=5)
            if ended:
                return ended[0]
            self._check_replacements()

    def _result(
        self, call: _Call, last: ObjectRef[Any], failures: dict[Any, int], store_again: Callable[[], None]
    ) -> Done | None:
        """Take the result of a call that ended; None after preparing for its repetition."""
        key = call.job.key
        try:
            return Done(key, ray.get(last), call.refs)
        except ObjectLostError as error:
            reason, repair = first_line(error), store_again
        except RayTaskError as error:
            raise JobError(key, first_line(error.cause), error.cause) from error
        except DEATHS as error:
            reason, repair = why_dead(error), lambda: self._replace(call.index)
        repair()
        failures[key] = failures.get(key, 0) + 1
        if failures[key] >= self._attempts:
            raise JobError(key, f"its actor died in {failures[key]} of {self._attempts} attempts ({reason})")
        self.retries += 1
        return None

    def _replace(self, index: int) -> None:
        self.actors[index] = self._make()
        self._starting[index] = self.actors[index].ready.remote(), time.monotonic() + READY_TIMEOUT

    def _check_replacements(self) -> None:
        """Notice new actors that find no place, for example because a machine is gone."""
        for index, (ready, deadline) in list(self._starting.items()):
            if ray.wait([ready], timeout=0)[0]:
                del self._starting[index]
            elif time.monotonic() > deadline:
                raise ClusterError(
                    f"a client actor died and found no place again within {READY_TIMEOUT:g} s: see `ray status`, then "
                    "resume the run"
                )

    def close(self) -> None:
        """End the actors, whatever they are doing."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors.clear()
        self._idle.clear()
