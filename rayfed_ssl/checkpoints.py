"""Checkpoints: trees in safetensors files, a JSON manifest that makes a round count, nothing that runs when loaded.

A round is committed by its manifest, which is written last and moved into place: a run that is killed at any moment leaves
the last complete round. States that did not change since an earlier round are not written again.
"""

import dataclasses
import hashlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rayfed_ssl.method import Empty
from rayfed_ssl.trees import Tree, digest, is_node

KEPT_ROUNDS = 2
"""How many rounds stay on disk: the last, and one before it in case the last is damaged."""


EARLIER = "go on from an earlier round with `rayfed-ssl resume RUN --round N`, or start anew"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says which file, why, and what to do."""


@dataclass(frozen=True)
class Stored:
    """A state on disk: its file in the checkpoint directory ("" for an empty state) and the digest of its content."""

    file: str
    sha256: str


@dataclass(frozen=True)
class RunState:
    """All that a run needs to go on after a round.

    Generators are not part of it: every draw follows from (seed, round, client).
    """

    round: int
    server: Stored
    clients: Mapping[int, Stored] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Digest of the round, the server's and every client's state: equal digests mean equal bits."""
        parts = [f"round:{self.round}", f"server:{self.server.sha256}"]
        parts += [f"client-{client_id}:{self.clients[client_id].sha256}" for client_id in sorted(self.clients)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def encode(tree: Tree) -> tuple[Any, dict[str, Tensor]]:
    """Split a tree into plain JSON data and named tensors."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()

    def visit(node: Tree, path: str) -> Any:
        if isinstance(node, Tensor):
            own = node.detach().cpu().contiguous()
            # safetensors refuses tensors that share memory.
            tensors[path] = own.clone() if own.untyped_storage().data_ptr() in seen else own
            seen.add(own.untyped_storage().data_ptr())
            return {"tensor": path}
        if isinstance(node, dict):
            return {"dict": [[key, visit(value, f"{path}/{key}")] for key, value in node.items()]}
        if isinstance(node, list | tuple):
            return {type(node).__name__: [visit(value, f"{path}/{i}") for i, value in enumerate(node)]}
        if is_node(node):
            kind = f"{type(node).__module__}:{type(node).__qualname__}"
            names = [f.name for f in dataclasses.fields(node)]
            return {"class": kind, "fields": {name: visit(getattr(node, name), f"{path}/{name}") for name in names}}
        return {"value": node}

    return visit(tree, ""), tensors


def decode(structure: Any, tensors: Mapping[str, Tensor]) -> Tree:
    """Join what `encode` split; only dataclasses of this package are made."""
    if "tensor" in structure:
        return tensors[structure["tensor"]]
    if "dict" in structure:
        return {key: decode(value, tensors) for key, value in structure["dict"]}
    if "list" in structure:
        return [decode(value, tensors) for value in structure["list"]]
    if "tuple" in structure:
        return tuple(decode(value, tensors) for value in structure["tuple"])
    if "class" in structure:
        fields = {name: decode(value, tensors) for name, value in structure["fields"].items()}
        return _dataclass(structure["class"])(**fields)
    return structure["value"]


def _dataclass(kind: str) -> type:
    module, _, name = kind.partition(":")
    if module.split(".")[0] != "rayfed_ssl":
        raise CheckpointError(f"a checkpoint may hold states of rayfed_ssl only, got {kind}: do not load this file")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise CheckpointError(f"a checkpoint may hold dataclasses only, got {kind}: do not load this file")
    return found


def write_durably(path: Path, content: bytes) -> None:
    """Write beside the path, flush to disk, then move into place: readers see all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def store(tree: Tree, directory: Path, name: str) -> Stored:
    """Write a state; an empty one needs no file."""
    if isinstance(tree, Empty):
        return Stored("", digest(tree))
    structure, tensors = encode(tree)
    write_durably(directory / f"{name}.safetensors", save(tensors, {"structure": json.dumps(structure)}))
    return Stored(f"{name}.safetensors", digest(tree))


def read(stored: Stored, directory: Path) -> Tree:
    """Read a state and check it against its digest.

    Raises:
        CheckpointError: The file is missing, damaged or was changed.
    """
    if not stored.file:
        return Empty()
    path = directory / stored.file
    tree = read_file(path)
    if digest(tree) != stored.sha256:
        raise CheckpointError(f"{path} does not hold what its manifest says: {EARLIER}")
    return tree


class StoredStates(Mapping[int, Tree]):
    """Client states by id in ascending order, each read when it is asked for.

    Args:
        stored: Where they lie.
        directory: The checkpoint directory.
    """

    def __init__(self, stored: Mapping[int, Stored], directory: Path) -> None:
        self._stored, self._directory = stored, directory

    def __getitem__(self, client_id: int) -> Tree:
        return read(self._stored[client_id], self._directory)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._stored))

    def __len__(self) -> int:
        return len(self._stored)


def read_file(path: Path) -> Tree:
    """Read a tree without a digest to check it against."""
    try:
        with safe_open(path, framework="pt") as file:
            structure = json.loads((file.metadata() or {})["structure"])
            return decode(structure, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {EARLIER}") from None
    except (SafetensorError, ImportError, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged ({error}): {EARLIER}") from None


def metadata(path: Path) -> dict[str, str]:
    """Read what a safetensors file says about itself, without its tensors.

    Raises:
        CheckpointError: It is missing, or no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            found: dict[str, str] = file.metadata() or {}
            return found
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {EARLIER}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors ({error}): write or copy it again") from None


def manifests(directory: Path) -> dict[int, Path]:
    """Find committed rounds in ascending order."""
    paths = [path for path in directory.glob("round-*.json") if path.stem.removeprefix("round-").isdecimal()]
    found = {int(path.stem.removeprefix("round-")): path for path in paths}
    return dict(sorted(found.items()))


def commit(state: RunState, directory: Path) -> None:
    """Make a round count, then remove what no kept round refers to."""
    content = {
        "round": state.round,
        "server": dataclasses.asdict(state.server),
        "clients": {str(client_id): dataclasses.asdict(own) for client_id, own in sorted(state.clients.items())},
        "state_sha256": state.sha256,
    }
    write_durably(directory / f"round-{state.round:06d}.json", json.dumps(content, indent=1).encode())
    kept = list(manifests(directory).values())[-KEPT_ROUNDS:]
    for path in manifests(directory).values():
        if path not in kept:
            path.unlink()
    referenced = {stored.file for path in kept for stored in _stored_in(load(path))}
    for path in directory.glob("*.safetensors"):
        if path.name not in referenced:
            path.unlink()


def forget_after(directory: Path, round: int) -> None:
    """Take back what was committed after a round, so that going on from it cannot be mistaken for being done."""
    for later, path in reversed(manifests(directory).items()):
        if later > round:
            path.unlink()


def _stored_in(state: RunState) -> Iterator[Stored]:
    yield state.server
    yield from state.clients.values()


def load(path: Path) -> RunState:
    """Read a manifest.

    Raises:
        CheckpointError: It is damaged.
    """
    try:
        content = json.loads(path.read_text())
        clients = {int(client_id): Stored(**own) for client_id, own in content["clients"].items()}
        state = RunState(content["round"], Stored(**content["server"]), clients)
        if content["state_sha256"] != state.sha256:
            raise ValueError("its digest does not fit its content")
        return state
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): delete it to go on from the round before") from None


def latest(directory: Path, round: int | None = None) -> RunState:
    """Read the last committed round, or a given one.

    Raises:
        CheckpointError: There is none, or it is damaged.
    """
    found = manifests(directory)
    if not found:
        raise CheckpointError(f"{directory} holds no complete round: start the run anew")
    if round is not None and round not in found:
        there = ", ".join(map(str, found))
        raise CheckpointError(f"{directory} does not hold round {round}: it holds {there}")
    return load(found[max(found) if round is None else round])
