"""A run writes, deletes and follows nothing outside its directory, and deletes files of its own names only."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import Observer
from rayfed_ssl.errors import BusyError, CheckpointError, ConfigError
from rayfed_ssl.method import Empty
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.records.state_location import MARKER
from rayfed_ssl.runs import resume, run
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.trees import digest
from tests.tune.conftest import Cli, Finished
from tests.tune.test_trust import COMMANDS, contents, words
from tune.studies.execution.directory import StudyDirectory

PRECIOUS = {
    "server-000009.safetensors": b"weights",
    ".client-000001-000009.safetensors.0123abcd": b"half",
    "notes": b"n",
}


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Path:
    """A run of somebody else."""
    return Path(shutil.copytree(finished["local"][0], tmp_path / "run"))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory that no run may touch."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name, content in PRECIOUS.items():
        (folder / name).write_bytes(content)
    return folder


def set_manifest(run: Path, **changes: object) -> None:
    tree = json.loads((run / "run.json").read_text()) | changes
    (run / "run.json").write_text(json.dumps(tree))


@pytest.mark.parametrize("command", ["resume", "evaluate", "diagnose", "replay"])
def test_states_that_run_json_claims_without_a_marker_are_not_touched(
    cli: Cli, copy: Path, elsewhere: Path, command: str
):
    for file in (copy / "checkpoints").iterdir():
        shutil.copy(file, elsewhere)
    before = contents(elsewhere)
    for states_id in (None, "0" * 32):
        set_manifest(copy, checkpoints=str(elsewhere), states_id=states_id)
        for trust, problem in ([], ", outside of the run"), (["--trust"], ", where no marker of this run is"):
            result = cli(*words(command, copy), *trust)
            assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
            assert f"states are in {elsewhere}{problem}" in result.stderr
    assert contents(elsewhere) == before


@pytest.mark.parametrize("command", ["resume", "evaluate", "diagnose", "replay"])
def test_a_copy_of_a_run_does_not_touch_the_states_of_the_original(
    cli: Cli, tiny: Callable[..., Config], tmp_path: Path, command: str
):
    original = run(tiny("local", "rounds=2", f"engine.checkpoints={tmp_path / 'states'}"), tmp_path / "run").directory
    before = contents(tmp_path / "states")
    shutil.copytree(original, tmp_path / "copy")
    result = cli(*words(command, tmp_path / "copy"))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert "outside of the run, which you have not made here: nothing there was read or changed" in result.stderr
    assert contents(tmp_path / "states") == before


def test_states_are_written_by_one_process_at_a_time(tiny: Callable[..., Config], tmp_path: Path):
    original = run(tiny("local", "rounds=2", f"engine.checkpoints={tmp_path / 'states'}"), tmp_path / "run").directory
    shutil.copytree(original, tmp_path / "copy")
    with RunRecord.open(original).locked_states(), pytest.raises(BusyError, match=r"running a copy of .*: wait for it"):
        resume(tmp_path / "copy", trust=True)
    resume(tmp_path / "copy", trust=True)


@pytest.mark.parametrize("changes", [{"training": {"views": "x"}}, {"model": {"image_size": 4}}])
def test_an_export_of_an_unfinished_run_names_the_configuration_that_does_not_fit(
    cli: Cli, copy: Path, changes: dict[str, dict[str, object]]
):
    tree = yaml.safe_load((copy / "config.yaml").read_text())
    for section, settings in changes.items():
        tree[section] |= settings
    (copy / "config.yaml").write_text(yaml.safe_dump(tree))
    manifest = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(manifest | {"finished": None}))
    result = cli("export", copy, copy.parent / "encoder.safetensors")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert "config.yaml does not fit the encoder" in result.stderr


def test_a_table_is_not_written_through_links_out_of_its_directory(cli: Cli, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "keep").write_text("mine")
    (tmp_path / "out" / "trials.tmp").symlink_to(tmp_path / "keep")
    result = cli(
        "reproduce",
        "flesd-table1",
        "--size",
        "cpu",
        "--out",
        str(tmp_path / "out"),
        "data.name=digits",
        "data.size=null",
    )
    assert (result.exit_code, (tmp_path / "keep").read_text()) == (2, "mine")
    assert "trials.tmp is a link to" in result.stderr


def test_states_outside_a_run_carry_its_marker_and_move_with_it(tiny: Callable[..., Config], tmp_path: Path):
    directory = run(tiny("local", "rounds=2", f"engine.checkpoints={tmp_path / 'old'}"), tmp_path / "run").directory
    record = RunRecord.open(directory)
    assert record.checkpoints.read(MARKER).decode() == record.manifest.states_id
    (old,) = (tmp_path / "old").iterdir()
    moved = shutil.move(old, tmp_path / "new" / old.name)
    with pytest.raises(ConfigError, match="no marker of this run is"):
        resume(directory)
    digest = resume(directory, f"engine.checkpoints={tmp_path / 'new'}").state_sha256
    assert digest == record.manifest.rounds[-1].state_sha256
    (Path(moved) / MARKER).write_text("0" * 32)
    with pytest.raises(ConfigError, match="no marker of this run is"):
        resume(directory)
    os.rename(moved, tmp_path / moved.name)
    with pytest.raises(ConfigError, match="holds the states of another run"):
        resume(directory, f"engine.checkpoints={tmp_path}")


@pytest.mark.parametrize("name", ["..", ".", ""])
def test_states_have_a_directory_of_their_own(cli: Cli, copy: Path, elsewhere: Path, name: str):
    set_manifest(copy, checkpoints=f"/somewhere/{name}")
    before = contents(elsewhere)
    result = cli("resume", copy, f"engine.checkpoints={elsewhere}", "-q")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "run.json names no directory for its states" in result.stderr
    assert contents(elsewhere) == before


LINKS = (
    *("checkpoints", "encoders", "figures", "tables", "config.yaml", "run.json", "metrics.parquet"),
    *("checkpoints/client-000000-000002.safetensors", "tensorboard/inner"),
)


@pytest.mark.parametrize("name", LINKS)
def test_a_link_out_of_a_run_is_refused_before_anything_is_read(cli: Cli, copy: Path, tmp_path: Path, name: str):
    place, target = copy / name, tmp_path / "elsewhere"
    if place.exists():
        shutil.move(place, target)
    else:
        shutil.copytree(copy / "encoders", target)
        place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)
    before = contents(tmp_path)
    for command in (*COMMANDS, "compare", "report"):
        result = cli(*words(command, copy)) if command in COMMANDS else cli(command, copy)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
        assert f"{place} is a link to {target}, out of {copy}" in result.stderr
    assert contents(tmp_path) == before


def test_a_link_to_a_run_or_within_it_is_followed(cli: Cli, copy: Path, tmp_path: Path):
    (copy / "again.yaml").symlink_to("config.yaml")
    (tmp_path / "link").symlink_to(copy)
    assert cli("compare", tmp_path / "link").exit_code == 0


def test_a_link_out_of_a_sweep_is_refused(cli: Cli, swept_part: StudyDirectory, tmp_path: Path):
    sweep = Path(shutil.copytree(swept_part.path, tmp_path / "sweep"))
    shutil.move(sweep / "runs", tmp_path / "runs")
    (sweep / "runs").symlink_to(tmp_path / "runs")
    for asked in (["sweep", "--status", sweep], ["sweep", "--resume", sweep, "--trust"], ["report", sweep]):
        result = cli(*asked)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
        assert f"{sweep / 'runs'} is a link to {tmp_path / 'runs'}, out of" in result.stderr


KEPT = {
    "checkpoints/weights.safetensors": b"w",
    "checkpoints/.client-notes": b"n",
    "encoders/notes": b"n",
    "encoders/mine.safetensors": b"w",
    "encoders/more/global.safetensors": b"w",
    "tables/metrics-notes.parquet": b"n",
    "tables/metrics-000001-old.parquet": b"n",
}


def test_a_run_deletes_nothing_but_files_of_its_own_names(tiny: Callable[..., Config], tmp_path: Path):
    directory = run(tiny("local", "rounds=3"), tmp_path / "run", until=2).directory
    for name, content in KEPT.items():
        (directory / name).parent.mkdir(exist_ok=True, parents=True)
        (directory / name).write_bytes(content)
    resume(directory, round=1, observer=Observer())
    resume(directory, "rounds=4")
    assert {name: (directory / name).read_bytes() for name in KEPT} == KEPT


@pytest.mark.parametrize("file", ["../notes", "/etc/passwd", "notes.safetensors", "client-1-1.safetensors/x", ".."])
def test_a_manifest_names_files_of_states_alone(copy: Path, file: str):
    (_, name) = checkpoints.manifests(copy / "checkpoints").popitem()
    path = copy / "checkpoints" / name
    tree = json.loads(path.read_text())
    tree["state"]["server"]["file"] = file
    path.write_text(json.dumps(tree))
    with pytest.raises(CheckpointError, match=r"is damaged \(String should match pattern"):
        checkpoints.load(copy / "checkpoints", name)


@pytest.mark.parametrize("name", ["checkpoints", "encoders", "figures", "ledger.parquet", "run.json"])
@pytest.mark.parametrize("kind", ["pipe", "loop"])
def test_what_is_neither_a_file_nor_a_directory_is_not_waited_for(cli: Cli, copy: Path, name: str, kind: str):
    place = copy / name
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    os.mkfifo(place) if kind == "pipe" else place.symlink_to(place.name)
    for command in (*COMMANDS, "compare", "report"):
        result = cli(*words(command, copy)) if command in COMMANDS else cli(command, copy)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output


def test_a_manifest_that_leaves_out_a_state_is_refused(cli: Cli, finished: Finished, tmp_path: Path):
    copy = Path(shutil.copytree(finished["flesd"][0], tmp_path / "run"))
    (_, name) = checkpoints.manifests(copy / "checkpoints").popitem()
    tree = json.loads((copy / "checkpoints" / name).read_text())
    tree["state"]["server"] |= {"file": "", "sha256": digest(Empty())}
    tree["state_sha256"] = checkpoints.MANIFEST.validate_python(tree, strict=False).state.sha256
    (copy / "checkpoints" / name).write_text(json.dumps(tree))
    for command in ("evaluate", "diagnose"):
        result = cli(*words(command, copy))
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
        assert "the states of round 2 are not this method's" in result.stderr
