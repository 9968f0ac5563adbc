"""Protocols and seeds on the command line."""

import errno
import json
from pathlib import Path

import pytest

from rayfed_ssl.analysis.rescoring import read_measurements
from tests.tune.conftest import Cli, Finished, Recipes
from tune import terminal


def test_protocols_are_run_printed_and_appended(cli: Cli, finished: Finished):
    directory, _ = finished["flesd"]
    result = cli("evaluate", directory, "--protocol", "linear-easyfl", "--protocol", "semi-swav-10", "epochs=2")
    assert result.exit_code == 0, result.stderr
    rows = {row["name"]: row["value"] for row in read_measurements(directory)}
    lines = [line.split() for line in result.stdout.splitlines()]
    for name in ("linear-easyfl", "semi-swav-10"):
        (line,) = [line for line in lines if line[:1] == [name]]
        assert line[1:] == ["global", f"{100 * rows[name]:.2f}%", f"{100 * rows[name + '_best']:.2f}%"]
    assert f"appended to {directory / 'evaluations.parquet'}" in result.stdout


def test_every_clients_encoder_is_measured_with_mean_and_minimum(cli: Cli, finished: Finished):
    directory, _ = finished["local"]
    table = cli("evaluate", directory, "--protocol", "knn").stdout
    rows = json.loads(cli("evaluate", directory, "--protocol", "knn", "--json").stdout)
    scores = {row["encoder"]: row["scores"]["knn"] for row in rows}
    assert set(scores) == {"client-0", "client-1", "client-2"}
    for label, value in (("mean of clients", sum(scores.values()) / 3), ("minimum of clients", min(scores.values()))):
        (line,) = [line for line in table.splitlines() if label in line]
        assert f"{100 * value:.2f}%" in line


def test_protocols_of_a_run_are_printed_at_its_end(cli: Cli, recipes: Recipes, tmp_path: Path):
    words = ("rounds=1", "evaluation.protocols=linear-fedca", "evaluation.settings.linear-fedca.epochs=2")
    result = cli("run", recipes["fedavg"], *words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("linear-fedca")]
    assert line.split()[1] == "global"
    again = cli("evaluate", tmp_path / "run")
    assert line in again.stdout


def test_federated_fine_tuning_is_one_command(cli: Cli, finished: Finished, tmp_path: Path):
    learned, tuned = finished["flesd"][0], tmp_path / "tuned"
    words = (f"model.start={learned}", "clients.labeled=0.1", "rounds=1", "training.epochs=1", "engine.executor=local")
    result = cli("run", "federated-finetune", *words, "--out", tuned)
    assert result.exit_code == 0, result.stderr
    assert "classifier" in result.stdout.splitlines()[0]
    assert json.loads((tuned / "run.json").read_text())["start"]["file"] == str(learned / "encoders/global.safetensors")


def test_runs_over_seeds_are_compared_as_one(
    cli: Cli, recipes: Recipes, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs = (finished["flesd"][0], tmp_path / "run")
    result = cli("run", recipes["flesd"], "seed=1", "--out", runs[1])
    assert result.exit_code == 0, result.stderr
    (group,) = json.loads(cli("compare", *runs, "--by-seed", "--json").stdout)
    assert (group["seeds"], group["runs"]) == ([0, 1], [str(run) for run in runs])
    spread = group["scores"]["linear"]
    assert spread["n"] == 2
    table = cli("compare", *runs, "--by-seed").stdout
    (line,) = [line for line in table.splitlines() if " linear " in line]
    assert [f"{100 * spread[name]:.2f}%" for name in ("mean", "std")] == line.split()[-5:-3]
    monkeypatch.setattr(terminal, "WIDTH", 60)
    parts = [line for line in cli("compare", *runs, "--by-seed").stdout.splitlines() if " linear " in line]
    assert len(parts) > 1  # method and score stand before each part of the table
    assert any(f"{100 * spread['mean']:.2f}%" in line for line in parts)


def test_scores_and_diagnosis_of_a_run_that_cannot_be_written_are_printed(
    cli: Cli, finished: Finished, monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path, content: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("rayfed_ssl.analysis.rescoring.write_table", refuse)
    monkeypatch.setattr("rayfed_ssl.analysis.diagnosis.write_atomically", refuse)
    directory, _ = finished["flesd"]
    for words, printed, absent in (
        (("evaluate", directory, "--protocol", "knn"), "global", "appended to"),
        (("diagnose", directory), "effective rank", "file:"),
    ):
        result = cli(*words)
        assert result.exit_code == 0
        assert printed in result.stdout
        assert absent not in result.stdout
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"warning: the results are printed, but not written (Read-only file system: {directory}")
