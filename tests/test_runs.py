"""Runs: the record, interruption at any moment, resuming, replaying."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from rayfed_ssl import Config, ConfigError, replay, resume, run, runs
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.phase_timer import PHASES
from rayfed_ssl.engine.round_loop import ClientError, Observer
from rayfed_ssl.engine.run_watch import RunWarning
from rayfed_ssl.models import precision
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import summarize
from rayfed_ssl.runs import Result
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import CheckpointError
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import digest, nbytes
from rayfed_ssl.verification import verify_run
from tests.stopping import Stop, StopAt
from tests.test_verification import change_table

Tiny = Callable[..., Config]


def digests(directory: Path) -> list[str]:
    return [row.state_sha256 for row in RunRecord.open(directory).manifest.rounds]


def facts(directory: Path) -> tuple[Any, ...]:
    """Everything in a record that does not depend on when and how fast it was made."""
    record = RunRecord.open(directory)
    timed = ("seconds", "evaluation_seconds")
    metrics = sorted(
        (r["round"], r["participant"], r["name"], r["value"]) for r in record.metrics if r["name"] not in timed
    )
    ledger = sorted(tuple(row.values()) for row in record.ledger)
    return digests(directory), metrics, ledger


@pytest.fixture(scope="module")
def whole(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """An undisturbed run of LocalOnly, whose clients remember their models."""
    return run(tiny("local", "evaluation.every=1"), tmp_path_factory.mktemp("runs") / "whole")


def test_runs_that_begin_a_millisecond_apart_have_directories_of_their_own(tiny: Tiny, monkeypatch: pytest.MonkeyPatch):
    times = iter((datetime(2026, 1, 2, 3, 4, 5, 6_000), datetime(2026, 1, 2, 3, 4, 5, 7_000)))
    monkeypatch.setattr(runs, "datetime", SimpleNamespace(now=lambda: next(times)))
    names = [runs.default_directory(tiny("local")).name for _ in range(2)]
    assert names == ["20260102-030405-006-local-digits-s0", "20260102-030405-007-local-digits-s0"]


def test_a_record_holds_all_that_a_run_was_and_measured(whole: Result):
    names = {path.name for path in whole.directory.iterdir()}
    assert names == {"config.yaml", "run.json", "metrics.parquet", "ledger.parquet", "checkpoints", "encoders"}
    summary = json.loads((whole.directory / "run.json").read_text())
    assert summary["method"] == "local"
    assert summary["data"]["train"] == 150
    assert sum(summary["data"]["shards"].values()) <= 150
    assert [row["round"] for row in summary["rounds"]] == [1, 2]
    assert [row["cohort"] for row in summary["rounds"]] == [[0, 1, 2]] * 2
    assert summary["rounds"][-1]["state_sha256"] == whole.state_sha256
    assert summary["finished"] >= summary["started"]
    assert summary["precision"]["dtype"] == "fp32"
    assert torch.__version__.startswith(summary["versions"]["torch"])
    assert not list(whole.directory.rglob(".*")), "temporary files are left"


def test_a_record_says_where_the_time_of_its_last_process_went(whole: Result, copy: Path):
    seconds = whole.record.manifest.seconds
    assert list(seconds) == list(PHASES)
    assert {phase for phase in ("data", "rounds", "evaluation", "start scores", "imports") if seconds[phase]} == {
        "data",
        "rounds",
        "evaluation",
        "start scores",  # imports were before
    }
    assert sum(seconds.values()) > sum(
        row["value"] for row in whole.record.metrics if row["name"] == "evaluation_seconds"
    )
    resumed = resume(copy, round=1).record.manifest.seconds
    assert resumed["rounds"] > 0
    assert resumed != seconds


def test_every_round_has_its_metrics_and_scores(whole: Result):
    rows = {(r["round"], r["participant"], r["name"]) for r in whole.record.metrics}
    clients = ("client-0", "client-1", "client-2")
    for round in (1, 2):
        named = ("loss_first", "loss", "steps", "samples", "seconds", "knn")
        assert {(round, who, name) for who in clients for name in named} <= rows
        assert {(round, "run", "seconds"), (round, "run", "retries"), (round, "server", "seconds")} <= rows
    assert {who for round, who, name in rows if name == "linear"} == set(clients)
    assert {round for round, _, name in rows if name == "linear"} == {2}
    assert set(whole.scores) == set(clients)
    assert all(set(scores) == {"knn", "linear", "linear_best"} for scores in whole.scores.values())


def test_the_ledger_adds_up(whole: Result):
    weights = nbytes(whole.encoder_weights("client-0").weights)
    assert whole.bytes("up") == 0
    assert whole.bytes("down") == whole.bytes() == 3 * weights
    assert {row["round"] for row in whole.record.ledger} == {1}  # later, clients go on from their own models


def test_the_final_encoders_are_those_of_the_last_round(whole: Result):
    again = Federation.open(whole.record.config())
    for client_id in (0, 1, 2):
        encoder = whole.encoder_weights(f"client-{client_id}")
        assert encoder.architecture == "cnn"
        again.task.model(encoder.weights, encoder.architecture)
    assert len({digest(whole.encoder_weights(f"client-{k}")) for k in (0, 1, 2)}) == 3


def test_an_encoder_is_a_module_that_gives_the_features_of_evaluation(whole: Result):
    federation = Federation.open(whole.record.config("engine.device=cpu", "engine.precision=fp32"))
    module = whole.encoder("client-1")
    assert isinstance(module, torch.nn.Module)
    assert not any(part.training for part in module.modules())
    images = torch.as_tensor(federation.dataset.test.images[:16])
    weights = whole.encoder_weights("client-1")
    own = federation.task.model(weights.weights, weights.architecture).eval()
    with torch.inference_mode():
        expected, _ = federation.task.represent(own, Shard.of(images.numpy(), np.arange(16), federation.task.device))
        assert torch.equal(module(module.normalize(images)), expected)
    with pytest.raises(ConfigError, match="has no encoder 'client-9'"):
        whole.encoder("client-9")


def test_metrics_are_an_arrow_table(whole: Result):
    assert whole.metrics.column_names == ["round", "participant", "name", "value"]
    assert whole.metrics.to_pylist() == whole.record.metrics


def test_progress_is_shown_where_somebody_sees_it(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    config = tiny("local", "rounds=1")
    run(config, tmp_path / "pipe")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run(config, str(tmp_path / "terminal"), until=0)
    resume(str(tmp_path / "terminal"))
    shown = capsys.readouterr().err
    assert shown.count("3 clients with") == 2
    assert "round 1/1: 3 clients, loss" in shown
    run(config, tmp_path / "quiet", observer=Observer())
    assert capsys.readouterr().err == ""


def test_the_written_configuration_repeats_the_run(whole: Result, tmp_path: Path):
    repeated = run(Config.load(whole.directory / "config.yaml"), tmp_path / "again")
    assert facts(repeated.directory) == facts(whole.directory)


@pytest.fixture
def copy(whole: Result, tmp_path: Path) -> Path:
    """A copy of the undisturbed run, to be damaged."""
    return Path(shutil.copytree(whole.directory, tmp_path / "run"))


@pytest.fixture(scope="module")
def unscored(whole: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped before its last round is scored."""
    directory = tmp_path_factory.mktemp("runs") / "unscored"
    with pytest.raises(Stop):
        run(whole.record.config(), directory, observer=StopAt("on_evaluations", 2))
    return directory


@pytest.fixture
def stopped(unscored: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, to be damaged."""
    return Path(shutil.copytree(unscored, tmp_path / "run"))


HOOKS = ["on_round", "on_client", "on_server", "on_round_end", "on_commit", "on_evaluations", "on_evaluated"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_that_is_interrupted_anywhere_ends_as_if_it_was_not(whole: Result, tmp_path: Path, hook: str, at: int):
    config = whole.record.config()
    with pytest.raises(Stop):
        run(config, tmp_path / "run", observer=StopAt(hook, at))
    assert RunRecord.open(tmp_path / "run").manifest.finished is None
    result = resume(tmp_path / "run")
    assert facts(result.directory) == facts(whole.directory)
    assert result.state_sha256 == whole.state_sha256


@pytest.mark.slow
def test_resuming_from_an_earlier_round_gives_the_same_and_survives_an_interruption(whole: Result, copy: Path):
    assert facts(resume(copy, round=1).directory) == facts(whole.directory)
    with pytest.raises(Stop):
        resume(copy, round=1, observer=StopAt("on_client", 2))
    assert not any((copy / "encoders").iterdir())
    result = resume(copy)
    assert facts(copy) == facts(whole.directory)
    assert digest(result.encoder_weights("client-0")) == digest(whole.encoder_weights("client-0"))


def test_the_probe_runs_wherever_knn_does_if_asked_for(tiny: Tiny, whole: Result, tmp_path: Path):
    flesd = ("evaluation.protocols=linear-flesd", "evaluation.settings.linear-flesd.epochs=2")
    config = tiny("local", "evaluation.every=1", "evaluation.probe=every", *flesd)
    result = run(config, tmp_path / "run")
    assert digests(result.directory) == digests(whole.directory)
    earlier, last = (result.record.scores(round)["client-0"] for round in (1, 2))
    assert earlier.keys() == {"knn", "linear", "linear_best"}
    assert last.keys() == earlier.keys() | {"linear-flesd", "linear-flesd_best"}
    assert {name: last[name] for name in earlier} == whole.scores["client-0"]
    first, second = summarize(result.record).curve
    assert (first.linear, second.linear) == tuple(
        fmean(scores["linear"] for scores in result.record.scores(round).values()) for round in (1, 2)
    )


@pytest.fixture(scope="module")
def longer(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """An undisturbed run of three rounds, of which the second and the last are scored."""
    config = tiny("local", "rounds=3", "evaluation.every=2")
    return run(config, tmp_path_factory.mktemp("runs") / "longer")


def test_a_run_that_pauses_after_rounds_ends_as_if_it_had_not(longer: Result, tmp_path: Path):
    paused = run(longer.record.config(), tmp_path / "run", until=1)
    for round in (1, 2):
        assert digests(tmp_path / "run") == digests(longer.directory)[:round]
        assert paused.state_sha256 == digests(longer.directory)[round - 1]
        assert paused.record.manifest.finished is None
        assert not (tmp_path / "run" / "encoders").exists()
        assert not (tmp_path / "run" / "tables").exists()
        assert paused.scores == longer.record.scores(round)
        paused = resume(tmp_path / "run", until=round + 1)
    assert paused.state_sha256 == longer.state_sha256
    assert paused.record.manifest.finished is not None
    assert facts(paused.directory) == facts(longer.directory)


@pytest.mark.parametrize("until", [0, 3, 99])
def test_a_run_may_pause_before_its_first_round_and_not_after_its_last(longer: Result, tmp_path: Path, until: int):
    paused = run(longer.record.config(), tmp_path / "run", until=until)
    assert digests(tmp_path / "run") == digests(longer.directory)[:until]
    assert (paused.record.manifest.finished is None) == (until == 0)
    assert facts(resume(tmp_path / "run").directory) == facts(longer.directory)


def test_resuming_until_a_finished_round_changes_nothing(longer: Result, tmp_path: Path):
    run(longer.record.config(), tmp_path / "run", until=2)
    before = facts(tmp_path / "run")
    for until in (1, 2):
        assert resume(tmp_path / "run", until=until).state_sha256 == digests(longer.directory)[1]
        assert facts(tmp_path / "run") == before
    resume(tmp_path / "run")
    assert resume(tmp_path / "run", until=1).record.manifest.finished is not None
    assert facts(tmp_path / "run") == facts(longer.directory)


DAMAGED = {
    "checkpoints/round-000002.json": CheckpointError,
    "checkpoints/client-000001-000002.safetensors": CheckpointError,
    "tables/metrics-000003.parquet": ConfigError,
    "run.json": ConfigError,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_clear_error_on_resume(stopped: Path, name: str):
    content = (stopped / name).read_bytes()
    (stopped / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(DAMAGED[name], match=f"{name} is damaged .*: restore it from a copy, or start") as caught:
        resume(stopped)
    assert "\n" not in str(caught.value)


def test_a_run_whose_states_are_missing_is_not_started_anew(whole: Result, copy: Path):
    for path in (copy / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(
        CheckpointError, match="holds no committed round, but this run reached round 2: restore its states"
    ):
        resume(copy)
    assert facts(copy) == facts(whole.directory)


@pytest.mark.slow
@pytest.mark.parametrize(("hook", "committed"), [("on_client", 1), ("on_commit", 1), ("on_evaluations", 2)])
def test_a_killed_process_loses_the_running_round_only(whole: Result, tmp_path: Path, hook: str, committed: int):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(whole.record.config().dump()))
    program = (
        "import os, signal, sys, time, torch\n"
        "from rayfed_ssl import Observer, Config, run\n"
        "torch.set_num_threads(1)\n"
        "class Kill(Observer):\n"
        "    def on_round(self, round, cohort): self.round = round\n"
        "    def on_client(self, report): self.kill('on_client', self.round)\n"
        "    def on_evaluations(self, final): self.kill('on_evaluations', self.round)\n"
        "    def on_commit(self, outcome):\n"
        "        time.sleep(1)  # longer than a client's step\n"
        "        self.kill('on_commit', outcome.state.round)\n"
        "    def kill(self, hook, round):\n"
        "        if (hook, round) == (sys.argv[3], 2): os.kill(os.getpid(), signal.SIGKILL)\n"
        "run(Config.load(sys.argv[1]), sys.argv[2], observer=Kill())\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, recipe, tmp_path / "run", hook], timeout=300, check=False)
    assert killed.returncode == -9
    assert checkpoints.latest(tmp_path / "run" / "checkpoints").round == committed
    assert facts(resume(tmp_path / "run").directory) == facts(whole.directory)


def test_a_directory_that_is_not_empty_is_refused(tiny: Tiny, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(
        ConfigError, match="is not an empty directory: name another one with --out, or resume the run in it"
    ):
        run(tiny("fedavg"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"holds no run: name a directory with a run\.json"):
        resume(tmp_path)


@pytest.mark.parametrize(
    ("override", "began"),
    [
        ("engine.precision=bf16", "engine.precision=fp32"),
        ("engine.channels_last=false", "engine.channels_last=true"),
        ("engine.threads=2", "engine.threads=1"),
    ],
)
def test_a_run_is_not_resumed_to_other_bits(copy: Path, override: str, began: str):
    message = (
        f"this run began with {began}, got {override}, which gives other results: resume it with {began}, or start"
    )
    with pytest.raises(ConfigError, match=f"^{message} a new run$"):
        resume(copy, override, round=1)


def test_an_automatic_precision_must_be_what_it_was(whole: Result, copy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset({"amx_bf16"}))
    with pytest.raises(ConfigError, match=r"began with engine\.precision=fp32, got engine\.precision=bf16"):
        resume(copy, "engine.precision=auto", round=1)
    monkeypatch.setattr(precision, "cpu_flags", frozenset)
    assert facts(resume(copy, "engine.precision=auto", round=1).directory) == facts(whole.directory)


def test_a_replayed_step_gives_the_bits_that_were_uploaded(tiny: Tiny, tmp_path: Path):
    config = tiny("fedavg", "method.parts.batch_norm=local")
    result = run(config, tmp_path / "run")
    losses = {r["participant"]: r["value"] for r in result.record.metrics if (r["round"], r["name"]) == (2, "loss")}
    last = play(Federation.open(config))[-1]
    for client_id, upload in last.uploads.items():
        again = replay(result.directory, 2, client_id)
        assert digest(again.upload) == digest(upload)
        assert again.metrics["loss"] == losses[f"client-{client_id}"]


def test_a_step_that_failed_fails_again_when_it_is_replayed(tiny: Tiny, tmp_path: Path):
    config = tiny("fedavg", "training.optimizer.lr=1e30", "training.epochs=2")
    messages = []
    for attempt in (lambda: run(config, tmp_path / "run"), lambda: replay(tmp_path / "run", 1, 0)):
        with pytest.raises(ClientError) as caught:
            attempt()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith("client 0 failed in round 1")


def test_a_round_that_is_no_longer_on_disk_cannot_be_replayed(whole: Result):
    with pytest.raises(CheckpointError, match=r"^round 1 begins from the states after round 0: .* holds 1, 2"):
        replay(whole.directory, 1, 0)


def test_a_run_that_another_process_is_writing_stays_unchanged(copy: Path):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with RunRecord.open(copy).locked(), pytest.raises(ConfigError, match="another process is running"):
        resume(copy, round=1)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rounds": 5}, "rounds: Input should be a valid list"),
        ({"rounds": [{}]}, r"rounds\.0\.round: Field required"),
        ({"data": []}, "data: .*"),
        ({"checkpoints": 5}, "checkpoints: Input should be a valid string"),
        ({"unknown": 1}, "unknown: Extra inputs are not permitted"),
        ({"rounds": []}, "it is finished and has no rounds"),
    ],
)
def test_a_run_json_that_does_not_fit_its_schema_is_one_clear_line(copy: Path, change: dict[str, Any], reason: str):
    file = copy / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(
        ConfigError, match=rf"run\.json is damaged \({reason}\): restore it from a copy, or start a new run"
    ):
        RunRecord.open(copy)


def test_states_of_another_run_are_refused(tiny, tmp_path):
    for seed in (0, 1):
        run(tiny("fedprox", f"seed={seed}"), tmp_path / f"run-{seed}", until=1)
    shutil.rmtree(tmp_path / "run-0" / "checkpoints")
    shutil.copytree(tmp_path / "run-1" / "checkpoints", tmp_path / "run-0" / "checkpoints")
    for round in (None, 1):
        with pytest.raises(CheckpointError, match="holds states of another run: their digest after round 1 is"):
            resume(tmp_path / "run-0", round=round)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("metrics.parquet", r"metrics\.parquet is missing: restore it"),
        ("config.yaml", r"config\.yaml is missing or no regular file: restore it"),
    ],
)
def test_a_missing_file_of_a_run_is_called_so(copy: Path, name: str, message: str):
    (copy / name).unlink()
    with pytest.raises(ConfigError, match=message):
        RunRecord.open(copy).config()


@pytest.mark.parametrize(("name", "value"), [("knn", -1.0), ("knn", float("nan")), ("steps", float("inf"))])
def test_numbers_that_no_run_measures_are_refused_where_they_are_read(copy: Path, name: str, value: float):
    def change(rows: list[dict[str, Any]]) -> None:
        next(row for row in rows if row["name"] == name)["value"] = value

    change_table(copy / "metrics.parquet", change)
    with pytest.raises(ConfigError, match=rf"is damaged \(it has {value:g} for {name}\): restore it"):
        RunRecord.open(copy)


def test_a_start_with_an_impossible_accuracy_is_refused(copy: Path):
    manifest = json.loads((copy / "run.json").read_text())
    manifest["starts"]["cnn"] = {"diag_alignment": 7.0, "linear": 1.5}
    (copy / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"is damaged \(it has 1\.5 for linear\)"):
        RunRecord.open(copy)


def test_a_mistake_in_a_runs_configuration_names_its_file(copy: Path):
    file = copy / "config.yaml"
    text = file.read_text().replace("rounds: 2\n", "rounds: -3\n", 1)
    file.write_text(text.replace("probe: end\n", "probe: some\n", 1))
    record = RunRecord.open(copy)
    for read in (record.config, record.described_config):
        with pytest.raises(ConfigError) as caught:
            read()
        first, second = caught.value.args
        assert first.startswith(f"{file}: rounds: input should be greater ")
        assert second.startswith(f"{file}: evaluation.probe: input should be 'end' or 'every', got 'some'")
    file.write_text(text.replace("rounds: -3\n", "rounds: 2\n", 1).replace("name: local\n", "name: locally\n", 1))
    for overrides in ((), ("engine.executor=local",)):
        with pytest.raises(
            ConfigError, match=f"^{re.escape(str(file))}: method: unknown method 'locally': did you mean"
        ):
            record.config(*overrides)


def test_a_longer_run_is_the_one_that_would_have_been_as_long_from_the_start(tiny, tmp_path):
    whole = run(tiny("fedavg", "rounds=3"), tmp_path / "whole")
    run(tiny("fedavg", "rounds=2"), tmp_path / "run")
    longer = resume(tmp_path / "run", "rounds=3")
    assert longer.state_sha256 == whole.state_sha256
    assert longer.record.config() == whole.record.config()
    for words in ([], ["rounds=3"]):
        assert resume(tmp_path / "run", *words).state_sha256 == whole.state_sha256
    with pytest.raises(ConfigError, match=r"this run has 3 rounds, got rounds=2: name more"):
        resume(tmp_path / "run", "rounds=2")


def test_a_run_on_a_relative_path_resumes_in_another_directory(tiny, tmp_path, monkeypatch):
    for number in range(40):
        directory = tmp_path / "pictures" / "ab"[number % 2]
        directory.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(directory / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    config = tiny(
        "local", "data={name: folder, path: pictures, test_fraction: 0.4}", "partition=iid", "clients.number=2"
    )
    run(config, tmp_path / "run", until=1)
    monkeypatch.chdir("/")
    resumed = resume(tmp_path / "run")
    assert resumed.record.last_round == 2
    assert resumed.record.config().data.path == tmp_path / "pictures"


@pytest.mark.parametrize("schedule", [pytest.param("cosine", marks=pytest.mark.slow), "warmup-cosine"])
def test_a_run_with_a_schedule_goes_on_at_the_rates_of_its_last_round(schedule, tiny, tmp_path, monkeypatch):
    words = (f"training.optimizer.schedule={schedule}", "training.optimizer.lr=0.01")
    whole = run(tiny("fedavg", *words, "rounds=4", "training.schedule_rounds=2"), tmp_path / "whole")
    shorter = run(tiny("fedavg", *words), tmp_path / "run")
    longer = ("rounds=4", "training.schedule_rounds=2")
    with pytest.raises(
        ConfigError, match=r"add training.schedule_rounds=2 to repeat .* start a new run with `rayfed-ssl run "
    ):
        resume(tmp_path / "run", "rounds=4")
    with pytest.raises(ConfigError, match=r"spans 2 rounds, got training.schedule_rounds=3: take 2"):
        resume(tmp_path / "run", "rounds=4", "training.schedule_rounds=3")
    with pytest.raises(ConfigError, match=r"this run has 2 rounds, got rounds=1: name more"):
        resume(tmp_path / "run", "rounds=1", "training.schedule_rounds=2")
    with monkeypatch.context() as patch:
        patch.setattr(RunRecord, "truncate", lambda *_: 1 / 0)  # config.yaml is written then, run.json is not
        with pytest.raises(ZeroDivisionError):
            resume(tmp_path / "run", *longer)
    extended = resume(tmp_path / "run", *longer)
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")
    assert digests(tmp_path / "run")[1] == shorter.state_sha256
    assert extended.record.config() == whole.record.config()
    assert extended.record.manifest.settings_sha256 == whole.record.manifest.settings_sha256
    assert (
        "rounds after 2 repeat the learning rates of round 2 (training.schedule_rounds)"
        in extended.record.manifest.notes
    )
    assert resume(tmp_path / "run", "rounds=5").record.last_round == 5
    record = RunRecord.open(tmp_path / "run")  # rounds 2 and 4 were scored as the last ones
    again = verify_run(record, record.config(), tmp_path / "again", Observer(), LocalExecutor)
    assert not again.differences


def test_a_longer_run_is_not_warned_of_its_old_end(tiny, tmp_path):
    record = run(tiny("fedavg", "rounds=1"), tmp_path / "run").record
    record.add_warning(RunWarning("start", 1, "global is below its start"))
    longer = resume(tmp_path / "run", "rounds=2").record
    assert "global is below its start" not in [warning.message for warning in longer.manifest.warnings]


@pytest.mark.parametrize("words", [(), ("rounds=3",), ("rounds=4",)])
def test_a_kill_while_a_run_is_made_longer_leaves_a_run_that_can_be_resumed(words, tiny, tmp_path, monkeypatch):
    def killed(*_: object) -> None:  # config.yaml is written then, run.json is not
        raise KeyboardInterrupt

    run(tiny("fedavg", "rounds=2"), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(RunRecord, "truncate", killed)
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run", "rounds=3")
    assert RunRecord.open(tmp_path / "run").config().rounds == 3
    assert resume(tmp_path / "run", *words).record.last_round == (4 if words == ("rounds=4",) else 3)


@pytest.mark.parametrize(
    ("name", "words", "change", "message"),
    [
        ("fedavg", [], ("seed: 0", "seed: 1"), "changed since this run began: restore it"),
        ("fedavg", [], ("rounds: 3", "rounds: 2"), "has fewer rounds than this run was asked for: restore it"),
        ("fedavg", ["training.optimizer.schedule=cosine"], ("rounds: 3", "rounds: 4"), "changed since this run began"),
        ("fedsc", [], ("rounds: 3", "rounds: 4"), "changed since this run began"),
    ],
)
def test_a_changed_file_is_no_longer_run(name, words, change, message, tiny, tmp_path):
    run(tiny(name, "rounds=3", *words), tmp_path / "run", until=2)
    file = tmp_path / "run" / "config.yaml"
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(ConfigError, match=message):
        resume(tmp_path / "run")


def test_what_the_record_says_of_the_number_of_rounds_follows_a_longer_run(tiny, tmp_path):
    run(tiny("flesd", "rounds=1"), tmp_path / "run")
    longer, whole = resume(tmp_path / "run", "rounds=2"), run(tiny("flesd", "rounds=2"), tmp_path / "whole")
    kept = {"num_rounds", "method", "notes", "break_even", "settings_sha256"}
    found, expected = (each.record.manifest.model_dump(include=kept) for each in (longer, whole))
    assert found == expected


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        (
            "fedavg",
            ["training.optimizer.schedule=cosine"],
            "schedule=cosine follows the number of rounds",
        ),
        ("fedavg", ["training.total_epochs=2"], "training.total_epochs is divided among the rounds"),
        ("fedsc", [], "method=fedsc weighs its terms .* before: start a new run with `rayfed-ssl run .* rounds=4`"),
    ],
)
def test_a_run_whose_rounds_follow_their_number_is_not_made_longer(name, words, message, tiny, tmp_path):
    run(tiny(name, *words), tmp_path / "run", until=1)
    with pytest.raises(ConfigError, match=message):
        resume(tmp_path / "run", "rounds=4")
    assert resume(tmp_path / "run", "rounds=2").record.last_round == 2
