"""A federation made from a configuration: the pure steps that executors run.

Every process opens its own. The same arguments give the same bits in any process.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch

from rayfed_ssl.clock.schedule import Schedule
from rayfed_ssl.config.choices import CLOCK_POLICY
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.augmentation import augment
from rayfed_ssl.data.shards import ResidentShards, Shard
from rayfed_ssl.data.view_recipes import OwnView
from rayfed_ssl.engine.diagnostics import client_diagnostics, encoder_diagnostics
from rayfed_ssl.engine.gpu_memory import explain, shard_bytes
from rayfed_ssl.engine.ledger import BreakEven, LedgerEntry, account
from rayfed_ssl.engine.population import Population
from rayfed_ssl.engine.round_loop import ClientError, Evaluation, ServerError
from rayfed_ssl.engine.scoring import check_protocols, score
from rayfed_ssl.engine.task_builder import build_task
from rayfed_ssl.engine.upload_checks import check_upload
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Client, Encoder, Method, Metrics, Server
from rayfed_ssl.privacy.protection import accounted, defended, enclosed, ruled
from rayfed_ssl.randomness.seeds import SERVER, Purpose, derive_seed, generator, seeded_globally
from rayfed_ssl.training.context import cohort_size
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights


@dataclass(frozen=True)
class ClientResult:
    """Result of a client's step."""

    upload: Any
    state: Any
    metrics: Metrics
    ledger: tuple[LedgerEntry, ...]
    seconds: float


@dataclass(frozen=True)
class ServerResult:
    """Result of the server's step."""

    state: Any
    metrics: Metrics
    seconds: float


class Federation(Population):
    """A population, what it trains and by which method: the pure calls of a run.

    Attributes:
        task: Models, local training and device.
        method: The method, with what protects it and what it is defended by, of adapters where there are some.
        honest: The same where nobody is hostile, by which costs are counted.
        notes: What the run does otherwise than asked, for the user to read.
        resident: Shards that stay on a GPU.
        schedule: What `virtual_time.attach_schedule` computes; rounds keep to it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        config, dataset, shards = self.config, self.dataset, self.shards
        sizes = [len(rows) for _, rows in sorted(shards.items())]
        largest = sorted(sizes)[-cohort_size(config.clients.fraction, len(shards)) :]
        self.task = replace(build_task(config, dataset), num_clients=len(shards))
        method = defended(config, shards, dataset.train, self.task)
        self.method: Method = enclosed(config, method, largest)
        self.honest: Method = enclosed(config, ruled(config), largest)
        self.schedule: Schedule | None = None
        self.resident = ResidentShards(partial(shard_bytes, self.task.device, config.engine.gpus_per_actor))
        self.notes = (
            self.method.check(self.task, self.num_public)
            + self.task.objective.check(self.task, sizes)
            + self._data_notes()
        )

    @property
    def trained_task(self) -> Task:
        """The task as participants have it: under adapters, its models are frozen but for these."""
        return replace(self.task, adapters=self.config.model.adapters)

    def check_ready(self) -> None:
        """Raise ConfigError before a run starts or resumes if its start, protocols' data or a user's views do not fit."""
        clock, method = self.config.clock, self.method
        stale = method.averages_weights and method.takes_old_versions
        if clock is not None and not clock.policy.is_synchronous and not stale:
            raise ConfigError(
                f"clock.policy={CLOCK_POLICY.name_of(clock.policy)} moves the server's weights by single uploads, which "
                "methods that average weights have, without privacy.secure_sum and privacy.clip, and without exact or svd "
                "adapters: take fedavg, or clock.policy=synchronous"
            )
        _ = self.task.start
        if isinstance(recipe := self.task.views.first, OwnView):
            try:
                augment(torch.tensor(self.dataset.train.images[:2]), recipe, generator(0), size=self.task.size)
            except ValueError as error:
                raise ConfigError(str(error)) from error
        check_protocols(self.config.evaluation.chosen, self.config, self.task, self.dataset)

    @property
    def public_shard(self) -> Shard | None:
        """The public samples as clients see them."""
        public, device = self.public, self.task.device
        return None if public is None else self.resident.shard("public", public.images.images, public.rows, device)

    @cached_property
    def start_weights(self) -> Callable[[str], Weights]:
        """Gives the weights that an architecture starts from, drawn once."""
        return cache(self.task.initial_weights)

    def client_shard(self, client_id: int) -> Shard:
        """The samples that a client trains on."""
        train = self.dataset.train
        labels = train.labels if self.config.objective.needs_labels else None
        rows, device = self.shards[client_id], self.task.device
        return self.resident.shard(client_id, train.images, rows, device, labels, beside="public")

    @property
    def _server_public(self) -> Shard | None:
        """The public samples as the server sees them, in a set of their own."""
        if (images := self._public_images) is None:
            return None
        return self.resident.shard("public", images, np.arange(len(images)), self.task.device)

    def cohort(self, round: int) -> tuple[int, ...]:
        """Draw the fraction C of the clients that takes part in a round, at least one; the method has no say in it.

        With a schedule it is those whose uploads the round uses.
        """
        if self.schedule is not None:
            return tuple(self.schedule.contributions(round))
        rng = np.random.default_rng(derive_seed(self.config.seed, Purpose.COHORT, round=round))
        return tuple(sorted(int(i) for i in rng.choice(self.client_ids, size=self.task.cohort_size, replace=False)))

    def scheduled_epochs(self, round: int, client_id: int) -> int | None:
        """Find the local epochs that the schedule gives a client; None without one, or where it has no part in the round."""
        contributions = {} if self.schedule is None else self.schedule.contributions(round)
        return contributions[client_id].epochs if client_id in contributions else None

    def init_server(self) -> Any:
        """Make the server's state before round 1."""
        with self._seeded(0, SERVER) as random:
            try:
                return self.method.init_server(Server(0, self._server_public, self.task, random))
            except ValueError as error:
                raise ServerError(f"the server failed before round 1: {error}") from error

    def update_client(
        self, round: int, client_id: int, download: Any, state: Any | None, epochs: int | None = None
    ) -> ClientResult:
        """Run one client's step; `download` and `state` are read-only.

        Args:
            round: From 1.
            client_id: The client.
            download: What it receives.
            state: Its state; None before its first step.
            epochs: Local epochs where they are not the run's.
        """
        start = time.perf_counter()
        try:
            with self._seeded(round, client_id) as random:
                public, data = self.public_shard, self.client_shard(client_id)
                method_seed = derive_seed(self.config.seed, Purpose.METHOD, round=round, participant=client_id)
                draws = generator(method_seed)
                task = self.task if epochs is None else replace(self.task, epochs=epochs)
                client = Client(client_id, round, data, public, task, random, draws)
                previous = self.method.init_client(client) if state is None else state
                upload, next_state, metrics = self.method.update_client(download, previous, client)
                check_upload(upload, download)
        except Exception as error:
            cause = explain(error, self.config.engine.gpus_per_actor)
            raise client_error(self.config, round, client_id, cause) from error
        ledger = account(download, round, client_id, "down") + account(upload, round, client_id, "up")
        return ClientResult(upload, next_state, metrics, ledger, time.perf_counter() - start)

    def update_server(self, round: int, state: Any, uploads: Mapping[int, Any]) -> ServerResult:
        """Aggregate a round; `uploads` is in ascending client id."""
        start = time.perf_counter()
        with self._seeded(round, SERVER) as random:
            try:
                next_state, metrics = self.method.update_server(
                    state, uploads, Server(round, self._server_public, self.task, random)
                )
            except (ValueError, torch.OutOfMemoryError) as error:
                cause = error if isinstance(error, ValueError) else explain(error)
                raise ServerError(f"the server failed in round {round}: {cause}") from error
        seconds = time.perf_counter() - start
        if self.is_diagnosed(round):
            received = partial(self.method.download, state)
            metrics = metrics | client_diagnostics(
                round, received, uploads, self.config, self.task, self.dataset, self.num_public
            )
        return ServerResult(next_state, metrics, seconds)

    def is_diagnosed(self, round: int) -> bool:
        """Whether clients and encoders get diagnostics after a round: if any round does, the last one."""
        every = self.config.evaluation.diagnostics
        return bool(every) and (round % every == 0 or round == self.config.rounds)

    def break_even(self) -> BreakEven | None:
        """FLESD's Eq. 11 for this run, where representations of public data are sent."""
        if not self.method.has_break_even:
            return None
        parameters = sum(p.numel() for p in self.task.blank(self.task.encoder).encoder.parameters())
        dim = self.task.projection_dim or self.task.objective.head.dim or 0
        return BreakEven(self.num_public, dim, parameters, self.config.rounds)

    def planned_epsilon(self) -> float | None:
        """What the whole run costs if nobody drops out; None where nothing is noised."""
        budget = accounted(self.method)
        cohorts = map(self.cohort, range(1, self.config.rounds + 1))
        return None if budget is None else budget.planned_epsilon(cohorts, self.task)

    def evaluate(self, encoder: Encoder, name: str, round: int, final: bool) -> Evaluation:
        """Score an encoder with the training set's labels, which no client sees, and the test set."""
        start = time.perf_counter()
        try:
            metrics = score(encoder, self.config, self.task, self.dataset, final)
            if self.is_diagnosed(round):
                metrics = metrics | encoder_diagnostics(encoder, self.config, self.task, self.dataset)
        except ValueError as error:
            raise ServerError(f"encoder {name!r} of round {round} cannot be scored: {error}") from error
        return Evaluation(round, name, metrics, time.perf_counter() - start)

    @contextmanager
    def _seeded(self, round: int, participant: int) -> Iterator[torch.Generator]:
        """Fix the participant's generator, and the global one for dropout; the caller's global state stays as it was."""
        seed = derive_seed(self.config.seed, Purpose.DROPOUT, round=round, participant=participant)
        with seeded_globally(seed, self.task.device):
            yield generator(training_seed(self.config, round, participant))


def training_seed(config: Config, round: int, participant: int) -> int:
    """Derive the seed of one participant's step."""
    return derive_seed(config.seed, Purpose.TRAINING, round=round, participant=participant)


def client_error(config: Config, round: int, client_id: int, cause: str) -> ClientError:
    """Name the client that failed, the cause, and the command that replays its step."""
    return ClientError(
        f"client {client_id} failed in round {round} (seed {training_seed(config, round, client_id)}): {cause}; to run "
        f"this step alone and see where: rayfed-ssl replay RUN --round {round} --client {client_id}"
    )
