"""Settings at which FCL is another method, bit for bit."""

import pytest

from rayfed_ssl.trees import digest
from tests.methods.conftest import MOCO, Played

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("symmetric", ["true", "false"])
def test_fcl_without_modules_is_fedavg_with_moco_and_an_averaged_target(played: Played, symmetric: str):
    settings = (*MOCO, f"objective.symmetric={symmetric}", "rounds=3")
    without = played("fcl", "method.fusion=false", "method.neighborhood=0", *settings)
    averaged = played("fedavg", "method.parts.target=averaged", *settings)
    for one, other in zip(without, averaged, strict=True):
        assert digest(one.server.averaged) == digest(other.server)
        for client_id, result in one.results.items():
            assert digest(result.upload.weights) == digest(other.uploads[client_id].weights)
            assert digest(result.state) == digest(other.results[client_id].state)
    assert any(name.startswith("target.") for name in without[0].uploads[0].weights)


@pytest.mark.parametrize("negatives", ["both", "remote"])
def test_fcl_without_neighborhoods_begins_as_fedavg(played: Played, negatives: str):
    """There are no remote features in round 1, and images are encrypted after training."""
    fused = played("fcl", *MOCO, "method.neighborhood=0", f"method.negatives={negatives}")
    averaged = played("fedavg", *MOCO, "method.parts.target=averaged")
    for client_id, upload in fused[0].uploads.items():
        assert digest(upload.weights) == digest(averaged[0].uploads[client_id].weights)
    assert digest(fused[1].server.averaged) != digest(averaged[1].server)
