"""L-DAWA's rounds, and what it refuses or says."""

from collections.abc import Callable

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods import LDAWA
from rayfed_ssl.methods.ldawa import LayerwiseMean
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import digest

Tiny = Callable[..., Config]


def test_after_the_warm_up_layers_are_scaled_by_their_angle_to_what_was_sent_down(tiny: Tiny):
    rounds = play(Federation.open(tiny("ldawa", "method.warm_up=1")))
    assert "cosine" not in rounds[0].metrics
    mean = LayerwiseMean(rounds[1].downloads[0].weights, renormalize=False)
    for upload in rounds[1].uploads.values():
        mean.add(upload.weights)
    assert digest(rounds[1].server.weights) == digest(mean.result())
    assert rounds[1].metrics["cosine"] == pytest.approx(sum(mean.angles) / len(mean.angles), rel=1e-12)
    assert 0 < rounds[1].metrics["cosine"] < 1


def test_a_run_that_only_warms_up_is_told(tiny: Tiny):
    assert (
        "L-DAWA is FedAvg here: all 2 rounds are warm-up, lower method.warm_up"
        in Federation.open(tiny("ldawa", "method.warm_up=3")).notes
    )
    assert not Federation.open(tiny("ldawa")).notes


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match=r"method.warm_up must be at least 0, got -1"):
        LDAWA(warm_up=-1)
