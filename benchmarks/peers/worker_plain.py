"""A plain PyTorch loop: clients one after the other, a weighted mean, nothing else; clients that train on two processes."""

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.peers.meter import Meter, main
from benchmarks.peers.work import Case, Work, split
from rayfed_ssl.aggregation.weighted_mean import WeightedMean
from rayfed_ssl.trees import Weights, frozen


def train(work: Work, clients: list[int], weights: Weights, round: int, states: dict[int, torch.Tensor]) -> Any:
    """Run clients' steps and return what each sends and how long it took."""
    updates = []
    for client in clients:
        if work.case.state_megabytes:
            fresh = torch.zeros(round(work.case.state_megabytes * 1e6 / 4))
            states[client] = states[client] + 1 if client in states else fresh
        begun = time.perf_counter()
        update = work.update(weights, client, round)
        update = frozen(update) if work.case.trains else update
        updates.append((client, update, time.perf_counter() - begun))
    return updates


def help_out(case: Case, pipe: Connection) -> None:
    """Train the clients that come in."""
    work = Work(case)
    while (asked := pipe.recv()) is not None:
        round, clients, weights = asked
        pipe.send(train(work, clients, weights, round, {}))


def measure(case: Case, meter: Meter) -> None:
    """Run a case."""
    work, pipes = Work(case), []
    for _ in range(case.actors - 1 if case.trains else 0):
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        multiprocessing.get_context("spawn").Process(target=help_out, args=(case, theirs), daemon=True).start()
        pipes.append(ours)
    weights = work.initial
    states: dict[int, torch.Tensor] = {}
    for number in range(1, case.rounds + 1):
        meter.start_round()
        cohort = work.cohort(number)
        meter.note_cohort(cohort)
        mine, *shares = split(cohort, work.sizes, len(pipes) + 1)
        for pipe, share in zip(pipes, shares, strict=True):
            pipe.send((number, share, weights))
        updates = train(work, mine, weights, number, states)
        for pipe in pipes:
            updates += pipe.recv()
        mean = WeightedMean()
        for client, update, seconds in sorted(updates, key=lambda found: found[0]):
            mean.add(float(work.sizes[client]), update)
            meter.note_client(seconds)
        weights = mean.result()
    meter.finish(weights)
    for pipe in pipes:
        pipe.send(None)


if __name__ == "__main__":
    main("plain", measure)
