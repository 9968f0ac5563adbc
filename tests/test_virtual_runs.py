"""Runs that keep to a schedule."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from rayfed_ssl import Config, ConfigError, resume, run
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.virtual_time import attach_schedule
from rayfed_ssl.records.replay import replay
from tests.conftest import tiny_tree

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

PHONES = ("clock=phones", "clock.devices.hours=24", "clock.devices.failure=0.2", "clients.number=5", "rounds=3")
DEADLINE = (*PHONES, "clock.policy=deadline", "clock.policy.over=0.5", "clients.fraction=0.5", "clock.policy.seconds=9")


def metric(result, participant: str, name: str) -> dict[int, float]:
    rows = result.record.metrics
    return {row["round"]: row["value"] for row in rows if (row["participant"], row["name"]) == (participant, name)}


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    return run(tiny("fedavg", *DEADLINE), tmp_path_factory.mktemp("whole") / "run")


def test_synchronous_rounds_on_even_devices_are_rounds_without_a_clock(tiny, tmp_path):
    settings = ("clients.number=4", "clients.fraction=0.5")
    without = run(tiny("fedavg", *settings), tmp_path / "without")
    even = run(tiny("fedavg", *settings, "clock=even"), tmp_path / "even")
    assert even.record.manifest.encoders == without.record.manifest.encoders
    assert [entry.cohort for entry in even.record.manifest.rounds] == [
        entry.cohort for entry in without.record.manifest.rounds
    ]
    assert even.state_sha256 != without.state_sha256, "the schedule is part of it"
    assert not (without.directory / "schedule.parquet").exists()


def test_a_round_trains_those_whose_uploads_the_schedule_uses(whole):
    schedule = attach_schedule(Federation.open(whole.record.config()))
    entries = whole.record.manifest.rounds
    assert [entry.cohort for entry in entries] == [list(schedule.contributions(step)) for step in (1, 2, 3)]
    assert pq.read_table(whole.directory / "schedule.parquet").equals(schedule.table())
    times, wasted = metric(whole, "run", "virtual_seconds"), metric(whole, "run", "wasted_bytes")
    assert list(times.values()) == [time / 1e9 for time in schedule.times]
    assert sum(wasted.values()) > 0
    assert not whole.degraded
    assert all(entry.dropped == [] for entry in entries)


def test_slow_clients_train_for_the_epochs_that_the_schedule_gives_them(tiny, tmp_path):
    settings = ("clock=phones", "clock.devices.failure=0", "clock.devices.hours=24", "training.epochs=4", "rounds=1")
    result = run(tiny("fedprox", *settings, "clock.policy=partial", "clock.policy.seconds=4"), tmp_path / "run")
    federation = Federation.open(result.record.config())
    epochs = {client: part.epochs for client, part in attach_schedule(federation).contributions(1).items()}
    assert 1 <= min(epochs.values()) < max(epochs.values()) == 4
    for client, number in epochs.items():
        samples = metric(result, f"client-{client}", "samples")[1]
        assert samples == number * attach_schedule(federation).work.samples[federation.client_ids.index(client)]
        assert replay(result.directory, 1, client).metrics["samples"] == samples


def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(whole, tiny, tmp_path):
    run(tiny("fedavg", *DEADLINE), tmp_path / "run", until=1)
    assert resume(tmp_path / "run").state_sha256 == whole.state_sha256
    run(tiny("fedavg", *DEADLINE, "rounds=2"), tmp_path / "short")
    assert resume(tmp_path / "short", "rounds=3").state_sha256 == whole.state_sha256
    table = pq.read_table(tmp_path / "short" / "schedule.parquet")
    assert table.equals(pq.read_table(whole.directory / "schedule.parquet"))


def test_a_killed_run_goes_on_to_the_same_bits(whole, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(Config.load(tiny_tree("fedavg"), *DEADLINE).dump()))
    program = (
        "import os, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from rayfed_ssl import Config, Observer, run\n"
        "torch.set_num_threads(1)\n"
        "class Killer(Observer):\n"
        "    def on_round_end(self, outcome):\n"
        "        if outcome.state.round == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run(Config.load(Path(sys.argv[1])), Path(sys.argv[2]), observer=Killer())\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, recipe, tmp_path / "run"], timeout=300, check=False)
    assert killed.returncode == -9
    assert resume(tmp_path / "run").state_sha256 == whole.state_sha256


def test_another_table_of_devices_refuses_a_resume(tiny, tmp_path):
    table = tmp_path / "devices.csv"
    table.write_text("flops,down_mbit,up_mbit\n1e9,10,5\n2e9,20,10\n")
    config = Config.load(tiny_tree("fedavg"), "clock=table", f"clock.devices.path={table}")
    assert run(config, tmp_path / "run", until=1)
    table.write_text("flops,down_mbit,up_mbit\n1e9,10,5\n2e9,20,11\n")
    with pytest.raises(ConfigError, match="the schedule of this run up to round 1 is another one than it began with"):
        resume(tmp_path / "run")


def test_an_asynchronous_policy_is_shown_and_not_trained_with(tiny, tmp_path):
    with pytest.raises(
        ConfigError, match=r"clock\.policy=fedbuff can be shown and not trained with: `rayfed-ssl clock`"
    ):
        run(tiny("fedavg", "clock=even", "clock.policy=fedbuff"), tmp_path / "run")
    assert not Path(tmp_path / "run").exists()
