"""Which work goes next, and to which actor: client affinity, longest first, several items in one call."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_CALL_SECONDS = 0.01
"""Seconds of work that share a call however little is left, because a call costs about a millisecond itself."""

SHORT_SHARE = 0.02
"""An actor's share of what is left goes into one call if it takes no more seconds."""

MAX_CALL_BYTES = 1 << 27
"""Bytes that a call may return, as they are in the actor's memory until the call ends."""


@dataclass(frozen=True)
class WorkItem:
    """Work for an actor: a client's id or an encoder's name, and what is expected of it.

    `cost` is a time in any unit, `seconds` the same time if speed has been measured, `nbytes` the size of the last result.
    """

    key: Any
    cost: float = 0.0
    seconds: float | None = None
    nbytes: int = 0


def assign_clients(sizes: Mapping[int, int], num_slots: int) -> dict[int, int]:
    """Assign clients, by their samples, to slots so that all have about as many: largest first, to the emptiest."""
    loads = [(0, slot) for slot in range(num_slots)]
    assigned = {}
    for client_id in sorted(sizes, key=lambda k: (-sizes[k], k)):
        load, slot = heapq.heappop(loads)
        assigned[client_id] = slot
        heapq.heappush(loads, (load + sizes[client_id], slot))
    return assigned


def client_items(
    cohort: Iterable[int], sizes: Mapping[int, int], seconds: Mapping[int, float], sent: Mapping[int, int]
) -> list[WorkItem]:
    """Expect of a client's step the time of its last one, or before its first its shard's size at the others' speed.

    By client id, `sizes` are samples, `seconds` the duration of the last step and `sent` the bytes that it returned.
    """
    if not seconds:
        return [WorkItem(client_id, sizes[client_id]) for client_id in cohort]
    total, max_sent = sum(seconds.values()), max(sent.values())
    samples = sum(sizes[client_id] for client_id in seconds)
    items = []
    for client_id in cohort:
        last = seconds.get(client_id)
        expected = sizes[client_id] * total / samples if last is None else last
        items.append(WorkItem(client_id, expected, expected, sent.get(client_id, max_sent)))
    return items


class WorkQueue:
    """Waiting work, one queue for each slot, longest first; arguments as in `ActorPool.run`."""

    def __init__(self, items: Iterable[WorkItem], assigned: Mapping[Any, int], call_seconds: float) -> None:
        self._call_seconds = call_seconds
        self._waiting: dict[int | None, list[WorkItem]] = {}
        for item in sorted(items, key=lambda item: item.cost):
            self._waiting.setdefault(assigned.get(item.key), []).append(item)
        self._requeued: list[WorkItem] = []

    def __bool__(self) -> bool:
        return bool(self._requeued) or any(self._waiting.values())

    def requeue(self, item: WorkItem) -> None:
        """Take an item back; it goes next, and alone."""
        self._requeued.append(item)

    def drain(self) -> list[WorkItem]:
        """Take all that still waits."""
        items = self._requeued + [item for items in self._waiting.values() for item in items]
        self._requeued, self._waiting = [], {}
        return items

    def take(self, slot: int, num_slots: int) -> Sequence[WorkItem]:
        """Take an idle actor's next call: items assigned to it, else some of the slot with the most work.

        Towards the end calls get shorter, so that all actors end together.
        """
        if self._requeued:
            return [self._requeued.pop()]
        most = max(self._waiting.values(), key=lambda items: (sum(item.cost for item in items), len(items)), default=[])
        waiting = self._waiting.get(slot) or self._waiting.get(None) or most
        return self._take_call(waiting, num_slots) if waiting else []

    def _take_call(self, waiting: list[WorkItem], num_slots: int) -> Sequence[WorkItem]:
        first = waiting.pop()
        if first.seconds is None or not self._call_seconds:
            return [first]
        remaining = sum(item.seconds or 0.0 for items in self._waiting.values() for item in items) + first.seconds
        share = remaining / num_slots
        seconds_left = (
            min(self._call_seconds, max(share / 2, min(share, SHORT_SHARE), MIN_CALL_SECONDS)) - first.seconds
        )
        taken, nbytes = [first], first.nbytes
        while waiting and waiting[-1].seconds is not None and waiting[-1].seconds <= seconds_left:
            nbytes += waiting[-1].nbytes
            if nbytes > MAX_CALL_BYTES:
                break
            seconds_left -= waiting[-1].seconds
            taken.append(waiting.pop())
        return taken
