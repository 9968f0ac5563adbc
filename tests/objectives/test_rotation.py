"""Rotation prediction in local training."""

from collections.abc import Callable

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.training.state_parts import part_of
from tests.objectives.small_shards import shard, train

Open = Callable[..., Federation]
ROTATION = ("objective=rotation", "model.projection_dim=null")


def test_the_projector_tells_four_classes_and_nothing_is_remembered(open_tiny: Open):
    federation = open_tiny("fedavg", *ROTATION)
    trained, _ = train(federation.task, shard(federation, "two samples"))
    assert {part_of(name) for name in trained} == {"encoder", "projector", "batch_norm"}
    assert trained["projector.weight"].shape == (4, 256)
