"""Trackers: they hold what the record holds, once, however often a run was stopped, and change nothing of it."""

import json
import sqlite3
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

import pytest

from rayfed_ssl import Config, ConfigError, resume, run
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.trackers import configured_trackers, is_installed
from rayfed_ssl.trackers.series import points, total_bytes
from rayfed_ssl.trackers.tracking import PROGRESS
from tests.stopping import StopAt

Tiny = Callable[..., Config]
Series = dict[str, list[tuple[int, float]]]
Reader = Callable[[Path], Series]


@pytest.fixture(scope="module")
def plain(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(settings(tiny), tmp_path_factory.mktemp("runs") / "plain").directory


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: making its tables takes seconds."""
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def database(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The database that MLflow uses."""
    path = Path(copyfile(empty_database, tmp_path / "mlflow.db"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture(
    params=[
        "tensorboard",
        pytest.param("wandb", marks=pytest.mark.slow),
        pytest.param("mlflow", marks=pytest.mark.slow),
    ]
)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Reader]:
    """A tracker that keeps everything in local files, and what reads them back."""
    name = request.param
    pytest.importorskip(name, reason=f"{name} is not installed")
    if name == "mlflow":
        database = request.getfixturevalue("database")
        return name, lambda _: read_mlflow(database)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return name, {"tensorboard": read_tensorboard, "wandb": read_wandb}[name]


def settings(tiny: Tiny, *overrides: str) -> Config:
    return tiny("local", "evaluation.every=1", "data.train_limit=60", "data.test_limit=30", *overrides)


def read_tensorboard(directory: Path) -> Series:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def read_mlflow(database: Path) -> Series:
    found: Series = defaultdict(list)
    with sqlite3.connect(database) as connection:
        for key, step, value in connection.execute("select key, step, value from metrics order by step"):
            found[key].append((step, value))
    return dict(found)


def wandb_records(file: Path) -> list[Any]:
    """Read W&B's file: 7 bytes that name the format, then LevelDB's log of protobuf messages in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts, records = file.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(Record.FromString(parts))
            parts = b""
    return records


def all_wandb_records(directory: Path) -> list[Any]:
    import wandb

    wandb.teardown()  # its own process writes the last bytes while it ends
    files = sorted((directory / "wandb").glob("offline-run-*/*.wandb"))
    return [record for file in files for record in wandb_records(file)]


def read_wandb(directory: Path) -> Series:
    found: Series = defaultdict(list)
    for record in all_wandb_records(directory):
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for key, value in row.items():
            if "/" in key:
                found[key].append((row["round"], value))
    return dict(found)


def expected(directory: Path) -> Series:
    """What a tracker has to hold, read off the record with loops of its own."""
    record, found = RunRecord.open(directory), defaultdict(list)
    for round, values in sorted((points(record.metrics)).items()):
        for name, value in values.items():
            found[name].append((round, value))
    for round, values in total_bytes(record.ledger).items():
        for name, value in values.items():
            found[name].append((round, value))
    return dict(found)


def assert_same(got: Series, wanted: Series) -> None:
    assert set(got) == set(wanted)
    for name, series in wanted.items():
        assert [step for step, _ in got[name]] == [step for step, _ in series], name
        # TensorBoard keeps float32.
        assert [v for _, v in got[name]] == pytest.approx([v for _, v in series], rel=1e-6, nan_ok=True), name


def untimed(series: Series) -> Series:
    return {name: values for name, values in series.items() if "seconds" not in name}


def test_clients_give_mean_minimum_and_maximum():
    rows = [
        {"round": 1, "participant": who, "name": name, "value": value}
        for who, name, value in (
            ("client-0", "loss", 2.0),
            ("client-10", "loss", 5.0),
            ("client-3", "loss", 2.0),
            ("client-0", "knn", 0.25),
            ("client-3", "knn", 0.75),
            ("global", "linear_best", 0.5),
            ("server", "diag_cka", 0.9),
            ("run", "seconds", 7.0),
        )
    ]
    assert points(rows) == {
        1: {
            "clients/loss/mean": 3.0,
            "clients/loss/min": 2.0,
            "clients/loss/max": 5.0,
            "accuracy/clients/knn/mean": 0.5,
            "accuracy/clients/knn/min": 0.25,
            "accuracy/clients/knn/max": 0.75,
            "accuracy/global/linear_best": 0.5,
            "diagnostics/server/cka": 0.9,
            "run/seconds": 7.0,
        }
    }


def test_bytes_add_up_over_rounds():
    rows = [
        {"round": round, "direction": direction, "bytes": count}
        for round, direction, count in ((0, "down", 5), (1, "down", 10), (1, "up", 3), (1, "up", 4), (3, "up", 1))
    ]
    assert total_bytes(rows) == {
        0: {"bytes/up": 0, "bytes/down": 5},
        1: {"bytes/up": 7, "bytes/down": 15},
        3: {"bytes/up": 8, "bytes/down": 15},
    }


def test_a_run_that_is_stopped_and_paused_again_and_again_is_one_run_without_duplicates(
    tiny: Tiny, tmp_path: Path, plain: Path, reader: tuple[str, Reader]
):
    name, read = reader
    with pytest.raises(KeyboardInterrupt):
        run(settings(tiny, f"engine.trackers={name}"), tmp_path / "run", observer=StopAt("on_round_end", 1))
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "run", observer=StopAt("on_evaluations", 1))
    resume(tmp_path / "run", until=1)
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "run", observer=StopAt("on_evaluated", 2))
    result = resume(tmp_path / "run")
    assert result.state_sha256 == RunRecord.open(plain).manifest.rounds[-1].state_sha256
    assert_same(untimed(read(tmp_path / "run")), untimed(expected(plain)))
    resume(tmp_path / "run")
    resume(tmp_path / "run", round=1)
    assert_same(untimed(read(tmp_path / "run")), untimed(expected(plain)))


def test_a_tracker_that_is_added_later_logs_everything(tmp_path: Path, plain: Path, reader: tuple[str, Reader]):
    name, read = reader
    copytree(plain, tmp_path / "run")
    resume(tmp_path / "run", f"engine.trackers=[{name}]")
    got = read(tmp_path / "run")
    assert_same(got, expected(plain))
    assert len(got) < 80  # three clients or three thousand


def test_a_run_without_trackers_leaves_nothing_for_them(plain: Path):
    assert not {path.name for path in plain.iterdir()} & {PROGRESS, "tensorboard", "wandb", "figures"}


@pytest.mark.slow
def test_the_configuration_is_logged(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("WANDB_MODE", "offline")
    config = settings(tiny, "rounds=1", "engine.trackers=[tensorboard, wandb]")
    directory = run(config, tmp_path / "run").directory
    events = EventAccumulator(str(directory / "tensorboard")).Reload()
    (text,) = events.Tensors("config/text_summary")
    assert "alpha: 1.0" in text.tensor_proto.string_val[0].decode()
    records = all_wandb_records(directory)
    logged = {item.key: json.loads(item.value_json) for r in records for item in r.run.config.update}
    assert logged["partition"]["alpha"] == 1.0
    assert {record.run.run_id for record in records if record.run.run_id} == {
        json.loads((directory / PROGRESS).read_text())["wandb"]["identity"]
    }


@pytest.mark.slow
def test_mlflow_has_parameters_and_the_final_status(
    tiny: Tiny, tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch
):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    config = settings(tiny, "rounds=1", "engine.trackers=mlflow")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", observer=StopAt("on_client", 1))
    client = MlflowClient()
    experiment = client.get_experiment_by_name("mine")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "KILLED")
    resume(tmp_path / "run")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert (found.data.params["partition.alpha"], found.data.params["method.name"]) == ("1.0", "local")


class FullDisk:
    """A tracker whose disk fills up in round 2."""

    identity, continues, rewinds = "disk", False, False

    def __init__(self, *run: Any) -> None:
        """Follows any run."""

    def log(self, round: int, values: Mapping[str, float]) -> None:
        if round == 2:
            raise OSError("no space left\non device")

    def close(self, ending: str) -> None:
        raise AssertionError("it was left out")


def test_a_tracker_that_fails_is_one_warning_and_the_run_continues(
    tiny: Tiny, tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    with monkeypatch.context() as patch:
        patch.setattr("rayfed_ssl.trackers.tensorboard.open_tracker", FullDisk)
        with pytest.warns(RuntimeWarning) as caught:
            result = run(settings(tiny, "engine.trackers=tensorboard"), tmp_path / "run")
    (message,) = [text for warning in caught if "tensorboard" in (text := str(warning.message))]
    assert message.startswith("tensorboard failed and is no longer used (OSError: no space left); the record")
    assert f"rayfed-ssl resume {tmp_path / 'run'} engine.trackers=[tensorboard]" in message
    assert result.state_sha256 == RunRecord.open(plain).manifest.rounds[-1].state_sha256
    resume(tmp_path / "run")
    assert_same(read_tensorboard(tmp_path / "run"), expected(tmp_path / "run"))


def test_a_run_does_not_wait_for_a_tracker_that_never_answers(
    tiny: Tiny, tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
):
    class Silent(FullDisk):
        released = threading.Event()

        def log(self, round: int, values: Mapping[str, float]) -> None:
            self.released.wait(60)

    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    with monkeypatch.context() as patch:
        patch.setattr("rayfed_ssl.trackers.tensorboard.open_tracker", Silent)
        patch.setattr("rayfed_ssl.trackers.tracking.NOTICE", 0.1)
        patch.setattr("rayfed_ssl.trackers.tracking.PATIENCE", 0.3)
        with pytest.warns(RuntimeWarning) as caught:
            result = run(settings(tiny, "engine.trackers=tensorboard"), tmp_path / "run")
    Silent.released.set()
    notice, message = [text for warning in caught if "tensorboard" in (text := str(warning.message))]
    assert notice == "waiting for tensorboard, which has not taken all yet, for at most 0 s"
    assert message.startswith(
        "tensorboard failed and is no longer used (TimeoutError: no answer within 0 s); the record"
    )
    assert result.state_sha256 == RunRecord.open(plain).manifest.rounds[-1].state_sha256


def test_auto_takes_tensorboard_where_it_is_installed(tiny: Tiny, monkeypatch: pytest.MonkeyPatch):
    for installed, names in ((["tensorboard"], ("tensorboard",)), ([], ())):
        monkeypatch.setattr("rayfed_ssl.trackers.is_installed", installed.__contains__)
        assert configured_trackers(tiny("fedavg", "engine.trackers=auto")) == names
        assert configured_trackers(tiny("fedavg", "engine.trackers=[]")) == ()


def test_a_folder_is_not_mistaken_for_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "wandbox").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert not is_installed("wandbox")
    assert is_installed("json")


def test_a_named_tracker_that_is_not_installed_is_refused_before_anything_starts(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rayfed_ssl.trackers.is_installed", lambda package: False)
    message = r"names wandb, which is not installed: run `pip install 'rayfed-ssl\[wandb\]'`$"
    with pytest.raises(ConfigError, match=message):
        run(tiny("fedavg", "engine.trackers=[wandb]"), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["wandbb", "[tensorboard, tensorbord]", "null", "7", "[auto]"])
def test_an_unknown_tracker_is_refused(tiny: Tiny, value: str):
    with pytest.raises(ConfigError, match=r"^engine\.trackers: "):
        tiny("fedavg", f"engine.trackers={value}")
