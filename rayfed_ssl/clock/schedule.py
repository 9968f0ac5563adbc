"""The schedule: what every task costs, when it begins and ends, and which server step uses it."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayfed_ssl.clock.devices import SECOND
from rayfed_ssl.clock.policies import Policy
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.randomness.seeds import SERVER

Integers = npt.NDArray[np.int64]

USED, STALE, GONE = 1, 2, 3
"""How a task ends: its upload is used, comes too late for the policy, or never comes."""

KINDS = ("available", "asked", "downloaded", "trained", "uploaded", "gone", "aggregated")

SCHEDULE = pa.schema(
    [
        ("time", pa.int64()),
        ("client", pa.int32()),
        ("count", pa.int32()),
        ("event", pa.string()),
        ("step", pa.int32()),
        ("version", pa.int32()),
        ("epochs", pa.int32()),
        ("used", pa.int8()),
    ]
)

COLUMNS = ("place", "number", "version", "epochs", "available", *KINDS[1:4], "sent", "ended", "end", "step")
"""Of a task: the client's position, which of its tasks it is, the version that it starts from, times, and its step."""


@dataclass(frozen=True)
class Work:
    """What one task costs, by client.

    Attributes:
        samples: Samples of an epoch.
        sample_flops: FLOPs to train on one.
        other_samples: What a client computes beside its epochs, in samples.
        down: Bytes of a download.
        up: Bytes of an upload.
        epochs: Local epochs.
    """

    samples: Sequence[int]
    sample_flops: Sequence[float]
    other_samples: Sequence[float]
    down: Sequence[int]
    up: Sequence[int]
    epochs: int


@dataclass(frozen=True)
class Contribution:
    """An upload that a server step uses.

    Attributes:
        version: Server step whose state the client started from.
        epochs: Local epochs that it does.
        weight: What the policy makes of its staleness.
    """

    client: int
    version: int
    staleness: int
    epochs: int
    weight: float


@dataclass(frozen=True)
class Schedule:
    """A run's timeline.

    Attributes:
        clients: Ids by position.
        tasks: Tasks by column, in the order of the steps in which they end; those that no step ends are left out.
        times: When each server step happens, in nanoseconds.
        unfinished: Versions that tasks started from which no step ends.
    """

    policy: Policy
    clients: Sequence[int]
    work: Work
    tasks: dict[str, Integers]
    times: tuple[int, ...]
    unfinished: Integers

    @cached_property
    def _last_use(self) -> Integers:
        last = np.zeros(len(self.times) + 1, dtype=np.int64)
        np.maximum.at(last, self.tasks["version"], self.tasks["step"])
        last[self.unfinished] = len(self.times) + 1
        return last

    def versions_after(self, step: int) -> list[int]:
        """Find the versions before a server step from which tasks started that end after it."""
        versions: list[int] = np.flatnonzero(self._last_use[:step] > step).tolist()
        return versions

    @cached_property
    def _bounds(self) -> Integers:
        return np.searchsorted(self.tasks["step"], np.arange(1, len(self.times) + 2))

    def of_step(self, step: int) -> dict[str, Integers]:
        """Select the tasks that end in a server step, from 1."""
        part = slice(self._bounds[step - 1], self._bounds[step])
        return {name: column[part] for name, column in self.tasks.items()}

    @cached_property
    def _last_step(self) -> dict[int, dict[int, Contribution]]:
        return {}

    def contributions(self, step: int) -> dict[int, Contribution]:
        """Find the uploads that a server step uses, by client in ascending order."""
        if step not in self._last_step:
            self._last_step.clear()
            self._last_step[step] = self._contributions(step)
        return self._last_step[step]

    def _contributions(self, step: int) -> dict[int, Contribution]:
        tasks = self.of_step(step)
        found = {}
        for row in np.flatnonzero(tasks["end"] == USED):
            version = int(tasks["version"][row])
            client, staleness = self.clients[int(tasks["place"][row])], step - 1 - version
            weight = self.policy.weight(staleness)
            if not (isinstance(weight, float | int) and 0 <= weight < math.inf):
                raise ConfigError(f"clock.policy must give weights of at least 0, got {weight!r:.60}")
            found[client] = Contribution(client, version, staleness, int(tasks["epochs"][row]), weight)
        return dict(sorted(found.items()))

    def ahead_of(self, step: int) -> dict[int, int]:
        """Find the clients that work for later server steps while one waits, with the step of each.

        They started before it from a version that is there, and none has an upload in it, so that all they need is known.
        """
        tasks, first = self.tasks, self._bounds[step]
        rows = first + np.flatnonzero((tasks["version"][first:] < step) & (tasks["end"][first:] == USED))
        busy = {self.clients[place] for place in self.of_step(step)["place"]}
        found: dict[int, int] = {}
        for row in rows:
            found.setdefault(self.clients[tasks["place"][row]], int(tasks["step"][row]))
        return {client: later for client, later in found.items() if client not in busy}

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Digests of the schedule up to each server step, from 0: later steps do not change them."""
        running, digests = hashlib.sha256(b"rayfed-ssl schedule"), []
        for step in range(len(self.times) + 1):
            if step:
                running.update(np.stack([*self.of_step(step).values()]).astype("<i8").tobytes())
                running.update(self.times[step - 1].to_bytes(8, "little"))
            digests.append(running.copy().hexdigest())
        return tuple(digests)

    def metrics(self, step: int) -> dict[str, float]:
        """Give the virtual seconds until a server step, and the bytes of tasks that it ended without using them."""
        wasted = moved_bytes(self.work, tasks := self.of_step(step))[tasks["end"] != USED].sum()
        return {"virtual_seconds": self.times[step - 1] / SECOND, "wasted_bytes": float(wasted)}

    def table(self) -> pa.Table:
        """List all events in the order of time, client and the client's count of events."""
        tasks = self.tasks
        client, ended, end = np.array(self.clients, dtype=np.int64)[tasks["place"]], tasks["ended"], tasks["end"]
        chosen = {
            "available": (tasks["available"], tasks["available"] >= 0),
            "asked": (tasks["asked"], ended >= 0),
            "downloaded": (tasks["downloaded"], tasks["downloaded"] <= ended),
            "trained": (tasks["trained"], tasks["trained"] <= ended),
            "uploaded": (ended, end != GONE),
            "gone": (ended, end == GONE),
        }
        rows = []
        for kind, (times, mask) in enumerate(chosen.values()):
            used = end[mask] == USED
            parts = (tasks[name][mask] for name in ("number", "step", "version", "epochs"))
            number, step, version, epochs = parts
            rows.append(np.stack([times[mask], client[mask], number, kind + 0 * number, step, version, epochs, used]))
        steps = np.arange(1, len(self.times) + 1)
        server = [np.array(self.times), SERVER + 0 * steps, steps, KINDS.index("aggregated") + 0 * steps, steps, steps]
        rows.append(np.stack([*server, 0 * steps, 1 + 0 * steps]))
        events = np.concatenate(rows, axis=1)
        events = events[:, np.lexsort((events[3], events[2], events[1]))]  # a client's events in its own order
        first = np.flatnonzero(np.diff(events[1], prepend=-1))
        count = np.arange(events.shape[1]) - np.repeat(first, np.diff(first, append=events.shape[1]))
        order = np.lexsort((count, events[1], events[0]))
        kinds = pa.DictionaryArray.from_arrays(pa.array(events[3][order], pa.int8()), pa.array(KINDS))
        time, client, *others = (events[row][order] for row in (0, 1, 4, 5, 6, 7))
        return pa.table([time, client, count[order], kinds, *others], names=SCHEDULE.names).cast(SCHEDULE)


def moved_bytes(work: Work, tasks: dict[str, Integers]) -> Integers:
    """Count the bytes of each task's transfers that began."""
    down, up = (np.array(column, dtype=np.int64)[tasks["place"]] for column in (work.down, work.up))
    moved: Integers = down + up * (tasks["ended"] >= tasks["trained"])
    return moved


def work_time(tasks: dict[str, Integers]) -> Integers:
    """Give the nanoseconds that each task has trained for."""
    time: Integers = np.maximum(0, np.minimum(tasks["ended"], tasks["trained"]) - tasks["downloaded"])
    return time
