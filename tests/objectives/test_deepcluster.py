"""DeepCluster-v2 in local training: its bank and its clusters, and degenerate clients."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.objectives import DeepCluster
from rayfed_ssl.objectives.deepcluster import project_views
from rayfed_ssl.training.state_parts import part_of
from rayfed_ssl.trees import digest
from tests.objectives.small_shards import KINDS, check_finite, gradients, shard, train

Open = Callable[..., Federation]


def open_deepcluster(open_tiny: Open, *overrides: str) -> Federation:
    return open_tiny("fedavg", "objective=deepcluster", "objective.clusters=6", *overrides)


@pytest.mark.slow
def test_the_loss_falls_while_clusters_stay(open_tiny: Open):
    federation = open_deepcluster(open_tiny, "training.epochs=10", "training.batch=150")
    task, data = federation.task, shard(federation, "all samples")
    generator = torch.Generator().manual_seed(1)
    model = task.model(task.initial_weights())
    state = task.objective.start(task, model, data, generator)
    task.objective.start_epoch(task, model, state, data, 0, generator)
    # With a loss of the caller's no hook runs, so that nothing is clustered anew.
    metrics = task.fit(model, data, generator, loss=lambda m, _, b: task.objective.loss(task, m, state, b, generator))
    assert metrics["loss"] < 0.8 * metrics["loss_first"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clusters", [2, 6])
def test_degenerate_clients_train_to_finite_weights(open_tiny: Open, kind: str, clusters: int):
    federation = open_deepcluster(open_tiny, "training.epochs=3", "training.batch=4", f"objective.clusters={clusters}")
    data = shard(federation, kind)
    trained, metrics = train(federation.task, data)
    check_finite(trained)
    assert metrics["loss"] == metrics["loss"]
    assert len(trained["centroids"]) == min(clusters, len(data))
    assert set(trained["bank.assignments"].tolist()) <= set(range(clusters))


def test_bank_and_centroids_are_made_anew_in_each_round(open_tiny: Open):
    federation = open_deepcluster(open_tiny)
    data = shard(federation, "fewer than a batch")
    trained, _ = train(federation.task, data)
    assert {part_of(name) for name in trained} == {"encoder", "projector", "batch_norm", "bank", "centroids"}
    assert DeepCluster.parts == {"bank": "reset", "centroids": "reset"}
    assert trained["bank.rows"].shape == (7, 24)
    for rows in (trained["bank.rows"], trained["centroids"]):
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))


def test_an_upload_holds_no_bank_and_no_centroids(open_tiny: Open):
    federation = open_deepcluster(open_tiny)
    download = federation.method.download(federation.init_server(), 0)
    result = federation.update_client(1, federation.client_ids[0], download, None)
    assert {part_of(name) for name in result.upload.weights} == {"encoder", "projector", "batch_norm"}


def test_centroids_are_not_trained(open_tiny: Open):
    federation = open_deepcluster(open_tiny)
    grads, state = gradients(federation.task, shard(federation, "fewer than a batch"))
    assert {part_of(name) for name in grads} == {"encoder", "projector"}
    assert not list(state.parameters())


@pytest.mark.parametrize("batch", [2, 4, 7, 100])
def test_the_first_pass_projects_every_sample_and_leaves_the_model_alone(open_tiny: Open, batch: int):
    federation = open_deepcluster(open_tiny, f"training.batch={batch}")
    task, data = federation.task, shard(federation, "fewer than a batch")
    model = task.model(task.initial_weights())
    before = digest(model.state_dict())
    rows = project_views(task, model, data, task.views.first, torch.Generator().manual_seed(1))
    assert digest(model.state_dict()) == before
    assert model.training
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(7))
    # Rows lie at their samples' places: the same draws through the model itself give the same rows.
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(7, generator=generator)
    first = order.tensor_split(max(1, 7 // batch))[0]
    _, projections = model(task.augment(data.batch(first), task.views.first, generator))
    torch.testing.assert_close(rows[first], F.normalize(projections, dim=1).detach())


def test_more_clusters_than_samples_are_refused_and_small_clients_noted(open_tiny: Open):
    with pytest.raises(ConfigError, match=r"objective.clusters must stay below .* got 100 and at most \d+ samples"):
        open_deepcluster(open_tiny, "objective.clusters=100")
    task = open_deepcluster(open_tiny).task
    assert task.objective.check(task, [40, 7]) == ()
    (note,) = task.objective.check(task, [40, 6, 2])
    assert note.startswith("2 of 3 clients have no more samples than DeepCluster has clusters (6; the smallest has 2)")
