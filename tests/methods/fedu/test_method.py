"""FedU's choice of predictor, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods import FedAvg, fedavg, fedu
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import Weights, digest
from tests.methods.conftest import BYOL, Open


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedu", *BYOL, "method.threshold=0.4")


@pytest.fixture(scope="module")
def first(federation: Federation) -> Round:
    """The first round."""
    return play(federation, 1)[0]


def trained_from(federation: Federation, weights: Weights, kept: fedavg.ClientState | None, client_id: int) -> str:
    """What FedAvg's client uploads in round 2 if it starts from these weights."""
    plain = Federation.open(federation.config.model_copy(update={"method": FedAvg()}))
    return digest(plain.update_client(2, client_id, fedavg.Download(weights), kept).upload)


@pytest.mark.parametrize(("divergence", "own"), [(0.0, False), (0.39, False), (0.4, True), (7.0, True)])
def test_a_client_whose_encoder_moved_by_the_threshold_keeps_its_predictor(
    federation: Federation, first: Round, divergence: float, own: bool
):
    state = replace(first.results[1].state, divergence=divergence)
    download = federation.method.download(first.server, 1)
    upload = federation.update_client(2, 1, download, state).upload
    start = download.weights | (state.predictor if own else {})
    assert digest(start) != digest(download.weights) or not own
    assert digest(upload) == trained_from(federation, start, state.averaging, 1)


def test_a_client_that_takes_part_for_the_first_time_takes_the_global_predictor(federation: Federation, first: Round):
    download = federation.method.download(first.server, 2)
    upload = federation.update_client(2, 2, download, None).upload
    assert digest(upload) == trained_from(federation, download.weights, None, 2)


def test_divergence_is_measured_from_what_the_client_received(federation: Federation, first: Round):
    for client_id, result in first.results.items():
        received = first.downloads[client_id].weights
        expected = fedu.encoder_divergence(received, result.upload.weights)
        assert result.state.divergence == result.metrics["divergence"] == expected > 0


def test_a_predictor_goes_with_its_statistics(first: Round):
    kept = first.results[0].state.predictor
    assert any(name.endswith("running_mean") for name in kept)
    assert all(torch.equal(value, first.uploads[0].weights[name]) for name, value in kept.items())
