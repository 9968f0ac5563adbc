"""FedAvg's mean against float64."""

import numpy as np
import pytest
import torch

from rayfed_ssl.methods import FedAvg, fedavg
from tests import naive
from tests.methods.conftest import Open
from tests.tensors import seeded

ONE_ROUNDING = 2.0**-24
"""Relative error of one rounding to float32, the only one that the mean makes after its float64 sum."""

SIZES = {1: 7, 4: 31, 9: 2}


def uploads() -> dict[int, fedavg.Upload]:
    generator = seeded()
    return {
        client_id: fedavg.Upload(
            {
                "conv.weight": torch.randn(3, 2, 5, generator=generator) * 10.0**client_id,
                "bn.running_var": torch.rand(4, generator=generator),
                "bn.num_batches_tracked": torch.tensor(3 * client_id),
            },
            size,
        )
        for client_id, size in SIZES.items()
    }


@pytest.mark.parametrize(("weighting", "factors"), [("samples", [7, 31, 2]), ("uniform", [1, 1, 1])])
def test_fedavg_is_eq_1_of_flesd(weighting: str, factors: list[int]):
    sent = uploads()
    state = fedavg.ServerState("cnn", {})
    after, _ = FedAvg(weighting=weighting).update_server(state, sent, None)
    assert after.architecture == "cnn"
    for name in ("conv.weight", "bn.running_var"):
        expected = naive.mean_weights([upload.weights[name] for upload in sent.values()], factors)
        np.testing.assert_allclose(after.weights[name].numpy(), expected, rtol=ONE_ROUNDING, atol=0)
        assert after.weights[name].dtype == torch.float32
    steps = sum(f * 3 * k for f, k in zip(factors, SIZES, strict=True)) / sum(factors)
    assert int(after.weights["bn.num_batches_tracked"]) == round(steps)


def test_clients_upload_as_many_samples_as_they_hold(open_tiny: Open):
    federation = open_tiny("fedavg")
    download = federation.method.download(federation.init_server(), 0)
    for client_id, rows in federation.shards.items():
        assert federation.update_client(1, client_id, download, None).upload.num_samples == len(rows)


def test_local_batch_norm_keeps_running_statistics_and_only_those_at_home(open_tiny: Open):
    federation = open_tiny("fedavg", "method.parts.batch_norm=local")
    state = federation.init_server()
    result = federation.update_client(1, 0, federation.method.download(state, 0), None)
    model = federation.task.model(federation.task.initial_weights())
    buffers = {name for name, _ in model.named_buffers()}
    assert buffers
    assert set(result.state.kept) == buffers
    assert set(result.upload.weights) == set(state.weights) == {name for name, _ in model.named_parameters()}
    again = federation.update_client(2, 0, federation.method.download(state, 0), result.state)
    counters = [name for name in buffers if name.endswith("num_batches_tracked")]
    assert all(again.state.kept[name] == 2 * result.state.kept[name] for name in counters)
