"""Cached results: found by all that they depend on, and computed anew where the file is missing or damaged."""

import os
from pathlib import Path

import pytest
from pydantic import FiniteFloat

from rayfed_ssl.engine.result_cache import CachedResult
from rayfed_ssl.foreign.signatures import is_signed, sign

Scores = dict[str, FiniteFloat]


def test_a_result_is_found_by_its_facts_alone(tmp_path: Path):
    CachedResult(tmp_path / "a", {"seed": 1, "shape": (1, 2)}, Scores).write({"knn": 0.5})
    assert CachedResult(tmp_path / "a", {"shape": [1, 2], "seed": 1}, Scores).read() == {"knn": 0.5}
    assert CachedResult(tmp_path / "a", {"seed": 2, "shape": (1, 2)}, Scores).read() is None


@pytest.mark.parametrize("content", [b"{", b"[1]", b"null", b'{"knn": null}', b'{"knn": NaN}', b"\xff\xfe"])
def test_a_damaged_file_is_as_none(tmp_path: Path, content: bytes):
    cached = CachedResult(tmp_path, {}, Scores)
    (tmp_path / f"{cached.key}.json").write_bytes(content)
    assert cached.read() is None


@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.touch() or os.truncate(file, 20 << 30)])
def test_a_pipe_and_a_sparse_file_of_20_gb_are_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make):
    cached = CachedResult(tmp_path, {}, Scores)
    make(tmp_path / f"{cached.key}.json")
    assert cached.read() is None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "rayfed-ssl").mkdir()
    make(key := tmp_path / "rayfed-ssl" / "key")
    signature = sign(tmp_path / "study.json", b"asked")
    assert (signature is None) == key.is_fifo()
    assert is_signed(tmp_path / "study.json", b"asked", signature or "0") != key.is_fifo()


def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path):
    (tmp_path / "file").touch()
    cached = CachedResult(tmp_path / "file", {}, Scores)
    cached.write({"knn": 0.5})
    assert cached.read() is None
