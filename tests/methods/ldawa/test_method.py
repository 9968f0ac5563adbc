"""L-DAWA's rounds."""

import pytest

from rayfed_ssl.methods.ldawa import layerwise_mean
from rayfed_ssl.trees import digest
from tests.methods.conftest import Played


def test_after_the_warm_up_layers_are_scaled_by_their_angle_to_what_was_sent_down(played: Played):
    rounds = played("ldawa", "method.warm_up=1")
    assert "cosine" not in rounds[0].metrics
    trained = [upload.weights for upload in rounds[1].uploads.values()]
    mean, angles = layerwise_mean(trained, rounds[1].downloads[0].weights, renormalize=False)
    assert digest(rounds[1].server.weights) == digest(mean)
    assert rounds[1].metrics["cosine"] == pytest.approx(sum(angles) / len(angles), rel=1e-12)
    assert 0 < rounds[1].metrics["cosine"] < 1
