"""Checkpoints: what goes in comes out, bit for bit, and what is damaged is said to be."""

import errno
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from rayfed_ssl.method import Empty, Encoder
from rayfed_ssl.storage import background as settling
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage import filesystem as places
from rayfed_ssl.storage.checkpoints import CheckpointError, RunState, Stored
from rayfed_ssl.storage.filesystem import Folder
from rayfed_ssl.trees import digest, digest_leaves, leaves

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64", "bool")

LEAVES: dict[str, Any] = {
    **{dtype: torch.tensor([[0, 1, 1], [1, 0, 1]]).to(getattr(torch, dtype)) for dtype in DTYPES},
    "scalar": torch.tensor(3.5),
    "no rows": torch.empty(0, 4),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "not finite": torch.tensor([float("nan"), float("inf"), -0.0]),
    "int": -(2**60),
    "float": 0.1,
    "float that is whole": 2.0,
    "bool": True,
    "none": None,
    "words": 'tröt "quoted"\n',
    "list": [1, [torch.ones(2)]],
    "tuple": (1, (torch.ones(2),)),
    "empty dict": {},
    "integer keys": {7: torch.ones(1), -1: 2},
    "dataclass": Encoder("cnn", {"w": torch.ones(2)}),
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_comes_back_as_it_was(tmp_path: Path, name: str):
    tree = {"first": LEAVES[name], "second": 1}
    back = checkpoints.read(checkpoints.store(tree, tmp_path, "state"), tmp_path)
    assert digest(back) == digest(tree)
    assert type(back["first"]) is type(LEAVES[name])


def test_a_bare_tensor_is_a_tree(tmp_path: Path):
    back = checkpoints.read(checkpoints.store(torch.arange(3), tmp_path, "state"), tmp_path)
    assert torch.equal(back, torch.arange(3))


def test_dict_keys_keep_their_order_and_type(tmp_path: Path):
    back = checkpoints.read(checkpoints.store({"b": 1, "a": 2, 3: 4}, tmp_path, "state"), tmp_path)
    assert list(back) == ["b", "a", 3]


def test_an_empty_state_needs_no_file(tmp_path: Path):
    stored = checkpoints.store(Empty(), tmp_path, "state")
    assert stored.file == ""
    assert not list(tmp_path.iterdir())
    assert checkpoints.read(stored, tmp_path) == Empty()


def stored_state(directory: Path) -> Stored:
    return checkpoints.store({"w": torch.arange(1000.0), "steps": 3}, directory, "state")


def test_a_flipped_bit_is_noticed(tmp_path: Path):
    stored = stored_state(tmp_path)
    path = tmp_path / stored.file
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"state\.safetensors does not hold what its manifest says"):
        checkpoints.read(stored, tmp_path)


@pytest.mark.parametrize("size", [0, 4, 100, 3000])
def test_a_truncated_file_is_noticed(tmp_path: Path, size: int):
    stored = stored_state(tmp_path)
    path = tmp_path / stored.file
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"state\.safetensors is damaged"):
        checkpoints.read(stored, tmp_path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"gone\.safetensors is missing: go on from an earlier round"):
        checkpoints.read(Stored("gone.safetensors", "0"), tmp_path)


STRANGE = {
    "foreign": ({"class": "os:system", "fields": {}}, "states of rayfed_ssl only, got os:system"),
    "foreign with our prefix": ({"class": "rayfed_ssl_evil:X", "fields": {}}, "states of rayfed_ssl only"),
    "function": ({"class": "rayfed_ssl.trees:digest", "fields": {}}, "dataclasses only"),
    "imported class": ({"class": "rayfed_ssl.storage.checkpoints:Place", "fields": {}}, "dataclasses only"),
    "no such class": ({"class": "rayfed_ssl.method:Nothing", "fields": {}}, "dataclasses only"),
    "other fields": ({"class": "rayfed_ssl.method:Encoder", "fields": {"x": {"value": 1}}}, "is damaged"),
    "no structure": ([1], "is damaged"),
    "missing tensor": ({"tensor": "/w"}, "is damaged"),
    "no such module": ({"class": "rayfed_ssl.nothing:X", "fields": {}}, "nothing"),
    "fields are a list": ({"class": "rayfed_ssl.method:Empty", "fields": [1]}, "is damaged"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_structure_that_is_not_ours_is_refused(tmp_path: Path, name: str):
    structure, message = STRANGE[name]
    path = tmp_path / "state.safetensors"
    path.write_bytes(save({}, {"structure": json.dumps(structure)}))
    with pytest.raises(CheckpointError, match=message):
        checkpoints.read_file(path)


def test_a_safetensors_file_of_another_program_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(save({"w": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        checkpoints.read_file(tmp_path / "model.safetensors")


def round_with_files(directory: Path, round: int, clients: tuple[int, ...], before: RunState | None = None) -> RunState:
    """A round in which some clients trained; the others' files stay those of earlier rounds."""
    server = checkpoints.store({"round": torch.tensor(round)}, directory, f"server-{round:06d}")
    states = dict(before.clients) if before else {}
    for client_id in clients:
        tree = {"w": torch.full((3,), round + client_id / 10)}
        states[client_id] = checkpoints.store(tree, directory, f"client-{client_id:06d}-{round:06d}")
    return RunState(round, server, states)


def test_a_committed_round_comes_back(tmp_path: Path):
    state = round_with_files(tmp_path, 1, (2, 0))
    checkpoints.commit(state, tmp_path)
    assert checkpoints.latest(tmp_path) == state
    states = checkpoints.StoredStates(state.clients, tmp_path)
    assert list(states) == [0, 2]
    assert len(states) == 2
    assert states[2]["w"].tolist() == [pytest.approx(1.2, rel=1e-6)] * 3  # float32 has 24 bits


def test_only_files_that_a_kept_round_refers_to_stay(tmp_path: Path):
    state: RunState | None = None
    for round, clients in enumerate([(), (0, 1, 2), (0,), (1,), (1,)]):
        state = round_with_files(tmp_path, round, clients, state)
        checkpoints.commit(state, tmp_path)
    assert sorted(checkpoints.manifests(tmp_path)) == [3, 4]
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        "client-000000-000002.safetensors",
        "client-000001-000003.safetensors",
        "client-000001-000004.safetensors",
        "client-000002-000001.safetensors",
        "server-000003.safetensors",
        "server-000004.safetensors",
    ]


def test_leftovers_of_a_killed_writer_are_ignored(tmp_path: Path):
    state = round_with_files(tmp_path, 1, (0,))
    checkpoints.commit(state, tmp_path)
    (tmp_path / ".round-000002.json.4711").write_text('{"round": 2, "ser')
    (tmp_path / "server-000002.safetensors").write_bytes(b"half")
    assert checkpoints.latest(tmp_path) == state


def test_writing_durably_leaves_nothing_else_behind(tmp_path: Path):
    places.write_durably(tmp_path / "a.json", b"one")
    places.write_durably(tmp_path / "a.json", b"two")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.json", b"two")]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    places.write_durably(tmp_path / "a.json", b"one")
    monkeypatch.setattr("os.replace", no_space)
    with pytest.raises(OSError, match="no space"):
        places.write_durably(tmp_path / "a.json", b"two")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.json", b"one")]


def test_no_manifest_is_an_error_that_says_so(tmp_path: Path):
    with pytest.raises(CheckpointError, match="holds no complete round: start the run anew"):
        checkpoints.latest(tmp_path)


def test_a_round_that_is_not_there_is_an_error_that_lists_those_that_are(tmp_path: Path):
    for round in (4, 5):
        checkpoints.commit(round_with_files(tmp_path, round, (0,)), tmp_path)
    with pytest.raises(CheckpointError, match="does not hold round 3: it holds 4, 5"):
        checkpoints.latest(tmp_path, 3)
    assert checkpoints.latest(tmp_path, 4).round == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [('"round": 1', '"round": 2'), ("}", ""), ('"server"', '"sever"'), ('"clients": {', '"clients": 3, "x": {')],
    ids=["other round", "cut", "other key", "other type"],
)
def test_a_changed_manifest_is_noticed(tmp_path: Path, old: str, new: str):
    checkpoints.commit(round_with_files(tmp_path, 1, (0,)), tmp_path)
    path = tmp_path / "round-000001.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(CheckpointError, match=r"round-000001\.json is damaged .* go on from the round before"):
        checkpoints.latest(tmp_path)


def test_the_digest_of_a_run_depends_on_round_server_and_every_client():
    def state(round: int = 1, server: str = "s", **clients: str) -> str:
        return RunState(round, Stored("f", server), {int(k[1]): Stored("f", v) for k, v in clients.items()}).sha256

    digests = {
        state(c0="a", c1="b"),
        state(c0="b", c1="a"),
        state(c0="a"),
        state(round=2, c0="a", c1="b"),
        state(server="t", c0="a", c1="b"),
    }
    assert len(digests) == 5
    assert state(c1="b", c0="a") == state(c0="a", c1="b")


def test_tensors_that_share_memory_are_stored(tmp_path: Path):
    shared = torch.arange(3.0)
    tree = {"online": shared, "target": shared}
    assert digest(checkpoints.read(checkpoints.store(tree, tmp_path, "state"), tmp_path)) == digest(tree)


def test_all_files_of_a_round_are_flushed_to_disk_before_its_manifest_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flushed: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        flushed.append(f"-> {target.name}")
        replace(source, target)

    state = round_with_files(tmp_path, 1, (0, 1))
    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    checkpoints.commit(state, tmp_path)
    before = flushed[: flushed.index("-> round-000001.json")]
    assert state.files < set(before)
    assert before[-1].startswith(".round-000001.json")
    flushed.clear()
    checkpoints.commit(replace_round(state, 2), tmp_path)
    assert not state.files & set(flushed), "what was flushed in an earlier round is not flushed again"


def replace_round(state: RunState, round: int) -> RunState:
    return RunState(round, state.server, state.clients)


def test_any_library_reads_the_files(tmp_path: Path):
    tree = {"a": torch.randn(3, 5), "b": {"c": torch.arange(7, dtype=torch.int16), "none": torch.empty(0, 4)}}
    stored = checkpoints.store(tree, tmp_path, "state")
    read = load_file(tmp_path / stored.file)
    assert {name: value.tolist() for name, value in read.items()} == {
        "/a": tree["a"].tolist(),
        "/b/c": list(range(7)),
        "/b/none": [],
    }
    assert stored.nbytes == 3 * 5 * 4 + 7 * 2


def test_states_of_a_round_to_come_stay_and_what_killed_writers_left_goes(tmp_path: Path):
    checkpoints.commit(round_with_files(tmp_path, 1, ()), tmp_path)
    for name in ("client-000000-000003", "client-000000-000001"):
        checkpoints.store({"w": torch.ones(2)}, tmp_path, name)
    (tmp_path / ".client-000000-000002.safetensors.4711").write_bytes(b"half")
    checkpoints.commit(round_with_files(tmp_path, 2, ()), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "client-000000-000003.safetensors",
        "round-000001.json",
        "round-000002.json",
        "server-000001.safetensors",
        "server-000002.safetensors",
    ]


def test_a_state_whose_digest_is_plain_sha256_can_be_read(tmp_path: Path):
    state = {"weights": torch.arange(10_000.0)}
    stored = checkpoints.store(state, tmp_path, "server-000001")
    plain = replace(stored, sha256=digest_leaves(leaves(state), plainly=True))
    assert plain.sha256 != stored.sha256
    assert checkpoints.read(plain, tmp_path)["weights"].equal(state["weights"])


def test_large_states_are_flushed_in_the_background_and_the_last_flushed_round_stays(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(checkpoints, "AT_ONCE", 0)
    monkeypatch.setattr(settling, "FLUSH_EVERY", 0)
    place, over = Folder(tmp_path), threading.Event()
    monkeypatch.setattr(place, "settle", lambda names: over.wait(20))
    states = []
    for round in range(1, 6):
        stored = checkpoints.store({"weights": torch.full((10,), round)}, place, f"server-{round:06d}")
        states.append(RunState(round, stored))
        checkpoints.commit(states[-1], place)
    assert sorted(checkpoints.manifests(place)) == [1, 4, 5]
    over.set()
    checkpoints.settle(states[-1], place)
    checkpoints.commit(RunState(6, states[-1].server), place)
    assert sorted(checkpoints.manifests(place)) == [5, 6]


def test_what_goes_wrong_while_flushing_is_told_at_the_next_commit(tmp_path: Path, monkeypatch):
    def fail(names: Any) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(checkpoints, "AT_ONCE", 0)
    monkeypatch.setattr(settling, "FLUSH_EVERY", 0)
    place = Folder(tmp_path)
    monkeypatch.setattr(place, "settle", fail)
    stored = checkpoints.store({"weights": torch.ones(10)}, place, "server-000001")
    checkpoints.commit(RunState(1, stored), place)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.settle(RunState(1, stored), place)
