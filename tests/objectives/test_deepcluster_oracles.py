"""DeepCluster-v2's loss against naive loops; its clustering is in test_clustering.py."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from rayfed_ssl.objectives import DeepCluster
from rayfed_ssl.objectives.deepcluster import DeepClusterState, cluster_prediction
from rayfed_ssl.training.task import Task
from tests.objectives.linear_model import batch_of, linear, linear_model, views
from tests.tensors import EXACT, seeded, unit_rows
from tests.training import naive_clustering as naive

FORWARD = 1e-5
"""Forward passes are float32: 7 digits, of which sums over 64 pixels and T = 1/10 take two."""


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("num", "clusters"), [(1, 2), (7, 3), (4, 6)])
def test_cluster_prediction_is_the_codes(num: int, clusters: int, temperature: float):
    views, centroids = [unit_rows(num, 4, seed) for seed in (1, 2)], unit_rows(clusters, 4, 3)
    assigned = torch.randint(clusters, (num,), generator=seeded(4))
    expected = naive.cluster_prediction(
        [view.tolist() for view in views], centroids.tolist(), assigned.tolist(), temperature
    )
    assert float(cluster_prediction(views, centroids, assigned, temperature)) == pytest.approx(expected, rel=EXACT)


def test_a_step_looks_up_its_samples_clusters_and_remembers_first_views(task: Task):
    model, index = linear_model(5), torch.tensor([5, 0, 3, 6])
    state = DeepClusterState.of(unit_rows(7, 5, 5).float(), 3)
    state.bank.assignments.copy_(torch.tensor([2, 0, 0, 1, 0, 0, 2]))
    before = state.bank.rows.clone()
    projections = [F.normalize(linear(view, model.projector), dim=1) for view in views(task, 4)]
    objective = DeepCluster(clusters=3)
    output = objective.loss(task, model, state, replace(batch_of(4), index=index), seeded(2))
    expected = naive.cluster_prediction(
        [view.tolist() for view in projections], state.centroids.double().tolist(), [0, 2, 1, 2], 0.1
    )
    assert float(output.loss.detach()) == pytest.approx(expected, rel=FORWARD)
    assert state.bank.rows.equal(before)
    objective.finish_step(task, model, state, output)
    torch.testing.assert_close(state.bank.rows[index].double(), projections[0], rtol=FORWARD, atol=1e-6)
    others = torch.tensor([1, 2, 4])
    assert state.bank.rows[others].equal(before[others])


def test_every_epoch_clusters_the_bank_anew(task: Task):
    objective, state = DeepCluster(clusters=3, iterations=4), DeepClusterState.of(unit_rows(9, 4, 6).float(), 3)
    for epoch, seed in ((0, 1), (1, 2)):
        first = state.bank.rows[torch.randperm(9, generator=seeded(seed))[:3]]
        centroids, assigned = naive.spherical_k_means(state.bank.rows.tolist(), first.tolist(), 4)
        # Model and shard are not looked at.
        objective.start_epoch(task, None, state, None, epoch, seeded(seed))
        torch.testing.assert_close(state.centroids, torch.tensor(centroids), rtol=1e-5, atol=1e-6)
        assert state.bank.assignments.tolist() == assigned
