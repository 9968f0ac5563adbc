"""The work that every system does: one federation, one model, one training step, and one way to measure them.

Every environment imports this module and `rayfed_ssl`, which needs no Ray, so clients, shards, cohorts, seeds and
arithmetic are the same whoever drives them.
"""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO

import torch

from benchmarks.peers import extension
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation, training_seed
from rayfed_ssl.models import Model
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.trees import Weights


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement: what is federated, for how many rounds.

    Attributes:
        bench: "B1" and so on.
        name: Which of the bench's cases.
        data: Directory of CIFAR-10's Parquet files.
        clients: K.
        cohort: Clients in a round.
        samples: Images of all clients together.
        rounds: Rounds, with those that only warm up.
        warm: Rounds at the start that do not count.
        megabytes: Size of the model where clients do not train; 0 where they train SimCLR.
        state_megabytes: What each client remembers and changes in every round; only where clients do not train.
        noise: Whether clients that do not train return seeded noise instead of what they received.
        epochs: E_local of SimCLR.
        batch: Samples a step.
        sigma: Of the logarithm of the shards' sizes; 0 makes them equal.
        actors: Processes that run clients.
        seed: The run's seed.
        own_cohorts: Whether a system draws cohorts with a sampler of its own even if it would take rayfed-ssl's.
        kill: Round in which one of the processes that run clients is killed; 0 means never.
        directory: Where a system may keep what it writes; None makes a temporary one.
    """

    bench: str
    name: str
    data: str
    clients: int = 100
    cohort: int = 20
    samples: int = 6400
    rounds: int = 3
    warm: int = 1
    megabytes: float = 0.0
    state_megabytes: float = 0.0
    noise: bool = False
    epochs: int = 5
    batch: int = 32
    sigma: float = 0.0
    actors: int = 2
    seed: int = 0
    own_cohorts: bool = False
    kill: int = 0
    directory: str | None = None

    @property
    def trains(self) -> bool:
        """Whether clients train SimCLR."""
        return not self.megabytes

    def config(self) -> Config:
        """Say the same as a configuration of rayfed-ssl."""
        method = "method=fedavg"
        if not self.trains:
            fields = f"megabytes: {self.megabytes}, state_megabytes: {self.state_megabytes}, noise: {self.noise}"
            method = f"method={{name: {extension.__name__}:NoOp, {fields}}}"
        log_normal = f"{{name: {extension.__name__}:log_normal, sigma: {self.sigma}}}"
        partition = f"partition={log_normal if self.sigma else 'iid'}"
        return Config.load(
            "fedsimclr",
            method,
            "data.name=parquet",
            f"data.path={self.data}",
            f"data.train_limit={self.samples}",
            "data.test_limit=200",
            partition,
            f"clients.number={self.clients}",
            f"clients.fraction={self.cohort / self.clients}",
            f"rounds={self.rounds}",
            f"training.epochs={self.epochs}",
            f"training.batch={self.batch}",
            "training.views=flesd-cifar",
            "training.optimizer=adam",
            f"seed={self.seed}",
            f"engine.actors={self.actors}",
            f"engine.cpus_per_actor={min(1.0, (os.cpu_count() or 1) / self.actors)}",
            "engine.device=cpu",
        )


class Work:
    """A case's federation and its clients' step, for systems other than rayfed-ssl."""

    def __init__(self, case: Case) -> None:
        torch.set_num_threads(1)
        self.case = case
        self.federation = Federation.open(case.config())
        self._model: Model | None = None

    @property
    def sizes(self) -> dict[int, int]:
        """Count each client's samples."""
        return {client: len(rows) for client, rows in self.federation.shards.items()}

    def cohort(self, round: int) -> tuple[int, ...]:
        """Name the clients of a round, as rayfed-ssl draws them."""
        return self.federation.cohort(round)

    @cached_property
    def initial(self) -> Weights:
        """The weights before round 1."""
        if self.case.trains:
            return self.federation.task.initial_weights()
        return extension.weights_of(self.case.megabytes)

    def model(self, weights: Weights) -> Model:
        """Load weights into the model that this process keeps."""
        if self._model is None:
            self._model = self.federation.task.model(weights)
        else:
            self._model.load_state_dict(weights)
        return self._model

    def fit(self, model: Model, client: int, round: int) -> None:
        """Take a client's training steps in place."""
        federation, task = self.federation, self.federation.task
        shard = Shard.of(federation.dataset.train.images, federation.shards[client], task.device)
        draws = generator(training_seed(federation.config, round, client))
        task.fit(model, shard, draws, round=round)

    def update(self, weights: Weights, client: int, round: int) -> Weights:
        """Run a client's step; the result may share memory with the model that this process keeps."""
        if not self.case.trains:
            return extension.noisy(weights, client, round) if self.case.noise else weights
        model = self.model(weights)
        self.fit(model, client, round)
        return {name: value.detach() for name, value in model.state_dict().items()}


def split(cohort: Iterable[int], sizes: dict[int, int], parts: int) -> list[list[int]]:
    """Share clients out, the largest first to whoever has least, each share in ascending id."""
    shares: list[list[int]] = [[] for _ in range(parts)]
    for client in sorted(cohort, key=lambda client: (-sizes[client], client)):
        min(shares, key=lambda share: sum(sizes[other] for other in share)).append(client)
    return [sorted(share) for share in shares]


def read_cases() -> tuple[list[Case], TextIO]:
    """Read the cases that the first argument, a JSON file, lists, and open the second for results, line by line."""
    cases, out = (Path(argument) for argument in sys.argv[1:3])
    return [Case(**fields) for fields in json.loads(cases.read_text())], out.open("a")
