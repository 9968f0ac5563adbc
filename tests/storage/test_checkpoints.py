"""Checkpoints: what goes in comes out, bit for bit, and what is damaged is said to be."""

import errno
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from rayfed_ssl.method import Empty, Encoder
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import CheckpointError, RunState, Stored
from rayfed_ssl.storage.filesystem import LocalDirectory, write_atomically
from rayfed_ssl.trees import digest

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
    "text": 'tröt "quoted"\n',
    "list": [1, [torch.ones(2)]],
    "tuple": (1, (torch.ones(2),)),
    "empty dict": {},
    "integer keys": {7: torch.ones(1), -1: 2},
    "shared memory": (SHARED := torch.arange(3.0), SHARED),
    "dataclass": Encoder("cnn", {"w": torch.ones(2)}),
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_is_read_as_it_was_stored(tmp_path: Path, name: str):
    tree = {"first": LEAVES[name], "second": 1}
    back = checkpoints.read(checkpoints.store(tree, tmp_path, "state"), tmp_path)
    assert digest(back) == digest(tree)
    assert type(back["first"]) is type(LEAVES[name])


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
    with pytest.raises(CheckpointError, match=r"state\.safetensors does not match the digest in its manifest"):
        checkpoints.read(stored, tmp_path)


@pytest.mark.parametrize("size", [0, 4, 100, 3000])
def test_a_truncated_file_is_noticed(tmp_path: Path, size: int):
    stored = stored_state(tmp_path)
    path = tmp_path / stored.file
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"state\.safetensors is damaged"):
        checkpoints.read(stored, tmp_path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"gone\.safetensors is missing: restore it from a copy"):
        checkpoints.read(Stored("gone.safetensors", "0"), tmp_path)


STRANGE = {
    "foreign": ({"class": "os:system", "fields": {}}, "states of rayfed_ssl and .* only, got os:system"),
    "foreign with our prefix": ({"class": "rayfed_ssl_evil:X", "fields": {}}, "states of rayfed_ssl and"),
    "function": ({"class": "rayfed_ssl.trees:digest", "fields": {}}, "dataclasses only"),
    "imported class": ({"class": "rayfed_ssl.storage.checkpoints:LocalDirectory", "fields": {}}, "dataclasses only"),
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
        LocalDirectory(tmp_path).read_tree(path.name)


def test_a_safetensors_file_of_another_program_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(save({"w": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        LocalDirectory(tmp_path).read_tree("model.safetensors")


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


def test_a_write_leaves_no_other_file_and_the_old_content_if_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    for content in (b"one", b"two"):
        write_atomically(tmp_path / "a.json", content)
    monkeypatch.setattr("os.replace", no_space)
    with pytest.raises(OSError, match="no space"):
        write_atomically(tmp_path / "a.json", b"three")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.json", b"two")]


def test_a_missing_round_is_an_error_that_lists_the_others(tmp_path: Path):
    with pytest.raises(CheckpointError, match="holds no committed round: start the run anew"):
        checkpoints.latest(tmp_path)
    for round in (4, 5):
        checkpoints.commit(round_with_files(tmp_path, round, (0,)), tmp_path)
    with pytest.raises(CheckpointError, match="does not hold round 3: it holds 4, 5"):
        checkpoints.latest(tmp_path, 3)
    assert checkpoints.latest(tmp_path, 4).round == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"round":1', '"round":2'),
        ("}", ""),
        ('"server"', '"sever"'),
        ('"clients":{', '"clients":3,"x":{'),
        ('"round":1', '"round":"one"'),
    ],
    ids=["other round", "cut", "other key", "other type", "text for a number"],
)
def test_a_changed_manifest_is_noticed(tmp_path: Path, old: str, new: str):
    checkpoints.commit(round_with_files(tmp_path, 1, (0,)), tmp_path)
    path = tmp_path / "round-000001.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(CheckpointError, match=r"round-000001\.json is damaged .* restore it from a copy"):
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


def test_temporary_files_of_a_killed_writer_are_ignored_and_removed_on_resume(tmp_path: Path):
    state = round_with_files(tmp_path, 1, (0,))
    checkpoints.commit(state, tmp_path)
    before = sorted(tmp_path.iterdir())
    (tmp_path / ".round-000002.json.4711abcd").write_text('{"round": 2, "ser')
    (tmp_path / ".client-000000-000002.safetensors.4711abcd").write_bytes(b"half")
    checkpoints.store({"w": torch.ones(2)}, tmp_path, "server-000002")
    assert checkpoints.latest(tmp_path) == state
    checkpoints.discard_after(tmp_path, 1)
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "server-000002.safetensors"])


def test_states_of_a_later_round_stay_and_unused_ones_of_earlier_rounds_go(tmp_path: Path):
    checkpoints.commit(round_with_files(tmp_path, 1, ()), tmp_path)
    for name in ("client-000000-000003", "client-000000-000001"):
        checkpoints.store({"w": torch.ones(2)}, tmp_path, name)
    checkpoints.commit(round_with_files(tmp_path, 2, ()), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "client-000000-000003.safetensors",
        "round-000001.json",
        "round-000002.json",
        "server-000001.safetensors",
        "server-000002.safetensors",
    ]


def test_a_state_that_another_machine_wrote_elsewhere_is_noticed_before_the_commit(tmp_path: Path):
    here, elsewhere = LocalDirectory(tmp_path / "here"), LocalDirectory(tmp_path / "elsewhere")
    here.create()
    elsewhere.create()
    checkpoints.commit(RunState(0, checkpoints.store({"w": torch.ones(3)}, here, "server-000000")), here)
    server = checkpoints.store({"w": torch.ones(4)}, elsewhere, "server-000001")
    with pytest.raises(CheckpointError, match=r"server-000001\.safetensors was written on another machine: .* share"):
        checkpoints.commit(RunState(1, server), here)
    assert checkpoints.latest(here).round == 0


PLUGIN = """
from dataclasses import dataclass
from torch import Tensor
from rayfed_ssl.methods.fedavg import FedAvg
from plugin_states import Momentum

@dataclass(frozen=True)
class ServerState:
    weights: dict[str, Tensor]
    momentum: Momentum

class MyMethod(FedAvg):
    pass
"""

PLUGIN_STATES = """
from dataclasses import dataclass
from torch import Tensor

@dataclass(frozen=True)
class Momentum:
    values: dict[str, Tensor]

@dataclass(frozen=True)
class Other:
    value: int
"""


def test_states_of_a_loaded_method_from_outside_are_read_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "plugin_method.py").write_text(PLUGIN)
    (tmp_path / "plugin_states.py").write_text(PLUGIN_STATES)
    monkeypatch.syspath_prepend(tmp_path)
    method, states = importlib.import_module("plugin_method"), importlib.import_module("plugin_states")
    state = method.ServerState({"w": torch.ones(2)}, states.Momentum({"w": torch.zeros(2)}))
    back = checkpoints.read(checkpoints.store(state, tmp_path, "server-000001"), tmp_path)
    assert type(back) is method.ServerState
    assert digest(back) == digest(state)
    stored = checkpoints.store(states.Other(3), tmp_path, "server-000002")
    with pytest.raises(CheckpointError, match="got plugin_states:Other: do not load this file"):
        checkpoints.read(stored, tmp_path)


def test_a_module_that_no_configuration_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "never_imported.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    structure = {"class": "never_imported:State", "fields": {}}
    (tmp_path / "state.safetensors").write_bytes(save({}, {"structure": json.dumps(structure)}))
    with pytest.raises(CheckpointError, match="got never_imported:State: do not load this file"):
        LocalDirectory(tmp_path).read_tree("state.safetensors")
    assert "never_imported" not in sys.modules
