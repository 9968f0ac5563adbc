"""Where states lie: addresses, what is refused, what a full disk does."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfed_ssl import Config, ConfigError, resume, run
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import join, open_backend
from rayfed_ssl.storage.filesystem import LocalDirectory
from tests.stopping import StopAt
from tests.test_runs import facts

Tiny = Callable[..., Config]


def test_a_path_has_several_spellings(tmp_path: Path):
    assert open_backend(str(tmp_path)) == open_backend(f"file://{tmp_path}") == LocalDirectory(tmp_path)
    assert open_backend("~/states") == LocalDirectory(Path.home() / "states")


@pytest.mark.parametrize("address", ["ftp://host/x", "s3:///prefix", "http://bucket"])
def test_an_unknown_address_is_refused(address: str):
    with pytest.raises(ConfigError, match=r"is no storage address: give a directory, s3://bucket/prefix"):
        open_backend(address)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="holds a password") as caught:
        open_backend("s3://key:secret@bucket/prefix")
    assert "secret" not in str(caught.value).replace("AWS_SECRET_ACCESS_KEY", "")


def test_a_name_goes_before_an_addresss_options():
    assert join("s3://bucket/prefix?region=x", "run") == "s3://bucket/prefix/run?region=x"
    assert join("/a/b?c/", "run") == "/a/b?c/run"


def test_writing_where_no_directory_is_says_that_machines_must_share_it(tmp_path: Path):
    with pytest.raises(OSError, match=r"no such directory on .* must name a directory that all machines share"):
        checkpoints.store({"w": torch.ones(3)}, LocalDirectory(tmp_path / "gone"), "state")


def test_a_directory_that_cannot_be_made_is_refused_before_the_run_begins(tiny: Tiny, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file.* cannot be made \(Not a directory\): correct engine\.checkpoints"):
        run(tiny("fedavg", f"engine.checkpoints={tmp_path / 'file'}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_runs_with_one_root_have_directories_of_their_own_below_it(tiny: Tiny, tmp_path: Path):
    config = tiny("local", f"engine.checkpoints={tmp_path / 'states'}")
    first, second = (run(config, tmp_path / name / "run") for name in "ab")
    folders = sorted((tmp_path / "states").iterdir())
    assert len(folders) == 2
    assert {first.record.checkpoints, second.record.checkpoints} == {LocalDirectory(folder) for folder in folders}
    assert [path.name for path in (first.directory / "checkpoints").iterdir()] == ["lock"]
    plain = run(tiny("local"), tmp_path / "plain")
    assert facts(first.directory) == facts(second.directory) == facts(plain.directory)
    assert facts(resume(first.directory, round=1).directory) == facts(plain.directory)


def test_moved_states_are_found_below_the_new_root(tiny: Tiny, tmp_path: Path):
    result = run(tiny("local", f"engine.checkpoints={tmp_path / 'old'}"), tmp_path / "run")
    before = facts(result.directory)
    with pytest.raises(ConfigError, match=r"new.* holds no states: copy them there"):
        resume(result.directory, f"engine.checkpoints={tmp_path / 'new'}")
    (tmp_path / "old").rename(tmp_path / "new")
    assert facts(resume(result.directory, f"engine.checkpoints={tmp_path / 'new'}", round=1).directory) == before
    assert str(result.record.checkpoints).startswith(str(tmp_path / "new"))


class FullDisk(StopAt):
    """Limits files to 400 bytes from a moment of a run on, like a full disk."""

    def stop(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.fixture
def free_space() -> Iterator[Callable[[], None]]:
    """Lift the limit of `FullDisk`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def undisturbed(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The facts of a run without a full disk."""
    return facts(run(tiny("local"), tmp_path_factory.mktemp("runs") / "run").directory)


SLOW = [pytest.param(hook, marks=pytest.mark.slow) for hook in ("on_round", "on_server", "on_evaluations")]


@pytest.mark.parametrize("hook", ["on_client", "on_round_end", "on_commit", *SLOW])
def test_a_disk_that_fills_up_costs_the_running_round(
    tiny: Tiny, tmp_path: Path, free_space: Callable[[], None], undisturbed: tuple[Any, ...], hook: str
):
    with pytest.raises(OSError, match="File too large") as caught:
        run(tiny("local"), tmp_path / "run", observer=FullDisk(hook, 2))
    free_space()
    assert caught.value.filename is not None
    committed = {"on_round": (0, 1), "on_evaluations": (2,)}.get(hook, (1,))  # a round begins while one is written
    assert checkpoints.latest(tmp_path / "run" / "checkpoints").round in committed
    assert not list((tmp_path / "run").rglob(".*"))
    assert facts(resume(tmp_path / "run").directory) == undisturbed


def test_the_error_of_a_full_disk_says_what_to_do(tmp_path: Path, free_space: Callable[[], None]):
    FullDisk("on_round", 0).stop()
    with pytest.raises(
        OSError, match=r"File too large, free space and continue with `rayfed-ssl resume`.*state\.safetensors"
    ):
        checkpoints.store({"w": torch.ones(1000)}, tmp_path, "state")
    free_space()
    assert not list(tmp_path.iterdir())
