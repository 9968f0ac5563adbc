"""MoCo's queue in local training, for clients of all sizes."""

from dataclasses import replace

import pytest
import torch

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.objectives.moco import queue_rows
from tests.objectives.local_rounds import Open, digits, started, train


@pytest.fixture(scope="module")
def federation(open_objective: Open) -> Federation:
    return open_objective("moco")


def test_the_queue_starts_from_random_directions_of_the_generator(federation: Federation):
    data = digits(federation, 4)
    rows, again, other = (queue_rows(started(federation.task, data, seed)[1]) for seed in (0, 0, 1))
    assert (rows.shape, rows.dtype) == ((50, 24), torch.float32)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(50), rtol=1e-6, atol=0)  # float32
    assert torch.equal(rows, again)
    assert not torch.equal(rows, other)


@pytest.mark.parametrize(("symmetric", "directions"), [(True, 2), (False, 1)])
@pytest.mark.parametrize(("num_samples", "batch"), [(20, 8), (5, 32), (2, 32)])
def test_every_batch_is_enqueued_whatever_its_size(
    federation: Federation, symmetric: bool, directions: int, num_samples: int, batch: int
):
    task = replace(federation.task, batch=batch, objective=replace(federation.task.objective, symmetric=symmetric))
    weights, metrics = train(task, digits(federation, num_samples))
    assert int(weights["queue.filled"]) == directions * num_samples == directions * metrics["samples"]
    assert bool(weights["queue.rows"].isfinite().all())
