"""SwAV in local training: what it remembers, what it trains when, and degenerate clients."""

from collections.abc import Callable

import pytest
import torch

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.objectives import SwAV
from rayfed_ssl.training.state_parts import part_of, select
from tests.objectives.small_shards import gradients, shard, train

Open = Callable[..., Federation]


def open_swav(open_tiny: Open, *overrides: str) -> Federation:
    return open_tiny("fedavg", "objective=swav", "objective.prototypes=6", *overrides)


def lengths(prototypes: torch.Tensor) -> list[float]:
    return prototypes.norm(dim=1).tolist()


def test_without_a_queue_nothing_is_remembered(open_tiny: Open):
    federation = open_swav(open_tiny)
    trained, _ = train(federation.task, shard(federation, "two samples"))
    assert {part_of(name) for name in trained} == {"encoder", "projector", "batch_norm", "prototypes"}


def test_a_queue_per_view_stays_with_the_client(open_tiny: Open):
    federation = open_swav(open_tiny, "objective.queue_size=10")
    data = shard(federation, "fewer than a batch")
    trained, _ = train(federation.task, data)
    queue = select(trained, ("queue",))
    assert sorted(queue) == ["queue.first.filled", "queue.first.rows", "queue.second.filled", "queue.second.rows"]
    assert SwAV.parts["queue"] == "local"
    assert queue["queue.first.filled"] == 7
    assert lengths(queue["queue.second.rows"]) == pytest.approx([1] * 10, rel=1e-6)
    first, second = (queue[f"queue.{view}.rows"][:7] for view in ("first", "second"))
    assert float((first * second).sum(1).max()) < 0.9999, "both queues hold the same views"
    again, _ = train(federation.task, data, trained, round=2)
    assert again["queue.first.filled"] == 14
    # Rows 4 to 6 were enqueued in the first round and are still there.
    assert again["queue.first.rows"][4:7].equal(queue["queue.first.rows"][4:7])


def test_prototypes_are_frozen_for_the_runs_first_epochs(open_tiny: Open):
    federation = open_swav(open_tiny, "objective.freeze_epochs=2")
    data = shard(federation, "fewer than a batch")
    for epoch, trained in ((0, False), (1, False), (2, True)):
        grads, _ = gradients(federation.task, data, epoch)
        assert (grads["prototypes.weight"] is not None) == trained
        assert grads["projector.0.weight"] is not None
    # One local epoch a round: the third round is the first that moves prototypes.
    start = federation.task.initial_weights()
    first, _ = train(federation.task, data, start, round=2)
    third, _ = train(federation.task, data, start, round=3)
    begun = torch.nn.functional.normalize(start["prototypes.weight"], dim=1)
    torch.testing.assert_close(first["prototypes.weight"], begun, rtol=1e-6, atol=1e-7)
    assert float((third["prototypes.weight"] - begun).norm()) > 1e-3


def test_averaged_prototypes_are_brought_back_to_unit_length(open_tiny: Open):
    task = open_swav(open_tiny, "objective.prototypes=2").task
    model = task.model(task.initial_weights() | {"prototypes.weight": 0.3 * torch.ones(2, 24)})
    task.objective.start(task, model, None, torch.Generator())
    assert lengths(model.part("prototypes").weight) == pytest.approx([1, 1], rel=1e-6)


def test_more_prototypes_than_samples_are_refused(open_tiny: Open):
    with pytest.raises(ConfigError, match=r"objective.prototypes must stay below .* got 100 and at most \d+ samples"):
        open_swav(open_tiny, "objective.prototypes=100")


def test_notes_tell_of_small_clients_small_batches_and_unused_queues(open_tiny: Open):
    task = open_swav(open_tiny).task
    assert task.objective.check(task, [40, 7]) == ()
    (note,) = task.objective.check(task, [40, 6])
    assert note.startswith("1 of 2 clients have no more samples than SwAV has prototypes (6; the smallest has 6)")
    crowded = SwAV(prototypes=39, queue_size=5, queue_epoch=2)
    batch, queue = crowded.check(task, [40])
    assert batch.startswith("SwAV spreads 37 samples a step over 39 prototypes")
    assert "never used: objective.queue_epoch=2 and the run has 2 local epochs" in queue
