"""Protocols on encoders that are there already, and what stays of them on disk."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from rayfed_ssl.analysis.rescoring import TABLE, Measurement, append, measure_encoders, read_measurements
from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.registry import is_score
from rayfed_ssl.export.encoders import export_encoder
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import summarize
from rayfed_ssl.runs import run

Tiny = Callable[..., Config]


@pytest.fixture(scope="module")
def finished(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, scored by two protocols at its end."""
    words = ("evaluation.protocols=[linear-easyfl, semi-swav-10]", "evaluation.settings.semi-swav-10.epochs=2")
    return run(tiny("fedavg", *words), tmp_path_factory.mktemp("runs") / "run").directory


def test_a_protocol_afterwards_gives_the_bits_that_it_gave_at_the_end(finished: Path):
    measurements = measure_encoders(finished, ["semi-swav-10", "linear-easyfl"], ["semi-swav-10.epochs=2"])
    final = summarize(RunRecord.open(finished)).scores["global"]
    for result in measurements:
        assert (result.round, result.encoder) == (2, "global")
        accuracies = {name: value for name, value in result.scores.items() if is_score(name)}
        assert accuracies == {name: final[name] for name in (result.protocol, f"{result.protocol}_best")}


def test_a_run_its_file_and_its_export_are_one_encoder(finished: Path, tmp_path: Path):
    exported = tmp_path / "encoder.safetensors"
    export_encoder(finished, exported)
    of_run, of_file = (
        measure_encoders(path, ["linear-flesd"], ["epochs=2"])
        for path in (finished, finished / "encoders" / "global.safetensors")
    )
    of_export = measure_encoders(
        exported, ["linear-flesd"], ["epochs=2", "data.train_limit=150", "data.test_limit=60", "engine.precision=fp32"]
    )
    assert of_run[0].scores == of_file[0].scores == of_export[0].scores


def test_what_was_measured_is_appended_with_its_settings(finished: Path):
    append(finished, measure_encoders(finished, ["linear-fedca", "knn"], ["linear-fedca.epochs=2", "lr=1e-2"]))
    rows = read_measurements(finished)
    assert [row["name"] for row in rows] == ["linear-fedca", "linear-fedca_best", "linear-fedca_pseudo_r2", "knn"]
    assert [row["protocol"] for row in rows] == ["linear-fedca", "linear-fedca", "linear-fedca", "knn"]
    assert json.loads(rows[0]["settings"]).items() >= {"epochs": 2, "lr": 0.01, "optimizer": "adam"}.items()
    assert json.loads(rows[-1]["settings"]) == {"neighbors": 200, "temperature": 0.1}


def test_round_and_random_encoder_can_be_chosen(finished: Path):
    (earlier,) = measure_encoders(finished, ["knn"], round=1)
    (initial,) = measure_encoders(finished, ["knn"], initial=True)
    assert (earlier.round, initial.round, initial.encoder) == (1, 0, "initial")


@pytest.mark.parametrize(
    ("names", "words", "message"),
    [
        (["linear-mocco"], [], "unknown protocol 'linear-mocco': did you mean 'linear-moco'"),
        (["knn"], ["epochs=2"], "no protocol here has a setting 'epochs'"),
        (["knn"], ["linear-moco.epochs=2"], "sets a protocol that is not run: name it with --protocol linear-moco"),
        (["knn", "knn"], [], "a protocol is named twice: knn, knn"),
        (["semi-fedca-1"], [], "are 2 for 10 classes: raise fraction"),
        (["linear-fedca"], ["epochs=many"], "epochs: .*got 'many'"),
        (["knn"], ["data.size=9"], r"only engine\.\* and evaluation\.\* may change"),
    ],
)
def test_mistakes_are_named(finished: Path, names: list[str], words: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        measure_encoders(finished, names, words)


def test_an_exported_encoder_keeps_its_images(finished: Path, tmp_path: Path):
    exported = tmp_path / "encoder.safetensors"
    export_encoder(finished, exported)
    with pytest.raises(ConfigError, match="takes images of 8 pixels and 1 channels with stem auto: leave them"):
        measure_encoders(exported, ["knn"], ["data.size=16"])
    with pytest.raises(ConfigError, match="leave them as they are"):
        measure_encoders(exported, ["knn"], ["model.stem=cifar"])
    with pytest.raises(ConfigError, match="is one encoder and no run: --round and --initial take a run"):
        measure_encoders(exported, ["knn"], round=1)


def test_an_exported_encoder_that_sees_the_center_is_scored_on_it(tiny: Tiny, tmp_path: Path):
    cropped = ["data.size=12", "model.image_size=8"]
    directory = run(tiny("fedavg", "rounds=1", *cropped), tmp_path / "run").directory
    exported = tmp_path / "encoder.safetensors"
    assert export_encoder(directory, exported).info.size == 8
    limits = ["data.train_limit=150", "data.test_limit=60"]
    of_run, of_export, whole = (
        measure_encoders(path, ["knn"], words)[0].scores
        for path, words in ((directory, []), (exported, [*limits, *cropped]), (exported, limits))
    )
    assert of_run == of_export != whole


def test_heads_of_an_exported_encoder_are_not_looked_at(tiny: Tiny, tmp_path: Path):
    directory = run(tiny("fedavg", "objective=byol", "rounds=1"), tmp_path / "run").directory
    scores = []
    for with_heads in (False, True):
        path = tmp_path / f"{with_heads}.safetensors"
        assert bool(export_encoder(directory, path, with_heads=with_heads).heads) is with_heads
        scores += [result.scores for result in measure_encoders(path, ["knn"], ["data.train_limit=150"])]
    assert scores[0] == scores[1]


def test_an_append_waits_for_the_one_before_and_damage_is_named(tmp_path: Path):
    measurement = Measurement(1, "global", "knn", {"knn": 0.5}, 0.1, {})
    append(tmp_path, [measurement])
    waiting = threading.Thread(target=append, args=(tmp_path, [measurement]))
    with FileLock(tmp_path / f".{TABLE}.lock"):
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert len(read_measurements(tmp_path)) == 1
    waiting.join(10)
    assert len(read_measurements(tmp_path)) == 2
    (tmp_path / TABLE).write_bytes(b"no table")
    with pytest.raises(ConfigError, match=r"evaluations\.parquet is damaged"):
        read_measurements(tmp_path)
