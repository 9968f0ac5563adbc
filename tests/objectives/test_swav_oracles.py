"""SwAV's loss against naive loops, and against lightly."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.objectives import SwAV
from rayfed_ssl.objectives.moco import KeyQueue
from rayfed_ssl.objectives.swav import SwAVState, ViewQueues, swapped_prediction
from rayfed_ssl.training.clustering import sinkhorn
from rayfed_ssl.training.task import Task
from tests.objectives.linear_model import batch_of, linear, linear_model, views
from tests.tensors import EXACT, seeded, unit_rows
from tests.training import naive_clustering as naive

FORWARD = 1e-4
"""Forward passes are float32: 7 digits, of which sums over 64 pixels, eps = 1/20 and T = 1/10 take three."""


def scores(num: int, clusters: int) -> list[Tensor]:
    prototypes = unit_rows(clusters, 6, 3)
    return [unit_rows(num, 6, seed) @ prototypes.T for seed in (1, 2)]


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("num", "clusters"), [(1, 3), (7, 4), (3, 5)])
def test_swapped_prediction_is_eq_1_and_2(num: int, clusters: int, temperature: float):
    both = scores(num, clusters)
    codes = [sinkhorn(own, 0.05, 3) for own in both]
    expected = naive.swapped_prediction([s.tolist() for s in both], [q.tolist() for q in codes], temperature)
    assert float(swapped_prediction(both, codes, temperature)) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("queue_size", [0, 4])
def test_loss_and_gradient_are_lightlys(queue_size: int):
    theirs = pytest.importorskip("lightly.loss").SwaVLoss()
    both = [own.requires_grad_() for own in scores(7, 4)]
    queue = [own.detach() for own in scores(queue_size, 4)] if queue_size else None
    reference = [own.detach().clone().requires_grad_() for own in both]
    expected = theirs(reference, [], queue)
    among = both if queue is None else [torch.cat([rows, own]) for rows, own in zip(queue, both, strict=True)]
    # lightly appends the queue and the code prepends it: the same codes.
    loss = swapped_prediction(both, [sinkhorn(own, 0.05, 3)[-7:] for own in among], 0.1)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=EXACT)
    loss.backward()
    expected.backward()
    for own, other in zip(both, reference, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=EXACT, atol=1e-14)


def naive_loss(projections: Sequence, queues: Sequence, prototypes: list[list[float]], objective: SwAV) -> float:
    def cosines(rows: list[list[float]]) -> list[list[float]]:
        return [[naive.dot(row, prototype) for prototype in prototypes] for row in rows]

    codes = [
        naive.sinkhorn(cosines(queue + view), objective.epsilon, objective.sinkhorn_iterations)[len(queue) :]
        for view, queue in zip(projections, queues, strict=True)
    ]
    return naive.swapped_prediction([cosines(view) for view in projections], codes, objective.temperature)


@pytest.mark.parametrize("filled", [0, 3, 4])
def test_a_step_computes_codes_with_a_full_queue_alone(task: Task, filled: int):
    layer = nn.Linear(5, 3, bias=False)
    layer.weight.data = unit_rows(3, 5, 6).float()
    objective, model = SwAV(prototypes=3, queue_size=4, queue_epoch=2), linear_model(5, prototypes=layer)
    queues = ViewQueues(first=KeyQueue(unit_rows(4, 5, 7).float()), second=KeyQueue(unit_rows(4, 5, 8).float()))
    for queue in (queues.first, queues.second):
        queue.filled += filled
    projections = [F.normalize(linear(view, model.projector), dim=1).tolist() for view in views(task)]
    for epoch in (0, 2):
        used = epoch >= 2 and filled == 4
        earlier = [q.rows.double().tolist() if used else [] for q in (queues.first, queues.second)]
        output = objective.loss(task, model, SwAVState(queue=queues), replace(batch_of(), epoch=epoch), seeded(2))
        expected = naive_loss(projections, earlier, layer.weight.double().tolist(), objective)
        assert float(output.loss.detach()) == pytest.approx(expected, rel=FORWARD)
        remembered = [output.updates[view].double().tolist() for view in ("first", "second")]
        torch.testing.assert_close(torch.tensor(remembered), torch.tensor(projections), rtol=FORWARD, atol=1e-5)
