"""Clients' scores on samples of their own: which encoders, learned from what and tested on what."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from rayfed_ssl import Config, resume, run
from rayfed_ssl.engine.client_scores import _tuned, encoders_of_client, score_client
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import Evaluation, Observer
from rayfed_ssl.evaluation.knn import knn_accuracy
from rayfed_ssl.method import Encoder
from rayfed_ssl.methods.fedavg import ClientState
from rayfed_ssl.records.own_scores import own_scores
from rayfed_ssl.records.run_record import RunRecord

Open = Callable[..., Federation]
Tiny = Callable[..., Config]

TESTED = "clients.test_fraction=0.3"


def scores_of(directory: Path) -> list[str]:
    """Give all that was measured, but for times."""
    return [repr(tuple(row.values())) for row in RunRecord.open(directory).metrics if "seconds" not in row["name"]]


def test_neighbors_are_samples_that_the_client_trains_on_and_what_is_right_are_its_test_parts(open_tiny: Open) -> None:
    federation = open_tiny("fedavg", TESTED)
    client_id = federation.scored_clients[-1]
    encoder = Encoder("cnn", federation.task.initial_weights("cnn"))
    metrics = score_client(federation, 1, client_id, {"global": encoder}, {}).metrics
    train, task = federation.dataset.train, federation.task
    rows, tests = federation.shards[client_id], federation.own_tests[client_id]
    assert not np.intersect1d(rows, tests).size
    model = task.model(encoder.weights).encoder.eval()
    with torch.inference_mode():
        bank, asked = (model(task.plain(torch.from_numpy(train.images[part]))) for part in (rows, tests))
    labels = [torch.from_numpy(train.labels[part]) for part in (rows, tests)]
    assert metrics["own_global_knn"] == knn_accuracy(bank, labels[0], asked, labels[1], num_classes=10)
    assert metrics["own_start_knn"] == metrics["own_global_knn"]
    assert metrics["own_samples"] == len(tests)


def test_the_global_encoder_is_tuned_for_as_many_epochs_as_are_asked_for(open_tiny: Open) -> None:
    steps = {}
    for epochs in (1, 3):
        federation = open_tiny("fedavg", TESTED, f"evaluation.tuning_epochs={epochs}")
        encoders = {"global": Encoder("cnn", federation.task.initial_weights("cnn"))}
        first, again = (score_client(federation, 1, 0, encoders, {}).metrics for _ in range(2))
        assert first == again
        steps[epochs] = first["own_tuning_steps"]
    assert 3 * steps[1] == steps[3] > 0
    none = open_tiny("fedavg", TESTED, "evaluation.tuning_epochs=0")
    assert "own_tuned_knn" not in score_client(none, 1, 0, encoders, {}).metrics


@pytest.mark.parametrize(
    ("adapters", "moved"),
    [("{name: lora, rank: 2, where: qkv}", "attention.qkv.weight"), ("norms", "norm"), ("head", "-")],
)
def test_tuning_trains_adapters_alone_and_gives_a_merged_encoder(open_tiny: Open, adapters: str, moved: str) -> None:
    federation = open_tiny("fedavg", TESTED, f"model={{encoder: vit-micro, adapters: {adapters}}}")
    before = Encoder("vit-micro", federation.task.initial_weights())
    after = _tuned(federation, 1, 0, before, {})[0].weights
    assert after.keys() == before.weights.keys()
    changed = {name for name, value in after.items() if not torch.equal(value, before.weights[name])}
    assert any(name.startswith("projector.") for name in changed)
    encoder = {name for name in changed if name.startswith("encoder.")}
    assert bool(encoder) == (adapters != "head")
    assert all(moved in name for name in encoder)


def test_a_client_that_keeps_an_encoder_is_scored_by_it_and_nothing_is_tuned(open_tiny: Open) -> None:
    federation = open_tiny("local", TESTED)
    own = Encoder("cnn", federation.task.initial_weights("cnn"))
    assert encoders_of_client({"global": own, "client-1": own, "client-11": own}, 11) == {
        "global": own,
        "personal": own,
    }
    metrics = score_client(federation, 1, 0, {"personal": own}, {}).metrics
    assert {name for name in metrics if name.endswith("knn")} == {"own_start_knn", "own_personal_knn"}


def test_heads_that_stay_with_a_client_are_tuned_with(open_tiny: Open) -> None:
    federation = open_tiny("fedavg", TESTED, "method.parts.projector=local")
    weights = federation.task.initial_weights("cnn")
    shared = {name: value for name, value in weights.items() if not name.startswith("projector.")}
    kept = {name: -value for name, value in weights.items() if name not in shared}
    encoders = {"global": Encoder("cnn", shared)}
    fresh, own = (score_client(federation, 1, 0, encoders, heads).metrics for heads in ({}, kept))
    changed = {name for name in fresh if fresh[name] != own[name]}
    assert changed
    assert changed <= {"own_tuned_knn", "own_tuned_linear"}
    assert federation.method.local_parts(ClientState(kept)) == kept


def test_clients_without_a_test_part_or_with_one_class_are_named_and_left_out(open_tiny: Open) -> None:
    federation = open_tiny(
        "fedavg",
        "clients.test_fraction=0.1",
        "partition={name: quantity_skew, alpha: 0.3, min_samples: 4}",
        "clients.number=8",
    )
    small = [client for client in federation.shards if client not in federation.own_tests]
    assert small
    assert not {*small} & {*federation.scored_clients}
    assert any(f"without scores of their own: {len(small)} (client {small[0]}" in note for note in federation.notes)
    single = open_tiny("fedavg", TESTED, "partition={name: classes_per_client, classes: 1}")
    assert single.scored_clients == ()
    assert any("it trains on samples of one class" in note for note in single.notes)


class StopBeforeScores(Observer):
    """Ends a run after clients were scored, between their scores and the others."""

    def on_clients_scored(self, evaluations: Sequence[Evaluation]) -> None:
        raise KeyboardInterrupt


def test_scores_are_the_same_after_a_run_was_ended_while_it_scored(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny("fedavg", TESTED, "rounds=2", "clients.fraction=0.5")
    run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "ended", observer=StopBeforeScores())
    resume(tmp_path / "ended")
    assert scores_of(tmp_path / "ended") == scores_of(tmp_path / "whole")
    record = RunRecord.open(tmp_path / "whole")
    assert own_scores(record.metrics, 2).keys() == {*Federation.open(config).scored_clients}
    assert not own_scores(record.metrics, 1)


def test_a_run_without_test_parts_has_the_configuration_of_before(tiny: Tiny) -> None:
    tree = tiny("fedavg").dump()
    assert "test_fraction" not in tree["clients"]
    assert "tuning_epochs" not in tree["evaluation"]
