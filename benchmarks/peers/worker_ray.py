"""The floor that Ray itself sets: hand-written actors that keep their clients' states and return one sum each.

No checkpoints, no hashes, no records, no recovery: what an engine on Ray can come near to, and no faster.
"""

import logging
import time
from typing import Any

import actors  # isort: skip  # for its environment variables, which Ray reads while it is imported
import numpy as np
import ray
import torch

from benchmarks.peers.meter import Meter, main
from benchmarks.peers.work import Case, Work
from rayfed_ssl.aggregation.weighted_mean import WeightedMean
from rayfed_ssl.trees import to_torch

assert actors.RAY_ENVIRONMENT


@ray.remote(num_cpus=1)
class Clients:
    """Runs clients one after the other and adds up what they return."""

    def __init__(self, case: Case) -> None:
        self.work = Work(case)
        self.states: dict[int, np.ndarray] = {}

    def ready(self) -> None:
        """Answer when everything is loaded."""

    def no_op(self, flat: np.ndarray, clients: list[int]) -> np.ndarray:
        """Sum clients' weights, each times its samples, and change their states."""
        total = np.zeros_like(flat)
        for client in clients:
            if size := round(self.work.case.state_megabytes * 1e6 / 4):
                self.states[client] = self.states[client] + 1 if client in self.states else np.zeros(size, np.float32)
            total += flat * np.float32(self.work.sizes[client])
        return total

    def train(self, weights: dict[str, np.ndarray], client: int, round: int) -> Any:
        """Train one client."""
        begun = time.perf_counter()
        found = self.work.update(to_torch(weights), client, round)
        return {name: value.numpy() for name, value in found.items()}, time.perf_counter() - begun


def measure(case: Case, meter: Meter) -> None:
    """Run a case."""
    if not ray.is_initialized():
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    work = Work(case)
    team = [Clients.remote(case) for _ in range(case.actors)]  # type: ignore[attr-defined]
    ray.get([actor.ready.remote() for actor in team])
    if case.trains:
        train(case, meter, work, team)
    else:
        pass_on(case, meter, work, team)
    for actor in team:
        ray.kill(actor)


def pass_on(case: Case, meter: Meter, work: Work, team: list[Any]) -> None:
    """Run rounds of clients that do not train: one call and one sum per actor."""
    flat = torch.cat([value.flatten() for value in work.initial.values()]).numpy()
    home = {client: number % case.actors for number, client in enumerate(work.sizes)}
    for number in range(1, case.rounds + 1):
        meter.start_round()
        cohort = work.cohort(number)
        meter.note_cohort(cohort)
        ref = ray.put(flat)
        calls = [
            actor.no_op.remote(ref, [client for client in cohort if home[client] == index])
            for index, actor in enumerate(team)
        ]
        flat = sum(ray.get(calls)) / np.float32(sum(work.sizes[client] for client in cohort))
    meter.finish()


def train(case: Case, meter: Meter, work: Work, team: list[Any]) -> None:
    """Run rounds of clients that train: the largest first, each to the first actor that is free."""
    weights = work.initial
    for number in range(1, case.rounds + 1):
        meter.start_round()
        cohort = work.cohort(number)
        meter.note_cohort(cohort)
        ref = ray.put({name: value.numpy() for name, value in weights.items()})
        waiting = sorted(cohort, key=lambda client: (work.sizes[client], -client))
        running: dict[Any, tuple[int, Any]] = {}
        updates = {}
        idle = list(team)
        while waiting or running:
            while waiting and idle:
                client, actor = waiting.pop(), idle.pop()
                running[actor.train.remote(ref, client, number)] = client, actor
            [done], _ = ray.wait(list(running))
            client, actor = running.pop(done)
            idle.append(actor)
            updates[client] = done
        mean = WeightedMean()
        for client in sorted(updates):
            update, seconds = ray.get(updates[client])
            mean.add(float(work.sizes[client]), to_torch(update))
            meter.note_client(seconds)
        weights = mean.result()
    meter.finish(weights)


if __name__ == "__main__":
    main("ray", measure)
