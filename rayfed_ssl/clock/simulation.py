"""The event loop that computes a schedule, as a pure function of its arguments."""

import heapq
import math
from array import array
from collections.abc import Sequence

import numpy as np

from rayfed_ssl.clock.devices import DAY, SECOND, Availability, Device, uniform
from rayfed_ssl.clock.policies import Policy, TaskSeconds, View
from rayfed_ssl.clock.schedule import COLUMNS, GONE, STALE, USED, Schedule, Work
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.randomness.seeds import SERVER, Purpose, derive_seed

LONGEST = 100 * 365 * 24 * 3600.0
"""Seconds of a task at most."""

TRIES = 32
"""Draws of clients that are away, after which all are looked at."""


def plan(
    policy: Policy, clients: Sequence[int], devices: Sequence[Device], work: Work, *, size: int, steps: int, seed: int
) -> Schedule:
    """Compute a run's schedule.

    Args:
        policy: The server's policy.
        clients: Ids in ascending order, of one place each in `devices` and `work`.
        devices: The clients' devices.
        work: The clients' costs.
        size: Clients of a cohort.
        steps: Server steps.
        seed: The run's; it draws cohorts as runs without a clock do.

    Raises:
        ConfigError: A task takes a hundred years, or the server never takes a step.
    """
    simulation = _Simulation(policy, clients, devices, work, size, seed)
    times = simulation.run(steps)
    columns = {name: np.frombuffer(column, dtype=np.int64) for name, column in simulation.columns.items()}
    ended = np.flatnonzero(columns["step"])
    order = ended[np.argsort(columns["step"][ended], kind="stable")]
    tasks, unfinished = {name: column[order] for name, column in columns.items()}, columns["step"] == 0
    return Schedule(policy, clients, work, tasks, times, columns["version"][unfinished])


class _Simulation:
    """The event loop: a heap of the tasks' ends, and of times at which the server looks again."""

    def __init__(
        self, policy: Policy, clients: Sequence[int], devices: Sequence[Device], work: Work, size: int, seed: int
    ) -> None:
        self.policy, self.clients, self.devices, self.seed = policy, clients, devices, seed
        self.columns = {name: array("q") for name in COLUMNS}
        self._clock_seed = derive_seed(seed, Purpose.CLOCK)
        self._availability = Availability(devices)
        self._tasks = [self._durations(place, work) for place in range(len(clients))]
        self._numbers = [0] * len(clients)
        self._idle, self._where = list(range(len(clients))), list(range(len(clients)))
        self._heap: list[tuple[int, int, int, int, int]] = []
        self._arrived: list[int] = []
        self._running: dict[int, None] = {}
        self._view = View(size)
        self._now = self._began = self._stepped = self._waiting_since = 0
        self._step = self._attempt = self._draws = self._started = 0

    def _durations(self, place: int, work: Work) -> tuple[int, int, int, int]:
        """Compute the nanoseconds of a client's download, training and upload, and choose its epochs."""
        device, samples = self.devices[place], work.samples[place]
        sample = device.sample_seconds or work.sample_flops[place] / (device.flops or math.inf)  # a device has one
        epoch, other = sample * samples, sample * work.other_samples[place]
        down, up = (
            device.latency_ms / 1000 + 8e-6 * count / mbit
            for count, mbit in ((work.down[place], device.down_mbit), (work.up[place], device.up_mbit))
        )
        if not down + other + up + epoch <= LONGEST:  # NaN, too
            raise self._too_long(place, down + other + up + epoch)
        epochs = self.policy.epochs(TaskSeconds(down + other + up, epoch), work.epochs)
        if not 1 <= epochs <= work.epochs:
            raise ConfigError(f"clock.policy must give 1 to {work.epochs} local epochs, got {epochs!r:.60}")
        train = other + epochs * epoch
        if down + train + up > LONGEST:
            raise self._too_long(place, down + train + up)
        return round(down * SECOND), round(train * SECOND), round(up * SECOND), epochs

    def _too_long(self, place: int, seconds: float) -> ConfigError:
        return ConfigError(
            f"a task of client {self.clients[place]} takes {seconds:.3g} s, more than a hundred years: raise the speed of "
            "its device"
        )

    def run(self, steps: int) -> tuple[int, ...]:
        """Simulate so many server steps; returns their times."""
        times: list[int] = []
        view, policy = self._view, self.policy
        while len(times) < steps:
            self._ask()
            if not self._heap:
                raise self._stuck("nobody is at work")
            self._now = now = self._heap[0][0]
            if now > LONGEST * SECOND:
                raise ConfigError(
                    f"server step {len(times) + 1} of {steps} comes after more than a hundred years: take faster devices, "
                    "fewer rounds or fewer epochs"
                )
            while self._heap and self._heap[0][0] == now and len(times) < steps:
                _, _, _, task, end = heapq.heappop(self._heap)
                if task >= 0:
                    self._finish(task, end)
                view.seconds = (now - self._began) / SECOND
                if policy.aggregates(view) and self._arrived:
                    self._aggregate()
                    times.append(now)
        return tuple(times)

    def _stuck(self, why: str) -> ConfigError:
        return ConfigError(
            f"clock.policy never comes to server step {self._step + 1} ({why}; {len(self._arrived)} uploads wait): lower "
            "what it waits for, as clock.policy.buffer, or take other devices"
        )

    def _ask(self) -> None:
        """Ask as many clients as the policy wants, or wait for them."""
        least, most = self.policy.asks(self._view)
        if most <= 0:
            return
        if self._view.running or self._arrived:
            for _ in range(min(most, len(self._idle))):
                if (place := self._draw()) is None:
                    if not self._view.running and self._now - self._waiting_since > 2 * DAY:
                        raise self._stuck("no other client becomes available")
                    self._wait()
                    return
                self._start(place)
            return
        places = self._availability.at(self._now)
        if len(places) < min(least, len(self.clients)):
            if self._now - self._waiting_since > 2 * DAY:
                raise ConfigError(
                    f"clock.devices: {least} clients, which server step {self._step + 1} needs, are never available at "
                    "once: lower clients.fraction, or let devices be available for longer"
                )
            self._wait()
            return
        seed = derive_seed(self.seed, Purpose.COHORT, round=self._step + 1, participant=self._attempt)
        drawn = np.random.default_rng(seed).choice(places, size=min(most, len(places)), replace=False)
        self._attempt += 1
        self._began = self._now
        for place in np.sort(drawn).tolist():
            self._start(place)
        if len(drawn) < most and not self.policy.is_synchronous:
            self._wait()
        if self.policy.timeout is not None:
            self._look_at(self._now + round(self.policy.timeout * SECOND))

    def _wait(self) -> None:
        self._look_at(self._availability.next_start(self._now))

    def _look_at(self, time: int) -> None:
        heapq.heappush(self._heap, (time, SERVER, 0, -1, 0))

    def _draw(self) -> int | None:
        """Draw one of the idle clients that are available; None if there is none."""
        for _ in range(TRIES):
            self._draws += 1
            place = self._idle[int(uniform(self._clock_seed, SERVER, self._draws) * len(self._idle))]
            if self.devices[place].window(self._now) is not None:
                return place
        idle = set(self._idle)
        places = [place for place in self._availability.at(self._now).tolist() if place in idle]
        return places[int(uniform(self._clock_seed, SERVER, self._draws) * len(places))] if places else None

    def _start(self, place: int) -> None:
        """Give a client a task, all of whose times are known now unless the server ends it."""
        client, device, now = self.clients[place], self.devices[place], self._now
        down, train, up, epochs = self._tasks[place]
        window = device.window(now)
        assert window is not None, "only available clients are asked"
        since, until = window
        number = self._numbers[place]
        self._numbers[place] += 1
        sent = now + down + train + up
        ended, end = sent, USED
        if device.failure and uniform(self._clock_seed, client, 5, number) < device.failure:
            ended, end = now + int(uniform(self._clock_seed, client, 6, number) * (sent - now)), GONE
        if ended > until:
            ended, end = int(until), GONE
        task = len(self.columns["place"])
        available = since if since > self._stepped else -1
        row = (place, number, self._step, epochs, available, now, now + down, now + down + train, sent, ended, end, 0)
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)
        heapq.heappush(self._heap, (ended, client, number, task, end))
        self._running[task] = None
        self._view.running += 1
        last, where = self._idle.pop(), self._where[place]
        if last != place:
            self._idle[where], self._where[last] = last, where
        self._started += 1
        self._waiting_since = now
        if self._started > 100 * self._view.size + 10 * len(self.clients):
            raise self._stuck(f"{self._started} tasks have begun since the last one")

    def _finish(self, task: int, end: int) -> None:
        """End a task; its client is idle again, unless its upload waits for the server."""
        del self._running[task]
        self._view.running -= 1
        self._waiting_since = self._now
        if end == USED and self.policy.accepts(self._step - self.columns["version"][task]):
            self._arrived.append(task)
            self._view.arrived += 1
        else:
            self._close(task, GONE if end == GONE else STALE)

    def _close(self, task: int, end: int) -> None:
        self.columns["end"][task], self.columns["step"][task] = end, self._step + 1
        place = self.columns["place"][task]
        self._where[place] = len(self._idle)
        self._idle.append(place)

    def _aggregate(self) -> None:
        """Take a server step; a synchronous one ends the tasks that still run."""
        for task in self._arrived:
            self._close(task, USED)
        if self.policy.is_synchronous:
            for task in self._running:
                self.columns["ended"][task] = self._now
                self._close(task, GONE)
            self._running.clear()
            self._heap.clear()
            self._view.running = 0
        self._arrived.clear()
        self._view.arrived = 0
        self._stepped = self._waiting_since = self._began = self._now
        self._step += 1
        self._attempt = self._started = 0
