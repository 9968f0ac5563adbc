"""Flower's simulation on its Ray backend, one CPU for each client, so that as many actors run as the case names."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, TextIO

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.flower_client import app, case_of, work_of
from benchmarks.peers.meter import Meter
from benchmarks.peers.work import Case, read_cases

KILL_AFTER = 0.5
"""Seconds into the round after which an actor is killed."""


class Watched(FedAvg):
    """Flower's FedAvg, which notes when rounds begin and who took part."""

    def __init__(self, meter: Meter, fraction: float) -> None:
        super().__init__(fraction_train=fraction, fraction_evaluate=0.0)
        self.meter = meter
        self.asked = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin a round."""
        self.meter.start_round()
        if server_round == self.meter.case.kill:
            self.meter.kill_one("ray::ClientAppActor", KILL_AFTER)
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.asked = len(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate a round."""
        replies = list(replies)
        told = [reply.content["metrics"] for reply in replies if not reply.has_error()]
        self.meter.note_cohort((int(metrics["client"]) for metrics in told), self.asked - len(told))
        for metrics in told:
            self.meter.note_client(float(metrics["seconds"]))
        return super().aggregate_train(server_round, replies)


def run(cases: Sequence[Case], file: TextIO) -> None:
    """Run cases with the same number of clients and actors in one simulation."""
    random.seed(cases[0].seed)
    np.random.seed(cases[0].seed)  # noqa: NPY002 (as Flower's examples do)
    torch.manual_seed(cases[0].seed)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        for case in cases:
            fields: dict[str, Any] = {key: value for key, value in asdict(case).items() if value is not None}
            meter = Meter(case, "flower", file)
            result = Watched(meter, case.cohort / case.clients).start(
                grid=grid,
                initial_arrays=ArrayRecord(work_of(case_of(ConfigRecord(fields))).initial),
                num_rounds=case.rounds,
                train_config=ConfigRecord(fields),
            )
            meter.finish(result.arrays.to_torch_state_dict())

    cpus = {"num_cpus": cases[0].actors}
    run_simulation(
        server,
        app,
        num_supernodes=cases[0].clients,
        backend_config={"init_args": cpus, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


def main() -> None:
    """Measure the cases that the first argument lists; results go to the second."""
    cases, file = read_cases()
    with file:
        for _, together in groupby(cases, key=lambda case: (case.clients, case.actors)):
            run(list(together), file)


if __name__ == "__main__":
    main()
