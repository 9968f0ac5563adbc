"""What a trial takes of the machines: all of it together, or a line that says why not."""

from pathlib import Path

import pytest

from actors.cluster.machine import Node
from actors.placement.actor_cost import ACTOR_BYTES
from rayfed_ssl.errors import ConfigError
from tune.studies.execution.resources import TrialResources


def test_memory_that_another_machine_has_is_not_reserved(tiny):
    machines = [Node("many-cores", cpus=32, memory=3e8), Node("much-memory", cpus=1, memory=64e9)]
    (bundle,) = TrialResources(machines).placed(tiny("fedavg", "engine.threads=8"))[1]
    assert bundle["CPU"] == 8
    assert bundle["memory"] <= 3e8


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("engine.threads=3", "a trial takes 3 cores, and no machine has more than 2: lower engine.threads"),
        ("engine.executor=ray engine.actors=3", "3 client actors of 1 CPUs each do not fit"),
        ("engine.executor=ray engine.cpus_per_actor=0", "reserves nothing for a trial's actors"),
    ],
)
def test_what_no_machine_has_is_refused(tiny, override, says):
    with pytest.raises(ConfigError, match=says):
        TrialResources([Node("small", cpus=2)]).placed(tiny("fedavg", *override.split()))


def test_actors_are_reserved_with_their_trial_and_their_number_is_fixed(tiny):
    config, bundles = TrialResources([Node("large", cpus=8)]).placed(
        tiny("fedavg", "engine.executor=ray", "engine.actors=2")
    )
    assert bundles == [{}, {"CPU": 1.0}, {"CPU": 1.0}]
    assert config.engine.actors == 2


def test_memory_is_reserved_for_actors(tiny):
    federated = tiny("fedavg", "engine.executor=ray", "engine.actors=2")
    own, *each = TrialResources([Node("large", cpus=200, memory=64e9)]).placed(federated)[1]
    assert (own, len(each)) == ({}, 2)
    assert all(bundle["memory"] > ACTOR_BYTES for bundle in each)


def test_trials_share_what_the_server_trains_unless_the_user_says_where(tiny, tmp_path):
    resources = TrialResources([Node("small", cpus=2)], tmp_path)
    assert resources.placed(tiny("fedavg"))[0].engine.shared == tmp_path
    assert resources.placed(tiny("fedavg", f"engine.shared={tmp_path / 'mine'}"))[0].engine.shared == Path(
        tmp_path / "mine"
    )
