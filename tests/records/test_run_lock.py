"""The lock of a run's directory: it comes before the first file, and a start that fails leaves nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfed_ssl import run
from rayfed_ssl.errors import BusyError, ConfigError
from rayfed_ssl.records.run_lock import claimed
from rayfed_ssl.records.run_record import RunRecord
from tests.conftest import tiny_tree


@pytest.fixture(params=["missing", "empty", "locked by a start that was killed"])
def free(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory in which a run may start."""
    directory = tmp_path / "runs" / "first"
    if request.param != "missing":
        directory.mkdir(parents=True)
    if request.param.startswith("locked"):
        (directory / "checkpoints").mkdir()
        (directory / "checkpoints" / "lock").touch()
    return directory


def test_a_start_that_fails_leaves_a_directory_as_free_as_it_was(free: Path, tiny: Any):
    existed = free.exists()

    def fail(federation: object) -> Any:
        raise RuntimeError("Ray did not start")

    with pytest.raises(RuntimeError, match="Ray did not start"):
        run(tiny("fedavg"), free, executor=fail)
    assert free.exists() == existed
    assert not existed or not list(free.iterdir())
    assert run(tiny("fedavg", "rounds=1"), free).record.last_round == 1


def test_two_starts_at_once_are_refused_before_either_has_written(free: Path):
    with claimed(free):
        with (
            pytest.raises(BusyError, match=f"^another process is running {free}: wait for it or stop it"),
            claimed(free),
        ):
            pass
        assert sorted(path.name for path in free.rglob("*")) == ["checkpoints", "lock"]


def test_a_directory_that_was_filled_while_its_lock_was_free_is_refused_and_kept(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "lock").touch()
    (tmp_path / "checkpoints" / "round-1").touch()
    with pytest.raises(ConfigError, match="is not an empty directory"), claimed(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checkpoints", "lock", "round-1"]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_of_processes_that_start_at_once_one_runs_and_the_others_lose_nothing_of_its(tmp_path: Path, attempt: int):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny_tree("fedavg")))
    command = [sys.executable, "-m", "tune.cli", "run", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "run")]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    starts = [subprocess.Popen([*command, "--quiet", f"seed={seed}"], **pipes) for seed in range(3)]
    errors = [start.communicate(timeout=300)[1] for start in starts]
    codes = [start.returncode for start in starts]
    assert sorted(codes) == [0, 2, 2]
    winner = codes.index(0)
    for loser in {0, 1, 2} - {winner}:
        assert errors[loser].startswith("error: ")
        assert "another process is running" in errors[loser] or "is not an empty directory" in errors[loser]
        assert errors[loser].count("\n") == 1
    config = RunRecord.open(tmp_path / "run").config()
    assert config.seed == winner
    alone = run(config, tmp_path / "alone").record
    assert alone.manifest.rounds[-1].state_sha256 == RunRecord.open(tmp_path / "run").manifest.rounds[-1].state_sha256
