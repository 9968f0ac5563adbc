"""DeepCluster-v2 in local training: its bank and its clusters."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from rayfed_ssl.objectives.deepcluster import project_views
from rayfed_ssl.trees import digest
from tests.objectives.local_rounds import Open, digits, train
from tests.objectives.small_shards import KINDS, check_finite, shard
from tests.tensors import seeded


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clusters", [2, 6])
def test_a_client_gets_no_more_clusters_than_it_has_samples(open_objective: Open, kind: str, clusters: int):
    federation = open_objective("deepcluster", f"objective.clusters={clusters}", "training.batch=4")
    data = shard(federation, kind)
    trained, _ = train(replace(federation.task, epochs=3), data)
    check_finite(trained)
    assert len(trained["centroids"]) == min(clusters, len(data))
    assert set(trained["bank.assignments"].tolist()) <= set(range(clusters))
    assert trained["bank.rows"].shape == (len(data), 24)
    for rows in (trained["bank.rows"], trained["centroids"]):
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))


@pytest.mark.parametrize("batch", [2, 4, 7, 100])
def test_the_first_pass_projects_every_sample_and_leaves_the_model_alone(open_objective: Open, batch: int):
    federation = open_objective("deepcluster", f"training.batch={batch}")
    task, data = federation.task, digits(federation, 7)
    model = task.model(task.initial_weights())
    before = digest(model.state_dict())
    rows = project_views(task, model, data, task.views.first, seeded(1))
    assert digest(model.state_dict()) == before
    assert model.training
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(7))
    # Rows lie at their samples' places: the same draws through the model itself give the same rows.
    generator = seeded(1)
    order = torch.randperm(7, generator=generator)
    first = order.tensor_split(max(1, 7 // batch))[0]
    _, projections = model(task.augment(data.batch(first), task.views.first, generator))
    torch.testing.assert_close(rows[first], F.normalize(projections, dim=1).detach())
