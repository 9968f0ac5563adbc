"""Runs of somebody else: what they name is not imported, and their numbers are read all the same."""

import itertools
import json
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import Result

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.foreign import plugins
from rayfed_ssl.records.manifest import settings_sha256
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.encoder_file import load_encoder, read_export
from rayfed_ssl.trees import digest
from tests.config.test_plugins import SOURCE
from tests.tune.conftest import Cli, Finished
from tune.studies.execution.directory import StudyDirectory

EVIL = "evil_module:Thing"

NAMES: dict[str, dict[str, Any]] = {
    "method": {"method": {"name": EVIL, "mu": 1}},
    "inner method": {"method": {"name": "fedfoa", "base": {"name": EVIL}}},
    "objective": {"objective": {"name": EVIL}},
    "optimizer": {"training": {"epochs": 1, "batch": 32, "optimizer": {"name": EVIL}}},
    "partition": {"partition": {"name": EVIL, "command": "touch x"}},
    "command": {"partition": {"name": "os:system", "command": "touch executed"}},
    "dataset": {"data": {"name": EVIL}},
    "views": {"training": {"views": EVIL}},
    "encoder": {"model": {"encoder": EVIL}},
    "client's encoder": {"clients": {"number": 3, "models": ["cnn", EVIL]}},
}

COMMANDS = {
    "evaluate": ["evaluate", "RUN"],
    "protocol": ["evaluate", "RUN", "--protocol", "knn"],
    "diagnose": ["diagnose", "RUN"],
    "replay": ["replay", "RUN", "--round", "2", "--client", "0"],
    "resume": ["resume", "RUN", "-q"],
    "export": ["export", "RUN", "encoder.safetensors"],
}


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work where a module lies that leaves a file when it is imported, in a process that has allowed nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plugins, "_allowed", set())
    (tmp_path / "evil_module.py").write_text("open('executed', 'w')\n\ndef Thing(labels, channels): ...\n")
    yield tmp_path
    sys.modules.pop("evil_module", None)


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Path:
    """A run of somebody else."""
    return Path(shutil.copytree(finished["local"][0], tmp_path / "run"))


def rename(run: Path, changes: dict[str, Any]) -> None:
    """Name code in the run's configuration."""
    tree = yaml.safe_load((run / "config.yaml").read_text())
    for key, fields in changes.items():
        whole = key in ("method", "objective", "partition", "public")
        tree[key] = fields if whole else tree[key] | fields
    (run / "config.yaml").write_text(yaml.safe_dump(tree))


def words(command: str, run: Path) -> list[str]:
    return [str(run) if word == "RUN" else word for word in COMMANDS[command]]


def contents(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_run_of_somebody_else_names_is_refused_in_one_line(cli: Cli, run: Path, command: str, name: str):
    rename(run, NAMES[name])
    before = contents(run.parent)
    result = cli(*words(command, run))
    named = "os:system" if name == "command" else EVIL
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.output
    assert f"{run}/config.yaml names " in result.stderr
    assert f"={named!r}, which would import the module" in result.stderr
    assert "--trust" in result.stderr
    after = contents(run.parent)
    assert {file: after[file] for file in before} == before
    assert set(after) - set(before) <= {"run/checkpoints/lock"}


@pytest.mark.parametrize("name", NAMES)
def test_runs_that_name_foreign_code_are_compared_with_others(cli: Cli, run: Path, finished: Finished, name: str):
    rename(run, NAMES[name])
    manifest = json.loads((run / "run.json").read_text())
    manifest["rounds"][-1]["state_sha256"] = "0" * 64
    (run / "run.json").write_text(json.dumps(manifest))
    runs = (run, *(finished[other][0] for other in ("flesd", "local")))
    shown, plain = (cli("compare", *runs, option) for option in ("--by-seed", "--json"))
    assert (shown.exit_code, plain.exit_code) == (0, 0), shown.output + plain.output
    assert plain.stdout.count("state_sha256") == 3
    assert "run and local have equal settings and different digests" in " ".join(shown.output.split())
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["method", pytest.param("command", marks=pytest.mark.slow)])
def test_a_report_has_the_numbers_of_a_run_that_names_foreign_code(cli: Cli, run: Path, name: str):
    rename(run, NAMES[name])
    result = cli("report", run, "--out", "report.html")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "which would import the module" in (text := Path("report.html").read_text())
    assert "Samples by client, from the run&#39;s record" in text
    assert not Path("executed").exists()


def test_os_system_is_no_partition_even_where_it_is_trusted(cli: Cli, run: Path):
    rename(run, NAMES["command"])
    result = cli("evaluate", run, "--trust")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "partition=os:system must be a Python function that takes labels" in result.stderr
    assert not Path("executed").exists()


FETCHING = "a directory whose README names an address"

FETCHED: dict[str, dict[str, Any]] = {
    FETCHING: {"data": {"name": "hub", "path": "hubdir"}},
    "a name on the Hub": {"data": {"name": "hub", "path": "owner/name"}},
    "public data": {"public": "hub:hubdir:20"},
    "another dataset": {
        "evaluation": {"protocols": ["transfer-fedca"], "settings": {"transfer-fedca": {"dataset": "hub:hubdir"}}}
    },
    "published weights": {"data": {"channels": 3}, "model": {"encoder": "torchvision:resnet18", "pretrained": True}},
}


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lists what this process asks the network for."""
    asked: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: asked.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: asked.append(address) or [])
    return asked


def changed_run(finished: Finished, tree: dict[str, Any]) -> Path:
    """A run of somebody else with other settings, of which its record knows."""
    run = Path(shutil.copytree(finished["flesd"][0], "run"))
    rename(run, tree)
    manifest = json.loads((run / "run.json").read_text())
    manifest["settings_sha256"] = settings_sha256(RunRecord.open(run).described_config())
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def test_a_dataset_is_not_allowed_by_a_setting_that_happens_to_have_its_name(
    cli: Cli, finished: Finished, connections: list[Any]
):
    result = cli("evaluate", changed_run(finished, {"data": {"name": "hub", "path": "local"}}), "engine.executor=local")
    assert (connections, result.exit_code) == ([], 2)
    assert "names the dataset hub:local, which would be fetched" in result.stderr


@pytest.mark.parametrize("name", FETCHED)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_of_somebody_else_does_not_touch_the_network(
    cli: Cli, finished: Finished, command: str, name: str, connections: list[Any]
):
    Path("hubdir").mkdir()
    Path("hubdir/README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: http://127.0.0.1:9/train.parquet\n---\n"
    )
    result = cli(*words(command, changed_run(finished, FETCHED[name])))
    assert not connections
    if command == "export":
        assert result.exit_code == 0
    elif name != "published weights" or command == "resume":
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert ", which would " in result.stderr
        assert "fetch" in result.stderr
        assert "add --trust" in result.stderr


LOOKS = ("clock", "partition", "doctor", "verify", "sweep --dry-run", "reproduce --size=cpu --dry-run")


@pytest.fixture
def recipe(finished: Finished) -> Path:
    """A recipe of somebody else, with a clock."""
    tree = yaml.safe_load((finished["local"][0] / "config.yaml").read_text()) | {"clock": {"devices": "even"}}
    Path("config.yaml").write_text(yaml.safe_dump(tree))
    return Path("config.yaml")


def look(cli: Cli, recipe: Path, command: str, *more: object) -> Result:
    """Call a command on a recipe, or on a study of it."""
    verb, *options = command.split()
    study: dict[str, Any] = {"title": "T", "recipe": str(recipe), "set": {"clock": None}, "rows": {"a": {}}}
    study |= (
        {"score": "knn", "columns": {"b": {}}, "sizes": {"cpu": {}}} if verb == "reproduce" else {"maximize": "knn"}
    )
    Path("study.yaml").write_text(yaml.safe_dump(study))
    return cli(verb, "study.yaml" if options else recipe, *options, *more)


@pytest.mark.parametrize(
    ("command", "name"),
    [*itertools.product(LOOKS, NAMES), *((command, FETCHING) for command in LOOKS if command != "verify")],
)
def test_looking_at_a_file_of_somebody_else_imports_and_fetches_nothing(
    cli: Cli, recipe: Path, command: str, name: str, connections: list[Any]
):
    rename(Path(), (NAMES | FETCHED)[name])
    result = look(cli, recipe, command)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.output
    assert "add --trust" in result.stderr
    assert "config.yaml names " in result.stderr or name not in NAMES
    assert not connections
    assert not Path("executed").exists()


@pytest.mark.parametrize("command", LOOKS)
def test_looking_on_trust_imports(cli: Cli, recipe: Path, command: str):
    rename(Path(), NAMES["method"])
    assert look(cli, recipe, command, "--trust").exit_code == 2
    assert Path("executed").exists()


def test_what_the_user_types_is_imported_beside_a_file_of_somebody_else(cli: Cli, recipe: Path):
    assert cli("partition", recipe, f"data.name={EVIL}").exit_code == 2
    assert Path("executed").exists()


def test_a_dry_run_lists_the_trials_beside_those_that_would_import(cli: Cli):
    study = {"title": "T", "recipe": "digits", "maximize": "knn", "space": {"training.views": [EVIL, "digits"]}}
    Path("study.yaml").write_text(yaml.safe_dump(study))
    result = cli("sweep", "study.yaml", "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    states = {run["point"]: run["state"] for run in json.loads(result.stdout)["runs"]}
    assert f"study.yaml names view='{EVIL}', which would import" in states[f"training.views={EVIL}"]
    assert states["training.views=digits"] == "to do"
    assert not Path("executed").exists()


OUTSIDE = (
    "method={name: 'outside_module:Halved', damping: 0.25}",
    "objective=outside_module:Warmer",
    "partition={name: 'outside_module:striped', offset: 1}",
    "model={encoder: 'outside_module:mean_and_linear', projection_dim: 16}",
    "data={name: 'outside_module:Colored'}",
    "training.views=outside_module:noisy",
    "public=null",
)


@pytest.fixture
def own_run(cli: Cli, finished: Finished, tmp_path: Path) -> Iterator[Path]:
    """A run that names code, made by this user; later commands are as in a process of their own."""
    (tmp_path / "outside_module.py").write_text(SOURCE)
    result = cli("run", finished["local"][0] / "config.yaml", *OUTSIDE, "--out", tmp_path / "own", "-q")
    assert result.exit_code == 0, result.output
    plugins._allowed.clear()
    yield tmp_path / "own"
    sys.modules.pop("outside_module", None)


def call_anew(cli: Cli, *words: object) -> int:
    """Call a command as in a process of its own; returns its exit code."""
    plugins._allowed.clear()
    return cli(*words).exit_code


def test_code_is_imported_where_this_user_made_the_run(cli: Cli, own_run: Path):
    assert [call_anew(cli, *words(command, own_run)) for command in COMMANDS] == [0] * len(COMMANDS)


def test_code_of_a_copy_is_imported_on_trust_alone_until_it_is_resumed(cli: Cli, own_run: Path, tmp_path: Path):
    copy = Path(shutil.copytree(own_run, tmp_path / "copy"))
    for command in sorted(COMMANDS, key="resume".__eq__):
        assert call_anew(cli, *words(command, copy)) == 2
        assert call_anew(cli, *words(command, copy), "--trust") == 0
    assert call_anew(cli, *words("replay", copy)) == 0


def test_a_signature_is_of_the_configuration_that_it_was_made_of(cli: Cli, own_run: Path):
    (own_run / "config.yaml").write_text((own_run / "config.yaml").read_text() + "# changed\n")
    assert call_anew(cli, *words("replay", own_run)) == 2


def test_an_extended_run_is_still_this_user_s(cli: Cli, own_run: Path):
    assert call_anew(cli, "resume", own_run, "rounds=3", "-q") == 0
    assert call_anew(cli, "diagnose", own_run) == 0


def save_with_architecture(file: Path) -> None:
    """Write a run's encoder anew with code as its architecture, and its digest in the record."""
    export = read_export(file)
    evil = replace(export, info=replace(export.info, architecture=EVIL))
    file.write_bytes(b"".join(evil.chunks()))
    record = file.parent.parent / "run.json"
    manifest = json.loads(record.read_text())
    manifest["encoders"][file.stem] = digest(evil.encoder)
    record.write_text(json.dumps(manifest))


@pytest.mark.parametrize("command", ["export", "protocol", "report"])
def test_an_encoder_file_imports_nothing(cli: Cli, run: Path, command: str):
    file = run / "encoders" / "client-0.safetensors"
    save_with_architecture(file)
    asked = {
        "export": ["export", run, "out.safetensors"],
        "protocol": ["evaluate", file, "--protocol", "knn"],
        "report": ["report", run],
    }
    result = cli(*asked[command])
    said = result.stderr if command != "report" else Path("report.html").read_text()
    assert result.exit_code == (2 if command != "report" else 0), result.output
    assert "which would import the module" in said
    assert not Path("executed").exists()


def test_an_exported_encoder_is_built_by_its_code_on_trust_alone(cli: Cli, own_run: Path):
    assert call_anew(cli, "export", own_run, "own.safetensors") == 0
    plugins._allowed.clear()
    with pytest.raises(
        ConfigError, match=r"own\.safetensors names encoder='outside_module:mean_and_linear', which would"
    ):
        load_encoder("own.safetensors")
    assert load_encoder("own.safetensors", trust=True)(torch.rand(2, 3, 8, 8)).shape == (2, 5)


def test_a_sweep_of_somebody_else_is_not_run(cli: Cli, swept_part: StudyDirectory, tmp_path: Path):
    copy = Path(shutil.copytree(swept_part.path, tmp_path / "sweep"))
    before = contents(copy)
    for more in ([], ["seeds=3"]):
        refused = cli("sweep", "--resume", copy, *more)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert f"{copy} is not a study that you have made here: to run it, add --trust" in refused.stderr
    assert contents(copy) == before
    assert cli("sweep", "--status", copy).exit_code == 0
    assert not StudyDirectory.open(copy).trusted
    assert StudyDirectory.open(swept_part.path).trusted
    assert StudyDirectory.open(copy, trust=True).trusted


def test_a_signed_sweep_that_was_changed_is_somebody_else_s(swept_part: StudyDirectory, tmp_path: Path):
    own = StudyDirectory(tmp_path / "own", swept_part.record.model_copy())
    own.save()
    assert StudyDirectory.open(own.path).trusted
    text = (own.path / "study.json").read_text()
    (own.path / "study.json").write_text(text.replace('"inherited": {}', '"inherited": {"partition": "os:system"}'))
    assert not StudyDirectory.open(own.path).trusted
