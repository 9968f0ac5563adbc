"""Comparisons are paired: with one seed, methods see the same shards, cohorts, start, samples and views."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.method import Client, Metrics
from rayfed_ssl.methods import METHODS, FedAvg
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import digest
from tests.methods.conftest import BYOL, MOCO, Open, Tiny

PUBLIC = {
    **{name: ["public=client:0", "method.distil_batch=8"] for name in ("flesd", "flesd-cc", "feddf")},
    **{name: ["public=client:0"] for name in ("fedmd", "fedca")},
}

OBJECTIVE = {"fedu": BYOL, "fcl": MOCO}  # FedU decides about a predictor, FCL about a queue


OWN_OBJECTIVE = ("orchestra", "ssd", "fedsc", "fedsigreg", "fedx", "fedmar")
"""Methods that take an objective, with another head, that no other method is tested with."""


def open_method(open_tiny: Open, name: str, *overrides: str) -> Federation:
    return open_tiny(name, "clients.number=5", *PUBLIC.get(name, []), *OBJECTIVE.get(name, ()), *overrides)


@pytest.mark.parametrize("name", METHODS)
def test_shards_are_the_same_for_every_method(open_tiny: Open, name: str):
    expected = open_method(open_tiny, "fedavg").shards
    shards = open_method(open_tiny, name).shards
    assert set(expected) - set(shards) <= {0}  # client 0 may have given its shard as public data
    assert {k: digest(rows) for k, rows in shards.items()} == {k: digest(expected[k]) for k in shards}


@pytest.mark.parametrize("name", ["fedprox", "local"])
def test_cohorts_are_the_same_for_every_method(open_tiny: Open, name: str):
    one, other = (open_method(open_tiny, n, "clients.fraction=0.5") for n in ("fedavg", name))
    cohorts = [one.cohort(round) for round in range(1, 20)]
    assert cohorts == [other.cohort(round) for round in range(1, 20)]
    assert len(set(cohorts)) > 5
    assert set().union(*cohorts) == set(one.client_ids)


@pytest.mark.parametrize("name", METHODS)
def test_everybody_starts_from_the_same_weights(open_tiny: Open, name: str):
    """Whole models under one objective; under any other at least the same encoder."""
    ours = open_method(open_tiny, name).task.initial_weights()
    encoder = {"fedmar": ["model.encoder=vit-micro"]}.get(name, [])
    theirs = open_method(open_tiny, "fedavg", *OBJECTIVE.get(name, ()), *encoder).task.initial_weights()
    encoders = [{k: v for k, v in weights.items() if k.startswith("encoder.")} for weights in (ours, theirs)]
    assert digest(encoders[0]) == digest(encoders[1])
    assert name in OWN_OBJECTIVE or digest(ours) == digest(theirs)


def test_clients_train_on_the_same_batches_and_views_whatever_the_method(open_tiny: Open):
    """One local training, three methods: FedAvg uploads the weights that LocalOnly keeps and FLESD projects with."""
    averaged, alone, distilled = (play(open_method(open_tiny, n), 1)[0] for n in ("fedavg", "local", "flesd"))
    federation = open_method(open_tiny, "flesd")
    public = Shard.of(federation.public.images.images, federation.public.rows, "cpu")
    for client_id in alone.results:
        weights = averaged.uploads[client_id].weights
        assert digest(weights) == digest(alone.results[client_id].state.weights)
        if client_id == 0:
            continue
        upload = distilled.uploads[client_id].representations
        projected = federation.task.project(federation.task.model(weights), public)
        assert torch.equal(upload.values, projected)


def test_a_clients_step_follows_from_its_round_and_id_alone(open_tiny: Open):
    """Two clients with the same samples and the same start still draw different batches and views."""
    federation = open_method(open_tiny, "fedavg")
    federation.shards[2] = federation.shards[1]
    state = federation.init_server()
    download = federation.method.download(state, 1)
    steps = {
        (round, client_id): digest(federation.update_client(round, client_id, download, None).upload.weights)
        for round in (1, 2)
        for client_id in (1, 2)
    }
    assert len(set(steps.values())) == 4
    assert digest(federation.update_client(1, 1, download, None).upload.weights) == steps[1, 1]


@dataclass(frozen=True, kw_only=True)
class ReportsLabels(FedAvg):
    """FedAvg that reports whether it was shown labels."""

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        upload, own, metrics = super().update_client(download, state, client)
        return upload, own, metrics | {"labels": 0 if client.data.labels is None else len(client.data.labels)}


@pytest.mark.parametrize(("objective", "shown"), [("simclr", False), ("supervised", True)])
def test_a_client_is_shown_its_labels_only_if_its_objective_needs_them(tiny: Tiny, objective: str, shown: bool):
    config = tiny("fedavg", f"objective={objective}", "model.projection_dim=null")
    federation = Federation.open(config.model_copy(update={"method": ReportsLabels()}))
    for client_id, result in play(federation, 1)[0].results.items():
        assert result.metrics["labels"] == shown * len(federation.shards[client_id])


@dataclass(frozen=True)
class Recording(Shard):
    """A shard that remembers which of its samples were asked for."""

    asked: list[list[int]] = field(default_factory=list)

    def batch(self, index: torch.Tensor) -> torch.Tensor:
        self.asked.append(index.tolist())
        return super().batch(index)


def batches(federation: Federation) -> list[list[int]]:
    """Play a round, then record what client 1 trains on in the second."""
    (first,) = play(federation, 1)
    whole = Shard.of(federation.dataset.train.images, federation.shards[1], "cpu")
    data = Recording(whole.images, whole.rows)
    public = federation.public_shard
    draws = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    client = Client(1, 2, data, public, federation.task, next(draws), next(draws))
    download = federation.method.download(first.server, 1)
    federation.method.update_client(download, first.results[1].state, client)
    return data.asked[: federation.task.epochs * -(-len(data) // federation.task.batch)]


SMALL_MOCO = ("objective={name: moco, queue_size: 16}",)
SAME_SHARDS = ("public=fraction:0.3", "method.dictionary_size=8", "method.align_epochs=1")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            ("fedca", *SAME_SHARDS),
            ("fedca", *SAME_SHARDS, "method.beta=1e-9", "method.dictionary=false"),
            marks=pytest.mark.slow,
        ),
        pytest.param(("fcl", *SMALL_MOCO), ("fcl", *SMALL_MOCO, "method.neighborhood=0"), marks=pytest.mark.slow),
        pytest.param(("fcl", *SMALL_MOCO), ("fedavg", *SMALL_MOCO), marks=pytest.mark.slow),
        (("fedmd",), ("fedmd", "method.digest_epochs=2")),
        (("fedema",), ("fedavg",)),
        pytest.param(("fedfoa", "method.base=fedavg", "method.warm_up=0"), ("fedavg",), marks=pytest.mark.slow),
        (("ldawa",), ("fedprox",)),
    ],
    ids=lambda words: "-".join(words[:1] + words[-1:]) if isinstance(words, tuple) else None,
)
def test_a_methods_own_draws_leave_the_order_of_samples_alone(
    open_tiny: Open, one: tuple[str, ...], other: tuple[str, ...]
):
    recorded = [batches(open_tiny(*words, "training.epochs=3")) for words in (one, other)]
    assert recorded[0] == recorded[1]
    assert len({tuple(batch) for batch in recorded[0]}) >= 3
