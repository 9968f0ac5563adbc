"""FedX's rounds."""

from typing import Any

import pytest
import torch

from rayfed_ssl.methods.fedx import FedX
from rayfed_ssl.models import Model
from rayfed_ssl.objectives.fedx import FedXObjective
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import Weights, digest
from tests.methods.conftest import Open


@pytest.mark.parametrize("batch_norm", ["averaged", "local"])
def test_the_teacher_is_the_model_that_training_starts_from_and_stays_so(
    open_tiny: Open, monkeypatch: pytest.MonkeyPatch, batch_norm: str
):
    seen: list[tuple[Model, str]] = []
    distil = FedX.distil

    def watched(self: FedX, task: Any, data: Any, draws: Any, teacher: Model, *rest: Any) -> Any:
        if rest[-1].epoch >= task.epochs:  # of round 2
            seen.append((teacher, digest(dict(teacher.state_dict()))))
        return distil(self, task, data, draws, teacher, *rest)

    monkeypatch.setattr(FedX, "distil", watched)
    federation = open_tiny("fedx", f"method.parts.batch_norm={batch_norm}")
    first, second = play(federation)
    starts: list[Weights] = []
    for client_id, download in second.downloads.items():
        kept = getattr(first.results[client_id].state, "kept", {})
        starts.append(download.weights | kept)
        assert bool(kept) == (batch_norm == "local")
    expected = {digest(dict(federation.task.model(start).state_dict())) for start in starts}
    assert {held for _, held in seen} == expected
    assert len(expected) == (1 if batch_norm == "averaged" else 3)
    assert not any(teacher.training for teacher, _ in seen)


def test_clients_with_fewer_samples_than_a_batch_relate_to_all_of_them(open_tiny: Open):
    federation = open_tiny("fedx", "training.batch=64")
    sizes = {k: len(rows) for k, rows in federation.shards.items()}
    assert min(sizes.values()) < 64
    (round, _) = play(federation)
    for upload in round.uploads.values():
        assert all(bool(torch.as_tensor(value).isfinite().all()) for value in upload.weights.values())


def test_its_loss_has_no_fixed_value_by_chance():
    assert FedXObjective().chance_loss(8) is None
