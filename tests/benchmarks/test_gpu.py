"""The measurement of a GPU, in its dry run on the CPU."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import federated, synthetic
from benchmarks.gpu.results import Results
from benchmarks.gpu.setting import Setting
from rayfed_ssl.data.image_store import open_store
from tune.studies.definition.files import load_study
from tune.studies.definition.trial_configs import config_of


@pytest.mark.slow
def test_a_dry_run_writes_json_and_a_table_and_skips_what_is_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--dry-run", "--pieces", "views,kill", "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    first = capfd.readouterr()
    assert "views/all ..." in first.err
    units = json.loads((tmp_path / "results.json").read_text())["units"]
    assert [unit["state"] for unit in units.values()] == ["done", "done"]
    assert len(units["views/all"]["rows"]) == 6
    assert all(row["equal"] for row in units["views/all"]["rows"] if "captured" in row["case"])
    assert units["kill/resume"]["rows"][0]["equal"]
    table = (tmp_path / "results.md").read_text()
    assert first.out == table
    assert command.main(arguments) == 0
    second = capfd.readouterr()
    assert (second.out, second.err) == (table, "")


@pytest.mark.slow
def test_a_cell_runs_in_segments_of_whole_rounds(tmp_path: Path) -> None:
    setting = Setting(tmp_path, None, dry_run=True, minutes=9)
    setting.prepare()
    outcomes = [federated.cell(setting, "fedema", seconds=0) for _ in range(3)]
    assert [outcome.finished for outcome in outcomes] == [False, False, True]
    notes = [outcome.rows[0]["note"] for outcome in outcomes]
    assert [note[:11] for note in notes] == ["1 of 3 roun", "2 of 3 roun", "3 of 3 roun"]
    assert "linear accuracy" in notes[2]


@pytest.mark.parametrize("size", ["cpu", "paper"])
@pytest.mark.parametrize("name", federated.CELLS)
def test_cells_are_those_of_a_table(name: str, size: str) -> None:
    table, row, column = federated.CELLS[name]
    study, point = load_study(table, "data.name=digits", kind="reproduction", size=size), {"row": row, "column": column}
    assert study.cell(point).published is not None
    assert config_of(study, point, 0).rounds > 1


def test_a_unit_that_fails_is_reported_and_tried_again(tmp_path: Path) -> None:
    results = Results(tmp_path, {"device": "A"})
    results.begin("views/all")
    results.end("views/all", "failed", 1.0, error="no memory")
    assert not results.is_done("views/all")
    assert "| views | all |  |  |  |  |  |  | failed; no memory |" in results.write_table()


def test_a_unit_is_stopped_when_its_time_is_up(tmp_path: Path) -> None:
    setting = Setting(tmp_path, None, dry_run=True, minutes=9)
    with pytest.raises(TimeoutError, match="stopped after 0 s"):
        command.measure(setting, "views/all", 0.01, tmp_path / "answer.json")


def test_a_unit_that_did_not_end_was_cut_off(tmp_path: Path) -> None:
    Results(tmp_path, {"device": "A"}).begin("flesd/cell")
    again = Results(tmp_path, {"device": "A"})
    again.begin("flesd/cell")
    again.end("flesd/cell", "done", 1.0, [{"case": "resnet18", "rate": 2.0, "unit": "rounds/h"}])
    table = again.write_table()
    assert "| flesd | resnet18 | 2 rounds/h |" in table
    assert "cut off 1 times" in table


def test_hashes_are_compared_over_all_units(tmp_path: Path) -> None:
    results = Results(tmp_path, {"device": "A"})
    for key, sha256 in (("hashes/process-first", "aa"), ("hashes/process-second", "aa")):
        results.begin(key)
        results.end(key, "done", 1.0, [{"case": key, "sha256": sha256}])
    assert results.write_table().count("| yes |") == 2
    results.begin("hashes/ray-1")
    results.end("hashes/ray-1", "done", 1.0, [{"case": "Ray", "sha256": "bb"}])
    assert results.write_table().count("| NO |") == 3


def test_results_of_another_machine_are_refused(tmp_path: Path) -> None:
    Results(tmp_path, {"device": "A"}).begin("views/all")
    with pytest.raises(SystemExit, match="choose another --out"):
        Results(tmp_path, {"device": "B"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "no CUDA device here: run it where there is one, or take --dry-run to try the pieces on the CPU"
    ]
    assert not (tmp_path / "out").exists()


def test_every_piece_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["views", "steps", "determinism", "hashes", "kill", "fedema", "flesd", "fcl", "fedca", "fedfoa"]


def test_synthetic_images_are_told_apart_by_their_nearest_neighbor(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "a", 400, 100)
    store = open_store(tmp_path / "a")
    assert store.train.shape == (3, 32, 32)
    train, test = (part.images.reshape(len(part.images), -1).astype(np.float64) for part in (store.train, store.test))
    nearest = ((test[:, None] - train[None]) ** 2).sum(2).argmin(1)
    assert (store.train.labels[nearest] == store.test.labels).mean() > 0.3
    synthetic.write(tmp_path / "b", 400, 100)
    assert open_store(tmp_path / "b").fingerprint == store.fingerprint
