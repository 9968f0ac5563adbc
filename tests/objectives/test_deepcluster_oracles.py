"""DeepCluster-v2's loss against naive loops; its clustering is in test_clustering.py."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.models import Model
from rayfed_ssl.objectives import DeepCluster
from rayfed_ssl.objectives.deepcluster import Bank, DeepClusterState, cluster_prediction
from rayfed_ssl.training.objective import Batch
from tests.training import naive_clustering as naive

EXACT = 1e-12
"""float64 keeps 16 digits; sums of a few dozen terms lose two."""

FORWARD = 1e-5
"""Forward passes are float32: 7 digits, of which sums over 64 pixels and T = 1/10 take two."""


def unit_rows(num: int, dim: int, seed: int) -> Tensor:
    rows = torch.randn(num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(rows, dim=1)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("num", "clusters"), [(1, 2), (7, 3), (4, 6)])
def test_cluster_prediction_is_the_codes(num: int, clusters: int, temperature: float):
    views, centroids = [unit_rows(num, 4, seed) for seed in (1, 2)], unit_rows(clusters, 4, 3)
    assigned = torch.randint(clusters, (num,), generator=torch.Generator().manual_seed(4))
    expected = naive.cluster_prediction(
        [view.tolist() for view in views], centroids.tolist(), assigned.tolist(), temperature
    )
    assert float(cluster_prediction(views, centroids, assigned, temperature)) == pytest.approx(expected, rel=EXACT)


def test_a_step_looks_up_its_samples_clusters_and_remembers_first_views(open_tiny: Callable[..., Federation]):
    task = open_tiny("fedavg", "training.views=orchestra").task
    torch.manual_seed(3)
    model = Model(nn.Flatten(), nn.Linear(64, 5), 5)
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    index, assignments = torch.tensor([5, 0, 3, 6]), torch.tensor([2, 0, 0, 1, 0, 0, 2])
    state = DeepClusterState(Bank(unit_rows(7, 5, 5).float()), 3)
    state.bank.assignments.copy_(assignments)
    before = state.bank.rows.clone()
    generator, views = torch.Generator().manual_seed(2), []
    for recipe in (task.views.first, task.views.second):
        pixels = task.augment(images, recipe, generator).flatten(1).double()
        rows = pixels @ model.projector.weight.double().T + model.projector.bias.double()
        views.append([naive.unit(row) for row in rows.tolist()])
    objective = DeepCluster(clusters=3)
    batch = Batch(images, index, None, 0)
    terms = objective.loss(task, model, state, batch, torch.Generator().manual_seed(2))
    expected = naive.cluster_prediction(views, state.centroids.double().tolist(), [0, 2, 1, 2], 0.1)
    assert float(terms.loss.detach()) == pytest.approx(expected, rel=FORWARD)
    assert state.bank.rows.equal(before)
    objective.finish_step(task, model, state, terms)
    torch.testing.assert_close(
        state.bank.rows[index].double(), torch.tensor(views[0]).double(), rtol=FORWARD, atol=1e-6
    )
    others = torch.tensor([1, 2, 4])
    assert state.bank.rows[others].equal(before[others])


def test_every_epoch_clusters_the_bank_anew(open_tiny: Callable[..., Federation]):
    task, objective = open_tiny("fedavg").task, DeepCluster(clusters=3, iterations=4)
    state = DeepClusterState(Bank(unit_rows(9, 4, 6).float()), 3)
    for epoch, seed in ((0, 1), (1, 2)):
        first = state.bank.rows[torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:3]]
        centroids, assigned = naive.spherical_k_means(state.bank.rows.tolist(), first.tolist(), 4)
        # Model and shard are not looked at.
        objective.start_epoch(task, None, state, None, epoch, torch.Generator().manual_seed(seed))
        torch.testing.assert_close(state.centroids, torch.tensor(centroids), rtol=1e-5, atol=1e-6)
        assert state.bank.assignments.tolist() == assigned
