"""Going on after a power loss: files that were not flushed to disk are empty."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfed_ssl import Config, resume, run
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import background as settling
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage import filesystem as places
from rayfed_ssl.storage.background import Task, side_by_side
from rayfed_ssl.storage.checkpoints import CheckpointError, RunState, Stored
from rayfed_ssl.storage.filesystem import Folder, write_durably
from rayfed_ssl.storage.recovery import checked, last_intact
from tests.engine.test_faults import Told
from tests.stopping import Stop, StopAt
from tests.test_runs import facts


class SlowDisk(Folder):
    """Flushes what it is told to only when it is let to; what was flushed is noted."""

    def __init__(self, address: str | Path) -> None:
        super().__init__(address)
        self.free = threading.Event()
        self.flushed: set[str] = set()

    def settle(self, names: Any) -> None:
        if names:
            assert self.free.wait(20)
        super().settle(names)
        self.flushed |= set(names)


def state(place: Folder, round: int, **clients: Stored) -> RunState:
    server = checkpoints.store({"w": torch.full((10,), float(round))}, place, f"server-{round:06d}")
    return RunState(round, server, {int(name[1:]): stored for name, stored in clients.items()})


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    """Round 1 was flushed, 2 is being, 5 was committed; client 7 has a state since round 3."""
    monkeypatch.setattr(checkpoints, "AT_ONCE", 0)
    monkeypatch.setattr(settling, "FLUSH_EVERY", 0)
    place = SlowDisk(tmp_path)
    place.free.set()
    checkpoints.commit(state(place, 1), place)
    place.settling.wait()
    place.free.clear()
    own = {}
    for round in range(2, 6):
        if round == 3:
            own["c7"] = checkpoints.store({"w": torch.ones(9)}, place, f"client-000007-{round:06d}")
        checkpoints.commit(state(place, round, **own), place)
    assert sorted(checkpoints.manifests(place)) == [1, 2, 4, 5]
    yield place
    place.free.set()
    with suppress(CheckpointError):  # a process that was killed would flush nothing any more
        place.settling.wait()


@pytest.mark.parametrize(
    ("damaged", "left"),
    [(("client-000007-000003",), 2), (("server-000005",), 4), (("client-000007-000003", "server-000002"), 1)],
)
def test_a_run_goes_back_to_a_round_that_lost_nothing(
    interrupted: SlowDisk, tmp_path: Path, damaged: tuple[str, ...], left: int
):
    for name in damaged:
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    found, lost = last_intact(Folder(tmp_path))
    assert found.round == left
    assert lost is not None
    assert lost.startswith(f"going back to round {left}, the last that is whole: ")
    assert f"{damaged[0]}.safetensors is damaged" in lost


def test_no_more_rounds_lie_on_disk_than_doctor_reckons_with(interrupted: SlowDisk):
    state(interrupted, 6)
    servers = [name for name in interrupted.names() if name.startswith("server-")]
    assert len(servers) == checkpoints.ROUNDS_AT_ONCE


def test_a_manifest_that_was_lost_is_passed_over(interrupted: SlowDisk, tmp_path: Path):
    (tmp_path / "round-000005.json").write_bytes(b"")
    found, lost = last_intact(Folder(tmp_path))
    assert found.round == 4
    assert lost is not None
    assert "round-000005.json is damaged" in lost


def test_a_later_round_is_flushed_before_the_run_goes_on_from_it(interrupted: SlowDisk, tmp_path: Path):
    place = SlowDisk(tmp_path)
    place.free.set()
    found, lost = last_intact(place)
    assert (found.round, lost) == (5, None)
    assert place.flushed == {*found.files, "round-000005.json"}
    again = checkpoints.settled(Folder(tmp_path))
    assert again is not None
    assert again.round == 5


def test_a_round_that_was_flushed_stays_until_a_later_one_is(interrupted: SlowDisk, tmp_path: Path):
    place = SlowDisk(tmp_path)
    place.free.set()
    found, _ = last_intact(place)
    place.free.clear()
    checkpoints.forget_after(place, found.round)
    for round in range(6, 10):
        checkpoints.commit(state(place, round), place)
    assert sorted(checkpoints.manifests(place)) == [5, 6, 8, 9]
    place.free.set()
    place.settling.wait()
    assert checkpoints.settled(Folder(tmp_path)) == checkpoints.latest(place, 6)


def test_a_round_that_is_asked_for_is_checked_and_not_replaced(interrupted: SlowDisk, tmp_path: Path):
    (tmp_path / "server-000004.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"server-000004\.safetensors is damaged"):
        checked(checkpoints.latest(tmp_path, 4), Folder(tmp_path))


def test_a_round_that_will_be_written_anew_is_not_taken_for_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoints, "AT_ONCE", 0)
    monkeypatch.setattr(settling, "FLUSH_EVERY", 0)
    place = SlowDisk(tmp_path)
    place.free.set()
    for round in (1, 2):
        checkpoints.commit(state(place, round), place)
        place.settling.wait()
    checkpoints.forget_after(place, 1)
    place.free.clear()
    checkpoints.commit(state(place, 2), place)
    found = checkpoints.settled(Folder(tmp_path))
    assert found is None or found.round == 1
    place.free.set()
    place.settling.wait()


def test_small_rounds_are_flushed_first_and_need_no_note(tmp_path: Path):
    place = Folder(tmp_path)
    for round in (1, 2):
        checkpoints.commit(state(place, round), place)
    assert "settled.json" not in place.names()
    assert checkpoints.settled(tmp_path) == checkpoints.latest(tmp_path)


def test_a_run_that_lost_its_last_rounds_repeats_them(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = tiny("local", "rounds=4", "evaluation.every=1")
    whole = run(config, tmp_path / "whole")
    monkeypatch.setattr(checkpoints, "AT_ONCE", 0)
    monkeypatch.setattr(settling, "FLUSH_EVERY", 0)
    with pytest.raises(Stop):
        run(config, tmp_path / "run", observer=StopAt("on_client", 4))
    folder = tmp_path / "run" / "checkpoints"
    (folder / "settled.json").unlink(missing_ok=True)
    (folder / "client-000001-000003.safetensors").write_bytes(b"")
    notes = Told()
    assert facts(resume(tmp_path / "run", observer=notes).directory) == facts(whole.directory)
    (line,) = [line for line in notes.warnings if "going back to round 2" in line]
    assert "client-000001-000003.safetensors is damaged" in line
    assert [row["round"] for row in RunRecord.open(tmp_path / "run").summary["rounds"]] == [1, 2, 3, 4]


def test_a_run_that_is_stopped_leaves_nothing_that_goes_on(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flush = Folder.settle

    def slowly(place: Folder, names: Any) -> None:
        time.sleep(0.5)
        flush(place, names)

    monkeypatch.setattr(checkpoints, "AT_ONCE", 0)
    monkeypatch.setattr(settling, "FLUSH_EVERY", 0)
    monkeypatch.setattr(Folder, "settle", slowly)
    with pytest.raises(Stop):
        run(tiny("local"), tmp_path / "run", observer=StopAt("on_client", 2))
    assert not {"settling", "removal"} & {thread.name for thread in threading.enumerate()}
    assert checkpoints.settled(tmp_path / "run" / "checkpoints") is not None


def test_a_flush_that_fails_when_a_run_is_stopped_is_told(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(place: Folder, names: Any) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(checkpoints, "AT_ONCE", 0)
    monkeypatch.setattr(settling, "FLUSH_EVERY", 0)
    monkeypatch.setattr(Folder, "settle", fail)
    with pytest.raises(Stop), pytest.warns(RuntimeWarning) as caught:
        run(tiny("local"), tmp_path / "run", observer=StopAt("on_client", 1))
    (line,) = [str(warning.message) for warning in caught]
    assert line.startswith("the last rounds could not be flushed to disk")
    assert "No space left" in line


def test_files_are_flushed_while_the_program_ends():
    program = (
        "import threading, time\n"
        "from rayfed_ssl.storage.background import side_by_side\n"
        "def late():\n"
        "    time.sleep(0.3)\n"
        "    side_by_side(print, ['a', 'b', 'c'], 2)\n"
        "threading.Thread(target=late).start()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert sorted("".join(ended.stdout.split())) == ["a", "b", "c"]
    assert not ended.stderr


def test_what_is_done_side_by_side_is_done_and_what_failed_is_told():
    done: list[str] = []

    def do(item: str) -> None:
        done.append(item)
        if item == "3":
            raise OSError("not 3")

    side_by_side(do, [], 4)
    with pytest.raises(OSError, match="not 3"):
        side_by_side(do, [str(number) for number in range(9)], 4)
    assert sorted(done) == [str(number) for number in range(9)]


def test_who_is_told_to_end_waits_until_what_goes_on_is_over():
    class EndedError(Exception):
        pass

    def end(*_: object) -> None:
        raise EndedError

    over: list[bool] = []

    def go_on() -> None:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        over.append(True)

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(EndedError):
            Task(go_on, "going on").wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert over


def test_a_round_that_the_record_lost_is_repeated(tiny: Callable[..., Config], tmp_path: Path):
    whole = run(tiny("local"), tmp_path / "run")
    before = facts(whole.directory)
    path = whole.directory / "run.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"rounds": summary["rounds"][:1]}))
    with pytest.raises(CheckpointError, match=r"run\.json ends with round 1, before round 2"):
        resume(whole.directory, round=2)
    told = Told()
    assert facts(resume(whole.directory, observer=told).directory) == before
    assert told.warnings == [
        "going back to round 1, the last that is whole: run.json ends with round 1, before round 2"
    ]


def test_what_is_written_durably_is_found_after_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        steps.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_durably(tmp_path / "run.json", b"{}")
    assert steps == ["file", "replace", "directory"]


def test_that_rounds_were_taken_back_is_on_disk_before_they_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = Folder(tmp_path)
    for round in (1, 2):
        checkpoints.commit(state(place, round), place)
    left: list[list[int]] = []
    flush = places._flush_directory

    def note(path: Path) -> None:
        left.append(list(checkpoints.manifests(path)))
        flush(path)

    monkeypatch.setattr(places, "_flush_directory", note)
    checkpoints.forget_after(place, 1)
    assert left[-1] == [1]
