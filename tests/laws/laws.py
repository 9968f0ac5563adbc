"""The laws that every method obeys, as functions that raise AssertionError; `test_laws_can_fail.py` shows that they do.

Each takes a configuration whose method may be any `Method`, registered or not.
"""

import copy
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.engine.federation import ClientResult, Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.round_loop import Executor, Observer, Plan, RoundOutcome, run_rounds
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.method import Encoder
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import RunState, Stored
from rayfed_ssl.trees import digest

Make = Callable[[Federation], Executor]


@dataclass(frozen=True)
class Round:
    """One round played by hand, without an executor."""

    downloads: dict[int, Any]
    results: dict[int, ClientResult]
    uploads: dict[int, Any]
    server_before: Any
    server: Any
    metrics: dict[str, float]


def fresh(config: Config) -> Federation:
    """Open a federation as a new process does: nothing that a method kept on itself is there."""
    method = replace(config.method)
    return Federation.open(config.model_copy(update={"method": method}))


def play(
    federation: Federation, rounds: int | None = None, order: Callable[[Sequence[int]], Sequence[int]] = sorted
) -> list[Round]:
    """Play the run or its first rounds by hand; `order` is the order in which clients finish."""
    server, states, played = federation.init_server(), {}, []
    for number in range(1, (rounds or federation.config.rounds) + 1):
        cohort = federation.cohort(number)
        downloads = {client_id: federation.method.download(server, client_id) for client_id in cohort}
        results = {
            client_id: federation.update_client(number, client_id, downloads[client_id], states.get(client_id))
            for client_id in order(cohort)
        }
        uploads = {client_id: results[client_id].upload for client_id in sorted(results)}
        outcome = federation.update_server(number, server, uploads)
        played.append(Round(downloads, results, uploads, server, outcome.state, outcome.metrics))
        server, states = outcome.state, {**states, **{k: result.state for k, result in results.items()}}
    return played


@dataclass
class Trace(Observer):
    """Digests by round, and a copy of the checkpoint after every committed round."""

    directory: Path
    digests: dict[int, str] = field(default_factory=dict)
    copies: dict[int, Path] = field(default_factory=dict)
    outcomes: list[RoundOutcome] = field(default_factory=list)

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        self.copies[round - 1] = self.directory.with_name(f"{self.directory.name}-after-{round - 1}")
        shutil.copytree(self.directory, self.copies[round - 1])

    def on_round_end(self, outcome: RoundOutcome) -> None:
        self.digests[outcome.state.round] = outcome.state.sha256
        self.outcomes.append(outcome)


def simulate(config: Config, directory: Path, make: Make = LocalExecutor, start: Path | None = None) -> Trace:
    """Run the engine's own loop, from the start or from the last round that is committed in `start`."""
    federation, state = fresh(config), None
    if start is None:
        directory.mkdir(parents=True)
    else:
        shutil.copytree(start, directory)
        state = checkpoints.latest(directory)
    executor, trace = make(federation), Trace(directory)
    try:
        run_rounds(Plan(config.rounds, federation.cohort, 0, directory), executor, trace, state)
    finally:
        executor.close()
    return trace


def check_inputs_are_not_written(config: Config) -> None:
    """Steps write neither to what they are given nor to the method nor to the images."""
    federation = fresh(config)

    def everything(*given: Any) -> list[str]:
        images = digest([federation.dataset.train.images, federation.dataset.train.labels])
        return [digest(list(given)), repr(vars(federation.method)), images]

    server, states = federation.init_server(), {}
    for number in (1, 2):
        cohort, uploads = federation.cohort(number), {}
        for client_id in cohort:
            download = federation.method.download(server, client_id)
            given = (server, download, states, uploads)
            before = everything(*given)
            result = federation.update_client(number, client_id, download, states.get(client_id))
            assert everything(*given) == before, f"the step of client {client_id} in round {number} wrote to its input"
            uploads[client_id], states[client_id] = result.upload, result.state
        before = everything(server, uploads, states)
        after = federation.update_server(number, server, uploads).state
        federation.method.encoders(after, states)
        assert everything(server, uploads, states) == before, f"the server's step of round {number} wrote to its input"
        server = after


def check_seed_decides(config: Config, whole: Trace, played: list[Round]) -> None:
    """One seed, one result in every round, with or without executor and files; another seed, another result."""
    assert len(whole.digests) == config.rounds
    assert state_digests(played) == whole.digests, "two runs with one seed differ"
    other = state_digests(play(fresh(config.model_copy(update={"seed": config.seed + 1}))))
    assert not set(other.values()) & set(whole.digests.values()), "another seed gives the same state"


def state_digests(played: list[Round]) -> dict[int, str]:
    """Digest what `play` gave as the engine digests a run, by round."""
    states: dict[int, Stored] = {}
    digests = {}
    for number, round in enumerate(played, 1):
        states = {**states, **{k: Stored("", digest(result.state)) for k, result in round.results.items()}}
        digests[number] = RunState(number, Stored("", digest(round.server)), states).sha256
    return digests


def check_resume(config: Config, whole: Trace, directory: Path) -> None:
    """Going on after any committed round gives the states of the undisturbed run."""
    assert sorted(whole.copies) == list(range(config.rounds))
    for number, copied in whole.copies.items():
        resumed = simulate(config, directory / f"resumed-{number}", start=copied).digests
        expected = {round: value for round, value in whole.digests.items() if round > number}
        assert resumed == expected, f"resuming after round {number} gives other states"


def check_order(config: Config, played: list[Round]) -> None:
    """The order in which clients finish changes neither uploads nor states nor the server."""
    backwards = play(fresh(config), order=lambda cohort: sorted(cohort, reverse=True))
    for round, expected in zip(backwards, played, strict=True):
        for client_id, result in expected.results.items():
            got = round.results[client_id]
            assert digest(got.upload) == digest(result.upload), f"client {client_id} uploads something else"
            assert digest(got.state) == digest(result.state), f"client {client_id} remembers something else"
        assert digest(round.server) == digest(expected.server), "the server's state depends on the order"


def check_dropout(config: Config, played: list[Round]) -> None:
    """Whoever is missing, the server aggregates the others to another result, and the next round runs."""
    federation, first = fresh(config), played[0]
    assert len(first.uploads) > 1
    missing = max(first.uploads)
    uploads = {client_id: upload for client_id, upload in first.uploads.items() if client_id != missing}
    after = federation.update_server(1, first.server_before, uploads).state
    assert digest(after) != digest(first.server), "the server does not look at uploads"
    states = {client_id: first.results[client_id].state for client_id in uploads}
    check_weights_are_finite(federation.method.encoders(after, states))
    federation.update_client(2, missing, federation.method.download(after, missing), None)


class OnceLazily(Mapping[int, Any]):
    """Uploads as an executor gives them: read one by one, in ascending id, once; counts how many are in use."""

    def __init__(self, uploads: Mapping[int, Any]) -> None:
        self._uploads, self.reads, self.alive, self.most = uploads, [], 0, 0

    def __getitem__(self, client_id: int) -> Any:
        self.reads.append(client_id)
        return copy.deepcopy(self._uploads[client_id])

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._uploads))

    def __len__(self) -> int:
        return len(self._uploads)


def check_uploads_are_folded(config: Config, played: list[Round]) -> None:
    """The server reads each upload at most once, in ascending id, and gets the same result from a lazy mapping."""
    lazy = OnceLazily(played[0].uploads)
    lazily = fresh(config).update_server(1, played[0].server_before, lazy).state
    assert digest(lazily) == digest(played[0].server), "a lazy mapping gives another result"
    assert lazy.reads == sorted(set(lazy.reads)), f"uploads were read as {lazy.reads}"


def check_randomness_is_the_engines(config: Config, played: list[Round]) -> None:
    """Steps neither use nor move the process's own generators."""
    torch.manual_seed(4711)
    random.seed(4711)
    np.random.seed(4711)  # noqa: NPY002
    before = _global_randomness()
    (again,) = play(fresh(config), 1)
    assert _global_randomness() == before, "a step moved a global generator"
    assert digest(again.uploads) == digest(played[0].uploads), "a client's step depends on a global generator"
    assert digest(again.server) == digest(played[0].server), "the server's step depends on a global generator"


def _global_randomness() -> str:
    return repr((torch.random.get_rng_state().tolist(), random.getstate(), np.random.get_state()))  # noqa: NPY002


def check_cohorts(config: Config, whole: Trace) -> None:
    """The fraction C trains in each round, drawn from all clients; only who trains changes its state."""
    federation = fresh(config)
    size = max(1, int(config.clients.fraction * len(federation.client_ids) + 0.5))
    before: Mapping[int, Any] = {}
    for outcome in whole.outcomes:
        trained = [report.client for report in outcome.clients]
        assert trained == sorted(federation.cohort(outcome.state.round))
        assert len(set(trained)) == size
        assert set(trained) <= set(federation.client_ids)
        after = outcome.state.clients
        assert set(after) == set(before) | set(trained)
        for client_id in set(before) - set(trained):
            assert after[client_id] == before[client_id], f"client {client_id} did not train and changed"
        before = after


def check_loss_falls(config: Config) -> None:
    """Local training and distillation lower their losses.

    A queue of negatives starts with random directions, which are told from anything at once: while keys replace them the
    loss rises. So there it must fall in every participation of a client but the first.
    """
    has_queue = "queue" in config.objective.parts
    trained: set[int] = set()
    for played in play(fresh(config), 2 if has_queue else 1):
        for client_id, result in played.results.items():
            if client_id in trained or not has_queue:
                fell = result.metrics["loss"] < result.metrics["loss_first"]
                assert fell, f"the loss of client {client_id} does not fall"
            trained.add(client_id)
        if "distil_loss" in played.metrics:
            assert played.metrics["distil_loss"] < played.metrics["distil_loss_first"], (
                "the distillation loss does not fall"
            )


def check_weights_are_finite(encoders: Mapping[str, Encoder]) -> None:
    """Every weight of every encoder is finite."""
    assert encoders, "the method shows no encoder"
    for name, encoder in encoders.items():
        for key, value in encoder.weights.items():
            assert bool(value.isfinite().all()), f"{name}: {key} is not finite"


def check_encoders(config: Config, played: list[Round], least: float) -> None:
    """Final encoders are finite and not collapsed: their features' spread is above a bound."""
    federation = fresh(config)
    states = {client_id: result.state for round in played for client_id, result in round.results.items()}
    encoders = federation.method.encoders(played[-1].server, states)
    check_weights_are_finite(encoders)
    for name, encoder in encoders.items():
        spread = spread_of_features(federation, encoder)
        assert spread > least, f"{name} is collapsed: its features deviate by {spread:.4f} / sqrt(d)"


def spread_of_features(federation: Federation, encoder: Encoder) -> float:
    """Mean deviation of the test images' normalized features, times sqrt(d).

    It is 1 for unit vectors spread evenly over a sphere, and 0 for an encoder that gives every image the same features.
    """
    task = federation.task
    features = extract_features(
        task.model(encoder.weights, encoder.architecture).encoder,
        federation.dataset.test.images,
        lambda images: normalize(images, task.views.first),
        device=task.device,
        precision=task.precision,
    )
    features = F.normalize(features, dim=1)
    return float(features.std(dim=0).mean()) * features.shape[1] ** 0.5
