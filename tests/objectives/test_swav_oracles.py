"""SwAV's loss against naive loops, and against lightly."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.models import Model
from rayfed_ssl.objectives import SwAV
from rayfed_ssl.objectives.moco import KeyQueue
from rayfed_ssl.objectives.swav import SwAVState, ViewQueues, swapped_prediction
from rayfed_ssl.training.clustering import sinkhorn
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.task import Task
from tests.training import naive_clustering as naive

EXACT = 1e-12
"""float64 keeps 16 digits; sums of a few dozen output lose two."""

FORWARD = 1e-4
"""Forward passes are float32: 7 digits, of which sums over 64 pixels, eps = 1/20 and T = 1/10 take three."""


def unit_rows(num: int, dim: int, seed: int) -> Tensor:
    rows = torch.randn(num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(rows, dim=1)


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


def test_each_view_predicts_the_others_code():
    both, codes = scores(5, 3), [sinkhorn(own, 0.05, 3) for own in scores(5, 3)]
    swapped, straight = (float(swapped_prediction(both, order, 0.1)) for order in (codes, codes[::-1]))
    assert swapped != pytest.approx(straight, rel=1e-3)


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


def linear_model(task: Task, prototypes: int) -> Model:
    """A linear model on raw pixels: all that a loss needs, and nothing that hides a mistake."""
    torch.manual_seed(3)
    layer = nn.Linear(5, prototypes, bias=False)
    layer.weight.data = F.normalize(layer.weight.data, dim=1)
    return Model(nn.Flatten(), nn.Linear(task.channels * task.size**2, 5), 5, {"prototypes": layer})


def naive_projections(task: Task, model: Model, images: Tensor, seed: int) -> list[list[list[float]]]:
    """Both views' unit projections, in float64."""
    generator, both = torch.Generator().manual_seed(seed), []
    weight, bias = model.projector.weight.double(), model.projector.bias.double()
    for recipe in (task.views.first, task.views.second):
        pixels = task.augment(images, recipe, generator).flatten(1).double()
        both.append([naive.unit(row) for row in (pixels @ weight.T + bias).tolist()])
    return both


def naive_loss(views: Sequence, queues: Sequence, prototypes: list[list[float]], objective: SwAV) -> float:
    def cosines(rows: list[list[float]]) -> list[list[float]]:
        return [[naive.dot(row, prototype) for prototype in prototypes] for row in rows]

    codes = [
        naive.sinkhorn(cosines(queue + view), objective.epsilon, objective.sinkhorn_iterations)[len(queue) :]
        for view, queue in zip(views, queues, strict=True)
    ]
    return naive.swapped_prediction([cosines(view) for view in views], codes, objective.temperature)


@pytest.mark.parametrize("filled", [0, 3, 4])
def test_a_step_computes_codes_with_a_full_queue_alone(open_tiny: Callable[..., Federation], filled: int):
    task = open_tiny("fedavg", "training.views=orchestra").task
    assert task.views.first != task.views.second
    objective, model = SwAV(prototypes=3, queue_size=4, queue_epoch=2), linear_model(task, 3)
    images = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    queues = ViewQueues(*(KeyQueue(unit_rows(4, 5, seed).float()) for seed in (7, 8)))
    for queue in (queues.first, queues.second):
        queue.filled += filled
    views = naive_projections(task, model, images, 2)
    prototypes = model.part("prototypes").weight.double().tolist()
    for epoch in (0, 2):
        used = epoch >= 2 and filled == 4
        earlier = [q.rows.double().tolist() if used else [] for q in (queues.first, queues.second)]
        batch, generator = Batch(images, torch.arange(6), None, epoch), torch.Generator().manual_seed(2)
        output = objective.loss(task, model, SwAVState(queues), batch, generator)
        assert float(output.loss.detach()) == pytest.approx(
            naive_loss(views, earlier, prototypes, objective), rel=FORWARD
        )
        remembered = [output.updates[view].double().tolist() for view in ("first", "second")]
        torch.testing.assert_close(torch.tensor(remembered), torch.tensor(views), rtol=FORWARD, atol=1e-5)
