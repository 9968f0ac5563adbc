"""Uploads of a round in one process: what memory has no room for lies in a file, and no bit depends on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfed_ssl.engine import upload_store
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.round_loop import Observer, RunPlan, run_rounds
from rayfed_ssl.engine.upload_store import UploadStore
from rayfed_ssl.testing.trial import UploadsInUse
from rayfed_ssl.trees import digest

Open = Callable[..., Federation]

UPLOADS: dict[int, Any] = {
    client: {
        "weights": {"w": torch.full((70_000,), float(client)), "b": torch.tensor([client]), "none": torch.zeros(0, 2)},
        "flags": torch.tensor([True, False, client == 1]),
        "count": client,
    }
    for client in (5, 1, 3)
}


@pytest.mark.parametrize("room", [0, 300_000, 1 << 28], ids=["none", "one upload", "all"])
def test_uploads_come_back_in_ascending_id_with_their_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: int):
    monkeypatch.setattr(upload_store, "UPLOAD_BYTES", room)
    store = UploadStore()
    for _ in range(2):
        for client, upload in UPLOADS.items():
            store.add(client, upload, tmp_path)
        assert (list(store), len(store)) == ([1, 3, 5], 3)
        for _ in range(2):
            assert {client: digest(upload) for client, upload in store.items()} == {
                client: digest(UPLOADS[client]) for client in (1, 3, 5)
            }
        assert list(tmp_path.iterdir()) == [], "a process that is killed leaves no file"
        store.clear()
        assert list(store) == []


def test_a_directory_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(upload_store, "UPLOAD_BYTES", 0)
    with pytest.raises(OSError, match=r"no such directory.*missing/uploads"):
        UploadStore().add(1, UPLOADS[1], tmp_path / "missing")


class Counting:
    """A method whose clients' uploads are counted as long as they are in use."""

    def __init__(self, method: Any, in_use: UploadsInUse) -> None:
        self._method, self._in_use = method, in_use

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def update_client(self, *given: Any) -> Any:
        result = self._method.update_client(*given)
        self._in_use.add(result[0])
        return result


@pytest.mark.parametrize("name", ["fedavg", "flesd"])
def test_a_round_in_one_process_holds_no_more_uploads_than_memory_has_room_for(
    name: str, monkeypatch: pytest.MonkeyPatch, open_tiny: Open, tmp_path: Path
):
    most, digests = [], set()
    for room in (0, 1 << 28):
        monkeypatch.setattr(upload_store, "UPLOAD_BYTES", room)
        federation, in_use = open_tiny(name, "clients.number=6", "rounds=1"), UploadsInUse(())
        federation.method = Counting(federation.method, in_use)  # type: ignore[assignment]
        (directory := tmp_path / str(room)).mkdir()
        plan = RunPlan(1, federation.cohort, 0, directory)
        digests.add(run_rounds(plan, LocalExecutor(federation), Observer()).sha256)
        most.append(in_use.most)
    assert most[0] <= 2 < 6 == most[1]
    assert len(digests) == 1
