"""SwAV in local training: what it remembers, and what it trains when."""

import pytest
import torch

from rayfed_ssl.objectives import SwAV
from rayfed_ssl.training.state_parts import select
from tests.objectives.local_rounds import Open, digits, first_batch, parts_of, started, train
from tests.tensors import seeded


def lengths(prototypes: torch.Tensor) -> list[float]:
    return prototypes.norm(dim=1).tolist()


def test_without_a_queue_nothing_is_remembered(open_objective: Open):
    federation = open_objective("swav", "objective.queue_size=0")
    trained, _ = train(federation.task, digits(federation, 2))
    assert parts_of(trained) == {"encoder", "projector", "batch_norm", "prototypes"}


def test_a_queue_per_view_stays_with_the_client(open_objective: Open):
    federation = open_objective("swav", "objective.queue_size=10")
    data = digits(federation, 7)
    trained, _ = train(federation.task, data)
    queue = select(trained, ("queue",))
    assert sorted(queue) == ["queue.first.filled", "queue.first.rows", "queue.second.filled", "queue.second.rows"]
    assert queue["queue.first.filled"] == 7
    assert lengths(queue["queue.second.rows"]) == pytest.approx([1] * 10, rel=1e-6)
    first, second = (queue[f"queue.{view}.rows"][:7] for view in ("first", "second"))
    assert float((first * second).sum(1).max()) < 0.9999, "both queues hold the same views"
    again, _ = train(federation.task, data, trained, round=2)
    assert again["queue.first.filled"] == 14
    # Rows 4 to 6 were enqueued in the first round and are still there.
    assert again["queue.first.rows"][4:7].equal(queue["queue.first.rows"][4:7])


def test_prototypes_are_frozen_for_the_runs_first_epochs(open_objective: Open):
    federation = open_objective("swav", "objective.freeze_epochs=2")
    task, data = federation.task, digits(federation, 7)
    for epoch, trained in ((0, False), (1, False), (2, True)):
        model, state = started(task, data)
        task.objective.loss(task, model, state, first_batch(data, 7, epoch), seeded()).loss.backward()
        without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
        assert without == (set() if trained else {"prototypes.weight"})
    # One local epoch a round: the third round is the first that moves prototypes.
    start = task.initial_weights()
    first, _ = train(task, data, start, round=2)
    third, _ = train(task, data, start, round=3)
    begun = torch.nn.functional.normalize(start["prototypes.weight"], dim=1)
    torch.testing.assert_close(first["prototypes.weight"], begun, rtol=1e-6, atol=1e-7)
    assert float((third["prototypes.weight"] - begun).norm()) > 1e-3


def test_averaged_prototypes_are_brought_back_to_unit_length(open_objective: Open):
    task = open_objective("swav", "objective.prototypes=2").task
    model = task.model(task.initial_weights() | {"prototypes.weight": 0.3 * torch.ones(2, 24)})
    task.objective.start(task, model, None, torch.Generator())
    assert lengths(model.part("prototypes").weight) == pytest.approx([1, 1], rel=1e-6)


def test_a_note_tells_of_unused_queues(open_objective: Open):
    task = open_objective("swav").task
    (queue,) = SwAV(prototypes=39, queue_size=5, queue_epoch=2).check(task, [40])
    assert "never used: objective.queue_epoch=2 and the run has 2 local epochs" in queue
