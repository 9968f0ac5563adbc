"""Scores before round 1: those of the weights that everybody starts from, computed once and kept with the data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from rayfed_ssl import Config, resume, run
from rayfed_ssl.engine import start_scores as module
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.result_cache import CachedResult
from rayfed_ssl.engine.round_loop import Observer
from rayfed_ssl.engine.start_scores import DIRECTORY, score_start
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.records.run_record import RunRecord

Open = Callable[..., Federation]


def kept(federation: Federation) -> set[Path]:
    store = federation.dataset.train.path
    assert store is not None
    return set((store.parent / DIRECTORY).glob("*.json"))


def test_each_architecture_is_scored_as_an_encoder_of_the_run_is(open_tiny: Open) -> None:
    federation = open_tiny("local", "clients.models=[cnn,alexnet,cnn]", "seed=71", "evaluation.protocols=linear-easyfl")
    scores = {name: score_start(federation, name) for name in ("cnn", "alexnet")}
    for name, metrics in scores.items():
        encoder = Encoder(name, federation.task.initial_weights(name))
        evaluated = federation.evaluate(encoder, name, 2, final=True).metrics
        assert all(metrics[score] == evaluated[score] for score in ("knn", "linear", "linear_best"))
        assert not any(score.startswith("linear-easyfl") for score in metrics)
        assert 0 < metrics["diag_feature_std"] < 1


def test_a_second_run_reads_them_and_other_settings_are_other_scores(open_tiny: Open) -> None:
    federation = open_tiny("fedavg", "seed=72")
    before = kept(federation) if federation.dataset.train.path else set()
    scores = {"cnn": score_start(federation, "cnn")}
    (file,) = kept(federation) - before
    file.write_text(json.dumps(scores["cnn"] | {"knn": 0.125}))
    assert score_start(open_tiny("fedprox", "seed=72"), "cnn")["knn"] == 0.125
    for change in ("seed=73", "evaluation.linear.epochs=3", "data.test_limit=50"):
        assert score_start(open_tiny("fedavg", "seed=72", change), "cnn")["knn"] != 0.125
    file.write_text("{")
    assert score_start(federation, "cnn") == scores["cnn"]


def test_objectives_share_the_scores_of_the_encoder_and_a_classifier_is_scored_itself(open_tiny: Open) -> None:
    federation = open_tiny("fedavg", "seed=78")
    before = kept(federation) if federation.dataset.train.path else set()
    scores = score_start(federation, "cnn")
    assert score_start(open_tiny("fedavg", "seed=78", "objective=byol"), "cnn") == scores
    (file,) = kept(federation) - before
    file.write_text(json.dumps(scores | {"knn": 0.125}))
    assert score_start(open_tiny("fedavg", "seed=78", "objective=byol"), "cnn")["knn"] == 0.125
    supervised = score_start(open_tiny("fedavg", "seed=78", "objective=supervised", "model.projection_dim=null"), "cnn")
    assert supervised["knn"] == scores["knn"]
    assert "supervised" in supervised.keys() - scores.keys()


def test_scores_by_own_views_whose_code_may_change_are_not_kept(open_tiny: Open) -> None:
    federation = open_tiny("fedavg", "seed=77", "training.views=examples.my_views:mild")
    before = kept(federation)
    assert score_start(federation, "cnn")["diag_alignment"] > 0
    assert kept(federation) == before


def test_no_new_crops_are_drawn_for_a_start(open_tiny: Open) -> None:
    short = "seed=76", "evaluation.linear.epochs=2"
    cropped = open_tiny("fedavg", *short, "evaluation.augment=true")
    assert score_start(cropped, "cnn") == score_start(open_tiny("fedavg", *short), "cnn")


@pytest.mark.parametrize("error", [ValueError("is not finite"), torch.OutOfMemoryError("no memory")])
def test_an_encoder_that_cannot_be_scored_is_one_warning_and_the_run_goes_on(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    class Told(Observer):
        messages: ClassVar[list[str]] = []

        def on_warning(self, message: str) -> None:
            self.messages.append(message)

    Told.messages.clear()
    monkeypatch.setattr(module, "score", fail)
    monkeypatch.setattr(CachedResult, "read", lambda cached: None)
    result = run(tiny("fedavg", "seed=74", "rounds=1"), tmp_path / "run", observer=Told())
    assert result.record.manifest.starts == {"cnn": {}}
    assert Told.messages == [f"the cnn that the run starts from is not scored: {error}"]


def test_starts_are_those_of_the_settings_that_the_run_is_resumed_with(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    def starts() -> Metrics:
        return RunRecord.open(tmp_path / "run").manifest.starts["cnn"]

    run(tiny("fedavg", "rounds=3", "evaluation.linear.epochs=1"), tmp_path / "run", until=1)
    first = starts()
    resume(tmp_path / "run", "evaluation.knn.neighbors=3", "evaluation.linear.epochs=3", until=2)
    second = starts()
    assert (first["knn"], first["linear_pseudo_r2"]) != (second["knn"], second["linear_pseudo_r2"])
    assert first["diag_feature_std"] == second["diag_feature_std"]
    resume(tmp_path / "run")
    assert starts() == first


def test_a_score_that_is_not_finite_is_left_out(open_tiny: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "score", lambda *arguments, **options: {"knn": 0.5, "linear_pseudo_r2": float("nan")})
    monkeypatch.setattr(CachedResult, "read", lambda cached: None)
    monkeypatch.setattr(CachedResult, "write", lambda cached, result: None)
    scores = score_start(open_tiny("fedavg"), "cnn")
    assert "linear_pseudo_r2" not in scores
    assert scores["knn"] == 0.5
