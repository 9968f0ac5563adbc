"""Parts of a state: what is averaged, what stays, what starts anew."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.models.encoders import cnn
from rayfed_ssl.testing.trial import play
from rayfed_ssl.training.state_parts import Parts, model_weights, part_of, with_rule

Open = Callable[..., Federation]
BYOL = ("objective={name: byol, hidden: 16}", "rounds=2")
MOCO = ("objective={name: moco, queue_size: 40}", "rounds=2")


def test_the_first_component_of_a_name_is_its_part():
    names = ["encoder.bn1.weight", "encoder.bn1.running_mean", "predictor.1.num_batches_tracked", "queue.rows"]
    assert [part_of(name) for name in names] == ["encoder", "batch_norm", "batch_norm", "queue"]
    for part in ("target", "state_teacher"):
        assert part_of(f"{part}.encoder.bn1.running_mean") == part  # its own statistics
        assert not model_weights({f"{part}.weight": torch.ones(1)})


def test_what_is_not_said_is_left_to_the_objective():
    rules = Parts(target="averaged", batch_norm="local").over({"target": "local", "queue": "reset"})
    assert rules["encoder"] == rules["projector"] == rules["target"] == "averaged"
    assert with_rule(rules, "local") == {"batch_norm"}
    assert with_rule(rules, "reset", "local") == {"batch_norm", "queue"}


def test_every_entry_of_a_state_has_a_rule(open_tiny: Open):
    for settings in (BYOL, MOCO):
        federation = open_tiny("local", *settings)
        rules = Parts().over(federation.task.objective.parts)
        state = play(federation, 1)[0].results[0].state
        assert {part_of(name) for name in state.weights} == set(rules)


@pytest.mark.slow
def test_local_statistics_without_batch_norm_still_give_one_global_encoder(open_tiny: Open):
    assert not any(
        isinstance(layer, nn.BatchNorm2d) for layer in open_tiny("fedavg", "model=vgg9").task.blank("vgg9").modules()
    )
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in cnn(channels=1, size=8).modules())
    for encoder, expected in (("vgg9", {"global"}), ("cnn", {"client-0", "client-1", "client-2"})):
        federation = open_tiny("fedavg", f"model={encoder}", "method.parts.batch_norm=local", "rounds=1")
        played = play(federation)[0]
        states = {client_id: result.state for client_id, result in played.results.items()}
        assert set(federation.method.encoders(played.server, states)) == expected


WOULD_BE_SENT = "parts.target=averaged would send what shall stay local"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["fedavg", *BYOL, "method.parts.encoder=local", "method.parts.target=averaged"], WOULD_BE_SENT),
        (["fedavg", *BYOL, "method.parts.projector=local", "method.parts.target=averaged"], WOULD_BE_SENT),
        (["fcl", *MOCO, "method.parts.encoder=local"], WOULD_BE_SENT),
        (["fcl", *MOCO, "method.parts.projector=local"], WOULD_BE_SENT),
        (
            ["fedavg", "method.parts.target=averaged"],
            "parts.target=averaged has no meaning here: there are only encoder",
        ),
        (
            ["fedavg", "method.parts.encoder=local", "method.parts.projector=local"],
            "no part is averaged, got method.parts with only local ones: take method=local",
        ),
    ],
)
def test_rules_without_effect_and_rules_that_send_what_is_local_are_refused(
    open_tiny: Open, settings: list[str], message: str
):
    with pytest.raises(ConfigError, match=re.escape(message)):
        open_tiny(*settings)
