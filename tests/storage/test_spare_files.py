"""Large files are overwritten instead of removed, unless somebody still reads them."""

import os
from pathlib import Path

import pytest
import torch

from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.filesystem import LocalDirectory
from rayfed_ssl.storage.spare_files import HAS_LEASES, MIN_BYTES
from rayfed_ssl.trees import digest

pytestmark = pytest.mark.skipif(not HAS_LEASES, reason="only Linux says whether a file is in use")

LARGE = MIN_BYTES // 4


def inode(directory: Path, name: str) -> int:
    return (directory / f"{name}.safetensors").stat().st_ino


def test_a_state_is_written_over_one_that_is_not_needed_whatever_its_size(tmp_path: Path):
    states = [{"w": torch.randn(LARGE + 1000 * extra)} for extra in (5, 0, 9)]
    previous = None
    for round, state in enumerate(states):
        stored = checkpoints.store(state, tmp_path, f"client-000000-{round:06d}")
        assert digest(checkpoints.read(stored, tmp_path)) == digest(state)
        assert previous in (None, inode(tmp_path, f"client-000000-{round:06d}"))
        previous = inode(tmp_path, f"client-000000-{round:06d}")
        LocalDirectory(tmp_path).delete([stored.file])


def test_a_state_that_somebody_reads_stays_what_it_is(tmp_path: Path):
    before = {"w": torch.randn(LARGE)}
    stored = checkpoints.store(before, tmp_path, "client-000000-000000")
    read = checkpoints.read(stored, tmp_path)  # maps the file
    LocalDirectory(tmp_path).delete([stored.file])
    checkpoints.store({"w": torch.randn(LARGE)}, tmp_path, "client-000000-000001")
    assert digest(read) == digest(before)
    assert not os.listdir(tmp_path / "spare")


def test_a_state_is_not_written_over_one_of_another_kind(tmp_path: Path):
    stored = checkpoints.store({"w": torch.randn(LARGE)}, tmp_path, "client-000000-000000")
    LocalDirectory(tmp_path).delete([stored.file])
    checkpoints.store({"w": torch.randn(LARGE)}, tmp_path, "server-000001")
    assert os.listdir(tmp_path / "spare") == [stored.file]


def test_no_more_files_stay_than_are_removed_at_a_time_and_none_in_the_end(tmp_path: Path):
    directory = LocalDirectory(tmp_path)
    for round in range(3):
        for client in range(2):
            (tmp_path / f"client-{client}-{round}.safetensors").write_bytes(bytes(MIN_BYTES))
        (tmp_path / "small").write_bytes(b"1")
        directory.delete([f"client-{client}-{round}.safetensors" for client in range(2)] + ["small", "missing"])
        assert os.listdir(tmp_path) == ["spare"]
        assert len(os.listdir(tmp_path / "spare")) == 2
    directory.discard_spares()
    assert os.listdir(tmp_path) == []
