"""Orchestra's rounds: clusters first, then training; what crosses and what stays."""

from dataclasses import replace

import pytest
import torch

from rayfed_ssl.method import Empty, Server
from rayfed_ssl.methods.orchestra import Download, Upload, cluster_locally
from rayfed_ssl.testing.trial import play
from rayfed_ssl.training.state_parts import part_of
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open
from tests.methods.steps import client_of
from tests.objectives.small_shards import KINDS, check_finite, shard
from tests.tensors import seeded, unit_rows


def test_round_1_clusters_and_trains_nothing(open_tiny: Open):
    federation = open_tiny("orchestra")
    begun = federation.init_server()
    (first,) = play(federation, 1)
    for client_id, upload in first.uploads.items():
        assert first.downloads[client_id].centroids is None
        assert upload.weights is None
        assert upload.num_batches == 0
        assert upload.local_centroids.shape == (4, 24)
        assert first.results[client_id].metrics == {}
    assert digest(first.server.weights) == digest(begun.weights)
    assert first.server.clustered
    torch.testing.assert_close(first.server.centroids.norm(dim=1), torch.ones(6))
    assert not first.server.centroids.equal(begun.centroids)


def test_round_2_trains_towards_the_clusters_and_sends_the_target(open_tiny: Open):
    federation = open_tiny("orchestra", "training.epochs=4")
    _, second = play(federation, 2)
    for client_id, upload in second.uploads.items():
        assert second.downloads[client_id].centroids is not None
        parts = {part_of(name) for name in upload.weights}
        assert parts == {"encoder", "projector", "batch_norm", "degree", "target"}
        assert upload.local_centroids.shape == (4, 24)
        assert upload.num_batches == -(-len(federation.shards[client_id]) // 32)
        metrics = second.results[client_id].metrics
        assert metrics["loss"] < metrics["loss_first"]
        assert second.results[client_id].state == Empty()
    (encoder,) = federation.method.encoders(second.server, {}).values()
    assert "target" not in {part_of(name) for name in encoder.weights}


def test_clients_start_a_round_from_the_servers_target(open_tiny: Open):
    federation = open_tiny("orchestra", "rounds=3")
    third = play(federation, 3)[2]
    client_id = federation.client_ids[0]
    moved = dict(third.downloads[client_id].weights)
    assert any(name.startswith("target.encoder.") for name in moved)
    name = next(name for name in moved if name.startswith("target.projector.") and name.endswith("weight"))
    moved[name] = moved[name] + 1
    download = replace(third.downloads[client_id], weights=moved)
    other = federation.update_client(3, client_id, download, None).upload.weights
    # A step moves the target by 0.4 % towards the online network, so most of what was added is still there.
    difference = other[name] - third.uploads[client_id].weights[name]
    assert 0.9 < float(difference.mean()) <= 1


def test_weights_are_averaged_by_batches(open_tiny: Open):
    federation = open_tiny("orchestra")
    state = replace(federation.init_server(), clustered=True)
    uploads = {
        client_id: Upload(unit_rows(4, 24, client_id).float(), batches, {"encoder.a": torch.full((2,), value)})
        for client_id, (batches, value) in enumerate([(1, 0.0), (3, 4.0), (2, 6.0)])
    }
    after, _ = federation.method.update_server(state, uploads, Server(2, None, federation.task, seeded()))
    assert after.weights["encoder.a"].tolist() == [4.0, 4.0]  # (0 + 12 + 12) / 6


def test_the_server_clusters_all_local_centroids_from_the_last_clusters(open_tiny: Open):
    federation = open_tiny("orchestra")
    state = federation.init_server()
    local = {client_id: unit_rows(4 - client_id, 24, client_id).float() for client_id in range(3)}
    uploads = {client_id: Upload(rows, 0) for client_id, rows in local.items()}
    after, metrics = federation.method.update_server(state, uploads, Server(1, None, federation.task, seeded()))
    expected, theirs = federation.method.cluster_globally(torch.cat(list(local.values())), state.centroids, 0.1)
    assert after.centroids.equal(expected)
    assert metrics == theirs


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_clients_send_finite_clusters(open_tiny: Open, kind: str):
    federation = open_tiny("orchestra", "training.batch=4", "training.epochs=2")
    method, data = federation.method, shard(federation, kind)
    weights = federation.task.initial_weights()
    first, _, _ = method.update_client(Download(weights), Empty(), client_of(federation.task, data, round=1))
    assert first.local_centroids.shape == (min(4, len(data) // 2), 24)
    second, _, metrics = method.update_client(
        Download(weights, unit_rows(6, 24, 1).float()), Empty(), client_of(federation.task, data)
    )
    assert second.local_centroids.shape == first.local_centroids.shape
    for upload in (first, second):
        torch.testing.assert_close(upload.local_centroids.norm(dim=1), torch.ones(len(upload.local_centroids)))
    check_finite(second.weights)
    assert metrics["loss"] == metrics["loss"]


@pytest.mark.parametrize("memory", [8, 500])
def test_the_targets_last_projections_are_clustered_and_nothing_else(open_tiny: Open, memory: int):
    federation = open_tiny("orchestra", f"objective.memory={memory}", "training.epochs=2")
    data, weights = shard(federation, "fewer than a batch"), federation.task.initial_weights()
    download, again = Download(weights, unit_rows(6, 24, 1).float()), client_of(federation.task, data)
    upload, _, _ = federation.method.update_client(download, Empty(), client_of(federation.task, data))
    trained, _ = again.train(weights | {"centroids": download.centroids})
    assert trained["queue.filled"] == 14
    seen = trained["queue.rows"][:14]
    assert upload.local_centroids.equal(cluster_locally(seen, 3, 25, 5, again.generator))


def test_the_server_refuses_a_round_without_uploads(open_tiny: Open):
    federation = open_tiny("orchestra")
    for clustered in (False, True):
        state = replace(federation.init_server(), clustered=clustered)
        with pytest.raises(ValueError, match="nothing to"):
            federation.method.update_server(state, {}, Server(1, None, federation.task, seeded()))
