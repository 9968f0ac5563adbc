"""Small runs of one method, each made once, that the laws look at."""

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import ClientResult, Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.round_loop import Executor, Observer, RoundOutcome, RunPlan, run_rounds
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.method import Client, Method, Server
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import RunState, Stored
from rayfed_ssl.trees import digest, leaves, map_leaves


@dataclass(frozen=True)
class Round:
    """One round played without an executor."""

    downloads: dict[int, Any]
    results: dict[int, ClientResult]
    uploads: dict[int, Any]
    server_before: Any
    server: Any
    metrics: dict[str, float]


def open_afresh(config: Config) -> Federation:
    """Open a federation as a new process does: nothing that a method kept on itself is there."""
    method: Any = config.method
    return Federation.open(config.model_copy(update={"method": replace(method)}))


def play(
    federation: Federation, rounds: int | None = None, order: Callable[[Sequence[int]], Sequence[int]] = sorted
) -> list[Round]:
    """Play a run or its first rounds without an executor; `order` is the order in which clients finish."""
    engine, played = federation.config.engine, list[Round]()
    states: dict[int, Any] = {}
    with compute_threads(engine.server_threads):
        server = federation.init_server()
    for number in range(1, (rounds or federation.config.rounds) + 1):
        cohort = federation.cohort(number)
        downloads = {client_id: federation.method.download(server, client_id) for client_id in cohort}
        with compute_threads(engine.threads):
            results = {
                client_id: federation.update_client(number, client_id, downloads[client_id], states.get(client_id))
                for client_id in order(cohort)
            }
        uploads = {client_id: results[client_id].upload for client_id in sorted(results)}
        with compute_threads(engine.server_threads):
            outcome = federation.update_server(number, server, uploads)
        played.append(Round(downloads, results, uploads, server, outcome.state, outcome.metrics))
        server, states = outcome.state, {**states, **{k: result.state for k, result in results.items()}}
    return played


def state_digests(played: Sequence[Round]) -> dict[int, str]:
    """Digest rounds as the engine digests them."""
    states: dict[int, Stored] = {}
    digests = {}
    for number, round in enumerate(played, 1):
        states = {**states, **{k: Stored("", digest(result.state)) for k, result in round.results.items()}}
        digests[number] = RunState(number, Stored("", digest(round.server)), states).sha256
    return digests


@dataclass
class Trace(Observer):
    """The outcome of each round of the engine's own loop."""

    outcomes: list[RoundOutcome] = field(default_factory=list)

    @property
    def digests(self) -> dict[int, str]:
        """Digest of the run's state after each round."""
        return {outcome.state.round: outcome.state.sha256 for outcome in self.outcomes}

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Append the outcome."""
        self.outcomes.append(outcome)


def simulate(
    config: Config, directory: Path, make: Callable[[Federation], Executor] = LocalExecutor, last: int | None = None
) -> Trace:
    """Run the engine's own loop from the last checkpoint in the directory, if there is one, to a round."""
    directory.mkdir(parents=True, exist_ok=True)
    federation, trace = open_afresh(config), Trace()
    state = checkpoints.latest(directory) if any(directory.iterdir()) else None
    executor = make(federation)
    try:
        run_rounds(RunPlan(config.rounds, federation.cohort, 0, directory, until=last), executor, trace, state)
    finally:
        executor.close()
    return trace


STEPS = ("init_server", "init_client", "download", "update_client", "update_server", "encoders")
"""The functions of a method that are its steps."""


class WatchedMethod:
    """A method that notes which of its steps write to their inputs, to the method or to global generators.

    Attributes:
        written: What was written to, one sentence each.
        moved: Which steps moved a global generator.
    """

    def __init__(self, method: Method, federation: Federation) -> None:
        self._method, self._images = method, federation.dataset.train.images
        task = federation.task
        encoders = {task.encoder, *task.client_encoders}
        self._draws = any(isinstance(layer, nn.Dropout) for name in encoders for layer in task.blank(name).modules())
        self.written: list[str] = []
        self.moved: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._method, name)
        return partial(self._watched, name, value) if name in STEPS else value

    def _watched(self, name: str, step: Callable[..., Any], *inputs: Any) -> Any:
        def facts() -> dict[str, str]:
            trees = [value for value in inputs if not isinstance(value, Client | Server)]
            return {"its input": digest(trees), "the method": repr(vars(self._method)), "images": digest(self._images)}

        where = " ".join([name, *(_place(value) for value in inputs if isinstance(value, Client | Server))])
        before, generators = facts(), global_generators(self._draws)
        result = step(*inputs)
        self.written += [f"{where} writes to {fact}" for fact, value in facts().items() if value != before[fact]]
        if global_generators(self._draws) != generators:
            self.moved.append(where)
        return result


def _place(where: Client | Server) -> str:
    client = f"of client {where.id} " if isinstance(where, Client) else ""
    return f"{client}in round {where.round}"


def global_generators(without_torch: bool) -> str:
    """Describe the state of the process's own generators; layers of dropout draw from torch's."""
    numpy = np.random.get_state()  # noqa: NPY002
    return repr((random.getstate(), numpy, None if without_torch else digest(torch.random.get_rng_state())))


class UploadsInUse:
    """Counts uploads whose numbers are in use at the same time.

    Attributes:
        most: The largest count so far, without the fields that a method may hold.
    """

    def __init__(self, held: Sequence[str]) -> None:
        self._held = set(held)
        self._storages: list[list[StorageWeakRef]] = []
        self.most = 0

    def add(self, upload: Any) -> None:
        """Follow a new upload."""
        counted = [leaf for path, leaf in leaves(upload) if not self._held & set(path.split("/"))]
        # A storage lives as long as any tensor on its memory.
        self._storages.append([StorageWeakRef(t.untyped_storage()) for t in counted if isinstance(t, Tensor)])
        self.most = max(self.most, sum(not all(ref.expired() for ref in refs) for refs in self._storages))


class LazyUploads(Mapping[int, Any]):
    """Many uploads, each copied when it is asked for.

    Attributes:
        reads: Ids in the order in which they were read.
        in_use: Counts how many copies are in use at once.
    """

    def __init__(self, uploads: Sequence[Any], number: int, held: Sequence[str]) -> None:
        self._uploads, self._number = uploads, number
        self.reads: list[int] = []
        self.in_use = UploadsInUse(held)

    def __getitem__(self, client_id: int) -> Any:
        self.reads.append(client_id)
        stored = self._uploads[client_id % len(self._uploads)]
        upload = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, stored)
        self.in_use.add(upload)
        return upload

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._number))

    def __len__(self) -> int:
        return self._number


class Trial:
    """A configuration and the runs that laws look at, each made when a law first asks for it.

    Attributes:
        config: Its method may be any `Method`, registered or not.
        loss_epochs: Local epochs in which losses must fall; a queue longer than a shard needs more.
    """

    def __init__(self, config: Config, loss_epochs: int = 6) -> None:
        self.config, self.loss_epochs = config, loss_epochs

    @cached_property
    def federation(self) -> Federation:
        """A federation to make steps in."""
        return open_afresh(self.config)

    @cached_property
    def watched(self) -> tuple[WatchedMethod, list[Round]]:
        """The whole run, its steps watched, and the rounds."""
        federation = open_afresh(self.config)
        method = WatchedMethod(federation.method, federation)
        federation.method = cast(Method, method)
        played = play(federation)
        method.encoders(played[-1].server, self.states(played))
        return method, played

    @property
    def played(self) -> list[Round]:
        """The rounds of the whole run."""
        return self.watched[1]

    @cached_property
    def again(self) -> list[Round]:
        """The whole run once more, as it was, a little later."""
        return play(open_afresh(self.config))

    @cached_property
    def backwards(self) -> list[Round]:
        """The whole run, clients finishing in the other order, after other draws from global generators."""
        random.seed(4711)
        np.random.seed(4711)  # noqa: NPY002
        return play(open_afresh(self.config), order=lambda cohort: sorted(cohort, reverse=True))

    @cached_property
    def resumed(self) -> Trace:
        """The whole run by the engine's own loop, stopped and resumed from its checkpoint after every round."""
        trace = Trace()
        with tempfile.TemporaryDirectory() as directory:
            for last in range(1, self.config.rounds + 1):
                trace.outcomes += simulate(self.config, Path(directory) / "run", last=last).outcomes
        return trace

    @staticmethod
    def states(played: Sequence[Round]) -> dict[int, Any]:
        """Collect clients' last states."""
        return {client_id: result.state for round in played for client_id, result in round.results.items()}
