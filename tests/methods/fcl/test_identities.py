"""Settings at which FCL is another method, bit for bit."""

from collections.abc import Callable

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest

pytestmark = pytest.mark.slow

Tiny = Callable[..., Config]

MOCO = ("objective=moco", "objective.queue_size=50")


def played(config: Config, rounds: int | None = None) -> list[Round]:
    return play(Federation.open(config), rounds)


def uploaded(rounds: list[Round]) -> list[dict[int, str]]:
    return [{k: digest(upload.weights) for k, upload in round.uploads.items()} for round in rounds]


@pytest.mark.parametrize("symmetric", ["true", "false"])
def test_fcl_without_modules_is_fedavg_with_moco_and_an_averaged_target(tiny: Tiny, symmetric: str):
    settings = (*MOCO, f"objective.symmetric={symmetric}", "rounds=3")
    without = played(tiny("fcl", "method.fusion=false", "method.neighborhood=0", *settings))
    averaged = played(tiny("fedavg", "method.parts.target=averaged", *settings))
    assert uploaded(without) == uploaded(averaged)
    for one, other in zip(without, averaged, strict=True):
        assert digest(one.server.averaged) == digest(other.server)
        assert {k: digest(r.state) for k, r in one.results.items()} == {
            k: digest(r.state) for k, r in other.results.items()
        }
    assert any(name.startswith("target.") for name in without[0].uploads[0].weights)


@pytest.mark.parametrize("negatives", ["both", "remote"])
def test_fcl_without_neighborhoods_begins_as_fedavg(tiny: Tiny, negatives: str):
    """There are no remote features in round 1, and images are encrypted after training."""
    fused = played(tiny("fcl", *MOCO, "method.neighborhood=0", f"method.negatives={negatives}"))
    averaged = played(tiny("fedavg", *MOCO, "method.parts.target=averaged"))
    assert uploaded(fused)[0] == uploaded(averaged)[0]
    assert uploaded(fused)[1] != uploaded(averaged)[1]
