"""What tasks cost, and runs that keep to a schedule."""

from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from rayfed_ssl import Config, run
from rayfed_ssl.clock.devices import Devices
from rayfed_ssl.clock.policies import Synchronous
from rayfed_ssl.engine.virtual_time import attach_schedule, work_of
from rayfed_ssl.errors import ConfigError
from tests.conftest import tiny_tree


@pytest.mark.parametrize("name", ["fedprox", "fedmd", "fedca"])
def test_bytes_are_those_that_the_ledger_counts(open_tiny, tmp_path, name: str):
    federation = open_tiny(name)
    random_state = torch.get_rng_state()
    work = work_of(federation)
    assert torch.equal(torch.get_rng_state(), random_state)
    counted = Counter[tuple[int, str]]()
    for row in run(federation.config, tmp_path / "run", federation=federation).record.ledger:
        if row["round"] == 2:
            counted[row["client"], row["direction"]] += row["bytes"]
    assert [counted[client, "down"] for client in federation.client_ids] == list(work.down)
    assert [counted[client, "up"] for client in federation.client_ids] == list(work.up)


def test_flops_follow_from_the_model_and_not_from_batches_epochs_or_shards(open_tiny):
    settings = ("objective=supervised", "model.projection_dim=null", "training.batch=16")
    work = work_of(open_tiny("fedavg", *settings, "training.epochs=3"))
    half = work_of(open_tiny("fedavg", *settings, "training.batch=8"))
    assert len(set(work.sample_flops)) == 1
    assert work.sample_flops[0] == half.sample_flops[0] > 1e6
    assert (work.epochs, half.epochs) == (3, 1)
    larger = work_of(open_tiny("fedavg", *settings, "model.encoder=resnet18"))
    assert larger.sample_flops[0] > 5 * work.sample_flops[0]


def test_each_architecture_has_its_own_cost_and_samples_that_a_batch_leaves_out_cost_nothing(open_tiny):
    federation = open_tiny("flesd", "clients.models=[cnn, resnet18]", "training.batch=8", "training.drop_last=true")
    work = work_of(federation)
    assert work.sample_flops[0] == work.sample_flops[2] != work.sample_flops[1]
    sizes = [len(rows) for rows in federation.shards.values()]
    assert list(work.samples) == [size - size % 8 for size in sizes] != sizes


def test_a_clock_is_part_of_the_configuration_only_where_it_is_set():
    assert "clock" not in Config.load(tiny_tree("fedavg")).dump()
    config = Config.load(tiny_tree("fedavg"), "clock=phones", "clock.policy=deadline", "clock.policy.over=0.5")
    assert Config.load(config.dump()) == config
    assert config.flat()["clock.devices.hours"] == 8
    switched = Config.load(config.dump(), "clock.policy.name=fedbuff", "clock.policy.buffer=3")
    assert switched.dump()["clock"]["policy"]["buffer"] == 3
    assert Config.load(config.dump(), "clock=null").clock is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["clock=phone"], "unknown clock.devices 'phone': did you mean 'phones'"),
        (["clock=even", "clock.policy=partial"], "clock.policy.seconds is missing"),
        (["clock=even", "clock.policy=fedbuff", "clock.policy.over=1"], "no field 'over'; it belongs to deadline"),
        (["clock=even", "clock.devices.flops=-1"], "clock.devices.flops: input should be greater than 0, got -1"),
        (["clock=table"], "clock.devices.path is missing"),
        (["clock=even", "privacy.clip=1"], "privacy.clip counts on cohorts that are drawn evenly"),
    ],
)
def test_a_mistake_in_the_clock_is_one_line(settings: list[str], message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        Config.load(tiny_tree("fedavg"), *settings)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Broken(Devices):
    def draw(self, clients, seed):
        raise KeyError("no such trace")


@dataclass(frozen=True, kw_only=True)
class Pairs(Synchronous):
    def _asked(self, size: int) -> int:
        return 2


def test_devices_and_a_policy_of_ones_own_are_named_by_module_and_class(open_tiny):
    federation = open_tiny("fedavg", "clock.policy=tests.engine.test_virtual_time:Pairs", "clients.fraction=0.3")
    schedule = attach_schedule(federation)
    assert schedule is not None
    assert len(schedule.contributions(1)) == 2
    assert attach_schedule(federation) is schedule
    federation = open_tiny("fedavg", "clock=tests.engine.test_virtual_time:Broken")
    with pytest.raises(ConfigError, match=r"clock\.devices=tests.*Broken raised KeyError: 'no such trace' \(line"):
        attach_schedule(federation)
