"""Which job goes next, and to whom: homes of clients, longest first, several in one call."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHORT = 0.01
"""Seconds of work that go in one call however little is left, because a call costs about a millisecond itself."""


CALL_BYTES = 1 << 27
"""Bytes that the jobs of a call may give back together, as they lie in the actor's memory until the call ends."""


@dataclass(frozen=True)
class Job:
    """Work for an actor.

    Attributes:
        key: What the job is known by: a client's id, an encoder's name.
        cost: Expected time, in any unit.
        seconds: The same in seconds, where speed has been measured.
        nbytes: What it gave back when it was last run.
    """

    key: Any
    cost: float = 0.0
    seconds: float | None = None
    nbytes: int = 0


def settle(sizes: Mapping[int, int], num_slots: int) -> dict[int, int]:
    """Give every client a home so that all slots hold about as many samples: largest first, to the emptiest slot.

    Args:
        sizes: Samples by client id.
        num_slots: Number of actors.

    Returns:
        Slots by client id.
    """
    load = [(0, slot) for slot in range(num_slots)]
    homes = {}
    for client_id in sorted(sizes, key=lambda k: (-sizes[k], k)):
        held, slot = heapq.heappop(load)
        homes[client_id] = slot
        heapq.heappush(load, (held + sizes[client_id], slot))
    return homes


def expect(
    cohort: Iterable[int], sizes: Mapping[int, int], seconds: Mapping[int, float], sent: Mapping[int, int]
) -> list[Job]:
    """Take a client's last step for its next, and before its first the shard's size at the others' speed.

    Args:
        cohort: Whose steps.
        sizes: Samples by client id.
        seconds: What the last step took, by id of those that have had one.
        sent: Bytes that it gave back.
    """
    if not seconds:
        return [Job(client_id, sizes[client_id]) for client_id in cohort]
    total, most = sum(seconds.values()), max(sent.values())
    samples = sum(sizes[client_id] for client_id in seconds)
    jobs = []
    for client_id in cohort:
        own = seconds.get(client_id)
        expected = sizes[client_id] * total / samples if own is None else own
        jobs.append(Job(client_id, expected, expected, sent.get(client_id, most)))
    return jobs


class Queues:
    """Jobs that wait, one queue for each home, longest first.

    Args:
        jobs: In any order.
        homes: Slots by key; a job without one waits for anybody.
        call_seconds: Up to this sum, jobs of known length go in one call.
    """

    def __init__(self, jobs: Iterable[Job], homes: Mapping[Any, int], call_seconds: float) -> None:
        self.homes, self._call_seconds = homes, call_seconds
        self._waiting: dict[int | None, list[Job]] = {}
        for job in sorted(jobs, key=lambda job: job.cost):
            self._waiting.setdefault(homes.get(job.key), []).append(job)
        self._alone: list[Job] = []

    def __bool__(self) -> bool:
        return bool(self._alone) or any(self._waiting.values())

    def put_back(self, job: Job) -> None:
        """Take a job back; it goes next, and alone."""
        self._alone.append(job)

    def rest(self) -> list[Job]:
        """Take all that still waits."""
        rest = self._alone + [job for jobs in self._waiting.values() for job in jobs]
        self._alone, self._waiting = [], {}
        return rest

    def take(self, slot: int, num_slots: int) -> Sequence[Job]:
        """Take an idle actor's next call: jobs that wait at home, else the longest from where most waits.

        Args:
            slot: The actor's.
            num_slots: How many share the work: towards the end calls get shorter, so that all end together.
        """
        if self._alone:
            return [self._alone.pop()]
        at_home = self._waiting.get(slot) or self._waiting.get(None)
        if at_home:
            return self._several(at_home, num_slots)
        waiting = [jobs for jobs in self._waiting.values() if jobs]
        fullest = max(waiting, key=lambda jobs: sum(job.cost for job in jobs), default=[])
        return [fullest.pop()] if fullest else []

    def _several(self, waiting: list[Job], num_slots: int) -> Sequence[Job]:
        taken = [waiting.pop()]
        if taken[0].seconds is None or not self._call_seconds:
            return taken
        left = sum(job.seconds or 0.0 for jobs in self._waiting.values() for job in jobs) + taken[0].seconds
        room = min(self._call_seconds, max(SHORT, left / (2 * num_slots))) - taken[0].seconds
        nbytes = taken[0].nbytes
        while waiting and waiting[-1].seconds is not None and waiting[-1].seconds <= room:
            nbytes += waiting[-1].nbytes
            if nbytes > CALL_BYTES:
                break
            room -= waiting[-1].seconds
            taken.append(waiting.pop())
        return taken
