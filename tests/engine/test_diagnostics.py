"""Diagnostics during a run: when they are made, of what, and that nothing of the run changes by them."""

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.image_store import Dataset
from rayfed_ssl.engine.diagnostics import (
    CLIENT_SAMPLES,
    COMPARED_CLIENTS,
    client_diagnostics,
    compare_features,
    encoder_diagnostics,
    model_content,
    update_of,
)
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.evaluation.representation_metrics import relation_distance
from rayfed_ssl.method import Encoder
from rayfed_ssl.runs import run
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest, map_leaves

Tiny = Callable[..., Config]
Open = Callable[..., Federation]

OF_ENCODER = {"diag_feature_std", "diag_effective_rank", "diag_alignment", "diag_uniformity"}
ANGLES = {"diag_angle_lower", "diag_angle_upper"}


def spread(*names: str) -> set[str]:
    return {f"diag_{name}{suffix}" for name in names for suffix in ("", "_min", "_max")}


DRIFT, FEATURES = spread("update_norm", "update_cosine"), spread("cka", "neighbors", "angle") | ANGLES


def compare(federation: Federation, round: Round, uploads: Mapping[int, Any] | None = None) -> dict[str, float]:
    return client_diagnostics(
        1,
        partial(federation.method.download, round.server_before),
        round.uploads if uploads is None else uploads,
        federation.config,
        federation.task,
        federation.dataset,
        federation.num_public,
    )


def last(federation: Federation, rounds: int = 1) -> Round:
    return play(federation, rounds)[-1]


@pytest.fixture(scope="module")
def averaging(tiny: Tiny) -> Federation:
    return Federation.open(tiny("fedavg", "clients.number=4"))


@pytest.fixture(scope="module")
def averaged(averaging: Federation) -> Round:
    return last(averaging)


@pytest.mark.parametrize("name", ["fedavg", "fedfoa"])
def test_a_runs_states_are_the_same_bits_with_diagnostics(tiny: Tiny, name: str, tmp_path: Any):
    plain = run(tiny(name), tmp_path / "plain")
    looked = run(tiny(name, "evaluation.diagnostics=1"), tmp_path / "looked")
    assert looked.state_sha256 == plain.state_sha256
    assert looked.scores == plain.scores
    assert {row["name"] for row in plain.record.metrics} < {row["name"] for row in looked.record.metrics}
    named = {(row["round"], row["participant"]) for row in looked.record.metrics if row["name"].startswith("diag_")}
    assert {(1, "server"), (2, "server")} < named
    assert not any(row["name"].startswith("diag_") for row in plain.record.metrics)


@pytest.mark.parametrize(("every", "expected"), [(0, []), (1, [1, 2, 3]), (2, [2, 3]), (5, [3])])
def test_diagnostics_are_due_every_so_many_rounds_and_at_the_end(open_tiny: Open, every: int, expected: list[int]):
    federation = open_tiny("fedavg", "rounds=3", f"evaluation.diagnostics={every}")
    assert [round for round in (1, 2, 3) if federation.is_diagnosed(round)] == expected


def look(federation: Federation, encoder: Encoder, dataset: Dataset | None = None) -> dict[str, float]:
    return encoder_diagnostics(encoder, federation.config, federation.task, dataset or federation.dataset)


def test_diagnostics_draw_from_no_generator_write_nothing_and_read_no_label(averaging: Federation, averaged: Round):
    encoder = averaging.method.encoders(averaged.server, {})["global"]
    before = torch.get_rng_state(), digest([averaged, encoder])
    compare(averaging, averaged)
    metrics = look(averaging, encoder)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert digest([averaged, encoder]) == before[1]
    test = averaging.dataset.test
    unlabeled = replace(averaging.dataset, test=replace(test, labels=np.full(len(test), -1)))
    assert metrics == look(averaging, encoder) == look(averaging, encoder, unlabeled)
    assert set(metrics) == OF_ENCODER
    assert 0 < metrics["diag_feature_std"] < 1
    assert 1 < metrics["diag_effective_rank"] < 60  # test images
    assert 0 < metrics["diag_alignment"] < 4
    assert -8 < metrics["diag_uniformity"] < 0


def collapsed(federation: Federation) -> Encoder:
    """An encoder whose last layer gives one and the same feature for every image."""
    weights = federation.task.initial_weights()
    model = federation.task.model(weights).encoder
    *_, (name, _) = [(name, value) for name, value in model.named_parameters() if value.ndim == 1]
    silent = {f"encoder.{key}" for key in dict(model.named_parameters()) if key.split(".")[0] == name.split(".")[0]}
    return Encoder("cnn", {key: torch.zeros_like(value) if key in silent else value for key, value in weights.items()})


def test_a_collapsed_encoder_gives_numbers_and_a_diverged_one_an_error(averaging: Federation):
    expected = {"diag_feature_std": 0, "diag_effective_rank": 1, "diag_uniformity": 0, "diag_alignment": 0}
    assert look(averaging, collapsed(averaging)) == pytest.approx(expected, abs=1e-3)  # float32 features
    weights = {name: value * math.nan for name, value in averaging.task.initial_weights().items()}
    with pytest.raises(ValueError, match="not finite: the encoder diverged"):
        look(averaging, Encoder("cnn", weights))


def test_updates_are_measured_over_trained_parameters(averaging: Federation, averaged: Round):
    metrics, norms, vectors = compare(averaging, averaged), [], []
    assert set(metrics) == DRIFT | FEATURES
    for name in ("update_norm", "update_cosine", "cka", "neighbors", "angle"):
        assert metrics[f"diag_{name}_min"] < metrics[f"diag_{name}"] < metrics[f"diag_{name}_max"]
    assert metrics["diag_angle_lower"] < metrics["diag_angle"] < metrics["diag_angle_upper"]
    trained = [name for name, _ in averaging.task.model(averaging.task.initial_weights()).named_parameters()]
    for client_id, upload in averaged.uploads.items():
        before = averaged.downloads[client_id].weights
        vectors.append(torch.cat([(upload.weights[n].double() - before[n].double()).flatten() for n in trained]))
        norms.append(float(vectors[-1].norm()))
    cosines = [float(a @ b / a.norm() / b.norm()) for i, a in enumerate(vectors) for b in vectors[:i]]
    assert metrics["diag_update_norm"] == pytest.approx(sum(norms) / 4, rel=1e-9)  # another order of summation
    assert (metrics["diag_update_norm_min"], metrics["diag_update_norm_max"]) == pytest.approx((min(norms), max(norms)))
    assert metrics["diag_update_cosine"] == pytest.approx(sum(cosines) / 6, rel=1e-6)  # as above, of differences


def test_one_client_has_a_length_and_an_encoder_that_overflows_is_not_compared(averaging: Federation, averaged: Round):
    assert set(compare(averaging, averaged, {2: averaged.uploads[2]})) == spread("update_norm")
    assert compare(averaging, averaged, {}) == {}
    broken = {name: value * math.inf for name, value in averaged.uploads[1].weights.items()}
    others = {client: upload for client, upload in averaged.uploads.items() if client != 1}
    metrics = compare(averaging, averaged, averaged.uploads | {1: replace(averaged.uploads[1], weights=broken)})
    assert metrics.items() >= {name: compare(averaging, averaged, others)[name] for name in FEATURES}.items()


class Lazy(Mapping[int, Any]):
    """Uploads as Ray gives them: made anew each time, and gone when nobody holds them."""

    def __init__(self, uploads: Mapping[int, Any]) -> None:
        self._uploads, self.asked, self.most, self._alive = uploads, [], 0, []

    def __getitem__(self, client_id: int) -> Any:
        self.asked.append(client_id)
        made = map_leaves(
            lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, self._uploads[client_id]
        )
        self._alive = [ref for ref in self._alive if ref() is not None]
        self._alive += [weakref.ref(value) for value in made.weights.values()]
        self.most = max(self.most, len(self._alive))
        return made

    def __iter__(self) -> Iterator[int]:
        return iter(self._uploads)

    def __len__(self) -> int:
        return len(self._uploads)


def test_one_uploads_weights_are_held_at_a_time(averaging: Federation, averaged: Round):
    lazy = Lazy(averaged.uploads)
    assert compare(averaging, averaged, lazy) == compare(averaging, averaged)
    assert lazy.most == len(averaged.uploads[0].weights)


def test_of_a_large_cohort_a_seeded_few_are_compared(averaging: Federation, averaged: Round):
    many = {client_id: averaged.uploads[client_id % 4] for client_id in range(11)}
    first, second = Lazy(many), Lazy(many)
    assert compare(averaging, averaged, first) == compare(averaging, averaged, second)
    assert first.asked == second.asked
    assert len(set(first.asked)) == COMPARED_CLIENTS
    assert sorted(set(first.asked)) == first.asked[:COMPARED_CLIENTS]


@pytest.mark.parametrize(
    ("method", "override", "expected"),
    [
        ("fedavg", "method.parts.batch_norm=local", DRIFT),  # an encoder without statistics is not measured
        ("feddf", "clients.models=[cnn, vgg9, cnn]", spread("update_norm", "cka", "neighbors")),  # of different widths
        ("flesd", "method.upload=similarities", set()),
        ("local", "rounds=2", set()),
    ],
)
def test_clients_are_compared_by_what_they_send(open_tiny: Open, method: str, override: str, expected: set[str]):
    federation = open_tiny(method, override)
    assert set(compare(federation, last(federation))) == expected


def test_an_objectives_memory_is_no_part_of_an_update(open_tiny: Open):
    federation = open_tiny("fedavg", "objective=byol", "objective.hidden=32", "method.parts.target=averaged")
    round = last(federation)
    update = update_of(model_content(round.uploads[0], 0), model_content(round.downloads[0], 0))
    assert update is not None
    assert {name.partition(".")[0] for name in update} == {"encoder", "projector", "predictor"}
    assert not any("running" in name for name in update)


def test_what_clients_make_of_public_samples_is_compared(open_tiny: Open):
    for name in ("flesd", "fedmd"):
        federation = open_tiny(name)
        round = last(federation)
        sent = [model_content(upload, federation.num_public).representations for upload in round.uploads.values()]
        assert all(rows is not None and rows.shape == (45, 24) for rows in sent)
        metrics = compare(federation, round)
        assert set(metrics) == FEATURES
        assert metrics == compare_features([rows for rows in sent if rows is not None])


def test_representations_of_clients_own_samples_are_not_compared(open_tiny: Open):
    federation = open_tiny("fcl", "objective={name: moco, queue_size: 32}", "method.features=45")
    (upload, *_) = last(federation).uploads.values()
    assert upload.features is not None
    assert model_content(upload, 45).representations is None


def test_relation_matrices_are_compared_beside_what_the_base_sends(open_tiny: Open):
    for base, names in (("local", set()), ("fedavg", DRIFT | FEATURES)):
        federation = open_tiny("fedfoa", f"method.base={base}")
        round = last(federation)
        metrics = compare(federation, round)
        assert set(metrics) == names | spread("relation_distance")
        one, other, _ = (upload.relation for upload in round.uploads.values())
        assert (
            metrics["diag_relation_distance_min"]
            <= relation_distance(one, other)
            <= metrics["diag_relation_distance_max"]
        )


def test_a_client_that_sends_no_weights_is_passed_over(open_tiny: Open):
    objective = "objective={name: orchestra, clusters: 6, local_clusters: 4, memory: 16}"
    federation = open_tiny("orchestra", objective)
    first, second = play(federation)
    assert compare(federation, first) == {}  # Orchestra's first round sends centroids alone
    silent = second.uploads | {0: replace(second.uploads[0], weights=None)}
    heard = {client_id: upload for client_id, upload in second.uploads.items() if client_id != 0}
    assert compare(federation, second, silent) == compare(federation, second, heard)


def test_features_are_taken_of_no_more_samples_than_allowed(open_tiny: Open):
    federation = open_tiny("flesd", "public=fraction:0.3", "data.train_limit=1000")
    assert federation.num_public > CLIENT_SAMPLES
    round = last(federation)
    sent = [model_content(upload, federation.num_public).representations for upload in round.uploads.values()]
    metrics, whole = compare(federation, round), compare_features([rows for rows in sent if rows is not None])
    assert metrics["diag_cka"] != whole["diag_cka"]
    assert metrics["diag_cka"] == pytest.approx(whole["diag_cka"], abs=0.1)  # 256 of 300 samples
