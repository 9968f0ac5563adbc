"""Runs that keep to a schedule."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from typer.testing import CliRunner

from rayfed_ssl import Config, ConfigError, resume, run
from rayfed_ssl.clock.devices import SECOND
from rayfed_ssl.clock.schedule import USED, work_time
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.virtual_time import attach_schedule
from rayfed_ssl.formats import duration, size
from rayfed_ssl.records.replay import replay
from rayfed_ssl.reports.clock_figure import schedule_figure, tasks_of, wasted_training
from rayfed_ssl.reports.html.report import write_report
from rayfed_ssl.reports.summary import summarize, virtual_text
from rayfed_ssl.storage import checkpoints
from tests.conftest import tiny_tree
from tune.cli.app import app

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


def test_what_a_run_takes_by_its_clock_is_summarized(whole):
    summary = summarize(whole.record)
    wasted = metric(whole, "run", "wasted_bytes")
    assert summary.virtual_seconds == attach_schedule(Federation.open(whole.record.config())).times[-1] / 1e9
    assert summary.wasted_bytes == sum(wasted.values())
    compared = CliRunner(env={"COLUMNS": "250", "NO_COLOR": "1"}).invoke(app, ["compare", str(whole.directory)]).output
    assert "virtual time" in compared
    assert duration(summary.virtual_seconds) in compared
    assert f"{duration(summary.virtual_seconds)}, {size(summary.wasted_bytes)} of" in virtual_text(summary)


def test_the_figures_of_a_schedule_show_what_it_says(whole, tmp_path):
    schedule = attach_schedule(Federation.open(whole.record.config()))
    tasks, events = schedule.tasks, pq.read_table(whole.directory / "schedule.parquet")
    time, used = work_time(tasks), tasks["end"] == USED
    assert 0 < wasted_training(events) < 1
    assert wasted_training(events) == pytest.approx(time[~used].sum() / time.sum(), rel=1e-12)
    drawn = tasks_of(events)
    assert len(drawn) == len(used)
    assert sum(task["end"] - task["asked"] for task in drawn) == (tasks["ended"] - tasks["asked"]).sum()
    assert sum(task["used"] for task in drawn) == used.sum()
    axes = schedule_figure(events, drawn, "title").axes[0]
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(
        sum(task["end"] - task["asked"] for task in drawn) / SECOND, rel=1e-9
    )
    text = write_report([whole.directory], tmp_path / "report.html").read_text()
    assert f"By its schedule, until round 3: {virtual_text(summarize(whole.record))}." in text
    drawn = {path.stem.split("-", 1)[1] for path in (tmp_path / "report-figures").glob("run-*.svg")}
    assert "schedule" in drawn
    damaged = shutil.copytree(whole.directory, tmp_path / "run")
    (damaged / "schedule.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"schedule\.parquet is damaged .*: resume the run, which writes it anew"):
        write_report([damaged], tmp_path / "other.html")


@pytest.mark.parametrize("method", ["local", "fedavg", "flesd", "fedmd", "fedsc"])
def test_a_task_moves_the_bytes_of_later_rounds(tiny, tmp_path, method: str):
    result = run(tiny(method, "clock=even", "rounds=2"), tmp_path / "run")
    federation = Federation.open(result.record.config())
    work, moved = attach_schedule(federation).work, dict.fromkeys(("down", "up"), 0)
    for row in result.record.ledger:
        if row["round"] == 2 and row["client"] == 0:
            moved[row["direction"]] += row["bytes"]
    assert (work.down[0], work.up[0]) == (moved["down"], moved["up"])


def test_compare_says_when_a_target_is_reached(whole):
    point = summarize(whole.record).curve[0]

    def compared(target: float) -> str:
        words = ["compare", str(whole.directory), "--target", str(target)]
        return " ".join(CliRunner(env={"COLUMNS": "400", "NO_COLOR": "1"}).invoke(app, words).output.split())

    reached = f"{point.round} {size(point.bytes)} {duration(point.virtual)}"
    assert reached in compared(point.knn)
    assert reached not in compared(1.0)
    assert "not reached" in compared(1.0)
    refused = CliRunner().invoke(app, ["compare", str(whole.directory), "--target", "0.5", "--json"])
    assert refused.exit_code == 2
    assert "leave --by-seed and --json out" in refused.output


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


ASYNCHRONOUS = {
    "fedbuff": (*PHONES, "rounds=5", "clock.policy=fedbuff", "clock.policy.buffer=2", "clock.policy.lr=0.7"),
    "fedasync": (*PHONES, "rounds=7", "clock.policy=fedasync", "clock.policy.alpha=0.5"),
}


def server_weights(result) -> dict[str, torch.Tensor]:
    states = result.record.checkpoints
    return checkpoints.read(checkpoints.latest(states).server, states).weights


@pytest.mark.parametrize("policy", ASYNCHRONOUS)
def test_an_asynchronous_policy_computes_what_a_naive_loop_does(tiny, tmp_path, policy: str):
    result = run(tiny("fedavg", *ASYNCHRONOUS[policy], "training.optimizer=sgd"), tmp_path / "run")
    federation = Federation.open(result.record.config())
    schedule = attach_schedule(federation)
    states, staleness = [federation.init_server()], []
    for step in range(1, federation.config.rounds + 1):
        last, uploads, parts = states[-1].weights, [], schedule.contributions(step).values()
        for part in parts:
            download = federation.method.download(states[part.version], part.client)
            uploads.append(federation.update_client(step, part.client, download, None).upload)
        total = sum(upload.num_samples for upload in uploads)
        moved = {name: value.double() for name, value in last.items()}
        for part, upload in zip(parts, uploads, strict=True):
            staleness.append(step - 1 - part.version)
            weight = (1 + staleness[-1]) ** -0.5 * (0.7 if policy == "fedbuff" else 0.5)
            for name, value in upload.weights.items():
                base = states[part.version].weights if policy == "fedbuff" and "running_" not in name else last
                moved[name] += upload.num_samples / total * weight * (value.double() - base[name].double())
        floats = {name: value.to(last[name].dtype) for name, value in moved.items()}
        states.append(replace(states[-1], weights=floats))
    assert max(staleness) > 0
    trained = server_weights(result)
    assert min(value.min() for name, value in trained.items() if name.endswith("running_var")) >= 0
    for name, value in floats.items():
        if value.is_floating_point():  # counters of batch-norm are averaged
            # Float32 rounds in another order, which steps of training carry on; Adam's would amplify it.
            torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", [pytest.param("fedasync", marks=pytest.mark.slow), "fedbuff"])
def test_an_asynchronous_run_has_the_same_bits_after_a_stop_and_when_it_is_made_longer(tiny, tmp_path, policy: str):
    settings = ASYNCHRONOUS[policy]
    whole = run(tiny("fedavg", *settings), tmp_path / "whole")
    for until in (1, 3):
        run(tiny("fedavg", *settings), tmp_path / f"{until}", until=until)
        assert resume(tmp_path / f"{until}").state_sha256 == whole.state_sha256
    run(tiny("fedavg", *settings, "rounds=3"), tmp_path / "short")
    assert resume(tmp_path / "short", f"rounds={whole.record.last_round}").state_sha256 == whole.state_sha256


def test_a_step_that_started_from_an_older_state_is_replayed_from_it(tiny, tmp_path):
    result = run(tiny("fedavg", *ASYNCHRONOUS["fedbuff"]), tmp_path / "run")
    schedule = attach_schedule(Federation.open(result.record.config()))
    last = len(schedule.times)
    stale = [part.client for part in schedule.contributions(last).values() if part.staleness]
    assert stale
    for client in stale:
        replayed = replay(result.directory, last, client).metrics
        assert replayed["loss"] == metric(result, f"client-{client}", "loss")[last]


def test_a_buffer_of_all_clients_on_even_devices_is_fedavg(tiny, tmp_path):
    without = run(tiny("fedavg"), tmp_path / "without")
    buffered = run(tiny("fedavg", "clock=even", "clock.policy=fedbuff", "clock.policy.buffer=3"), tmp_path / "buffered")
    assert buffered.record.manifest.encoders == without.record.manifest.encoders


def test_fedasync_with_one_client_that_counts_fully_is_local_training(tiny, tmp_path):
    one = ("clients.number=1", "rounds=3")
    alone = run(tiny("fedavg", *one), tmp_path / "alone")
    mixed = run(
        tiny("fedavg", *one, "clock=phones", "clock.policy=fedasync", "clock.policy.alpha=1"), tmp_path / "mixed"
    )
    assert mixed.record.manifest.encoders == alone.record.manifest.encoders


@pytest.mark.parametrize("settings", [("fedmd",), ("feddf",), ("orchestra",), ("fedavg", "privacy.secure_sum=true")])
def test_an_asynchronous_policy_needs_single_weights(tiny, tmp_path, settings: tuple[str, ...]):
    with pytest.raises(ConfigError, match=r"clock\.policy=fedbuff moves the server's weights by single uploads"):
        run(tiny(*settings, "clock=even", "clock.policy=fedbuff"), tmp_path / "run")
    assert not Path(tmp_path / "run").exists()
