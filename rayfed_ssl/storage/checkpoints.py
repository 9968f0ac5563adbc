"""Checkpoints: trees in safetensors files, and a JSON manifest per committed round; nothing loaded executes code.

- A round is committed when its manifest is in place, which is written last and atomically. A run that is killed at any
  moment resumes from the last committed round.
- States and manifests are checked against their digests when they are read.
- The last `KEPT_ROUNDS` rounds stay, with every file that they name, so that a step of the last can be replayed.

States that did not change since an earlier round are not written again.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from rayfed_ssl.errors import CheckpointError, reason
from rayfed_ssl.foreign.own_files import STATE, own_drafts, own_states
from rayfed_ssl.foreign.reading import plain_json
from rayfed_ssl.method import Empty
from rayfed_ssl.storage.addresses import Directory, backend_of
from rayfed_ssl.storage.backend import StorageBackend
from rayfed_ssl.storage.filesystem import REACHABLE
from rayfed_ssl.storage.tensor_files import RESTORE, STRUCTURE, chunks, encode
from rayfed_ssl.trees import Tree, digest, digest_leaves, leaves
from rayfed_ssl.validation import STRICT

KEPT_ROUNDS = 2
"""How many rounds stay: the last, and the one that it began from."""

STATES = ".safetensors"


@dataclass(frozen=True)
class Stored:
    """A state that was written: its file (none for an empty state), the digest of its content and its tensors' bytes."""

    __pydantic_config__ = STRICT

    file: Annotated[str, Field(pattern=rf"^({STATE})?$")]
    sha256: str
    nbytes: int = field(default=0, compare=False)


@dataclass(frozen=True)
class RunState:
    """All that a run needs to continue after a round; every draw follows from (seed, round, client).

    Attributes:
        schedule: Digest of the schedule up to this round, if there is a clock.
        versions: Older states of the server, by round, that contributions to later rounds start from.
    """

    __pydantic_config__ = STRICT

    round: int
    server: Stored
    clients: Mapping[int, Stored] = field(default_factory=dict)
    schedule: Annotated[str | None, Field(exclude_if=lambda digest: digest is None)] = None
    versions: Annotated[Mapping[int, Stored], Field(exclude_if=lambda versions: not versions)] = field(
        default_factory=dict
    )

    @cached_property
    def sha256(self) -> str:
        """Digest of the round, the server's and every client's state: equal digests mean equal bits.

        With a clock the schedule up to this round is part of it.
        """
        parts = [f"round:{self.round}", f"server:{self.server.sha256}"]
        parts += [f"client-{client_id}:{self.clients[client_id].sha256}" for client_id in sorted(self.clients)]
        parts += [] if self.schedule is None else [f"schedule:{self.schedule}"]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def states(self) -> tuple[Stored, ...]:
        """The server's states and all clients'."""
        return (self.server, *self.clients.values(), *self.versions.values())

    def server_of(self, version: int) -> Stored:
        """Find the server's state after a round, for contributions to this one."""
        return self.server if version == self.round - 1 else self.versions[version]

    @property
    def files(self) -> frozenset[str]:
        """Every file of this round's states."""
        return frozenset(stored.file for stored in self.states if stored.file)


@dataclass(frozen=True)
class Manifest:
    """The content of a round's JSON file."""

    __pydantic_config__ = STRICT

    state: RunState
    state_sha256: str


MANIFEST = TypeAdapter(Manifest)


def store(tree: Tree, directory: Directory, name: str) -> Stored:
    """Write a state, which counts once `commit` names it; an empty one needs no file.

    Raises:
        OSError: No space, no permission or no connection; the message says which.
    """
    if isinstance(tree, Empty):
        return Stored("", digest(tree))
    structure, tensors = encode(tree)
    # Hashing takes as long as writing, and both release the interpreter's lock.
    with ThreadPoolExecutor(1) as hashing:
        sha256 = hashing.submit(digest_leaves, ((path, tensors.get(path, leaf)) for path, leaf in leaves(tree)))
        backend_of(directory).write(name + STATES, chunks({STRUCTURE: json.dumps(structure)}, tensors))
        return Stored(name + STATES, sha256.result(), sum(tensor.nbytes for tensor in tensors.values()))


def read(stored: Stored, directory: Directory) -> Tree:
    """Read a state and check it against its digest.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    backend = backend_of(directory)
    tree = backend.read_tree(stored.file) if stored.file else Empty()
    if digest(tree) != stored.sha256:
        raise CheckpointError(f"{backend.file(stored.file)} does not match the digest in its manifest: {RESTORE}")
    return tree


class StoredStates(Mapping[int, Tree]):
    """Client states by id in ascending order, each read on access."""

    def __init__(self, stored: Mapping[int, Stored], directory: Directory) -> None:
        self._stored, self._directory = stored, directory

    def __getitem__(self, client_id: int) -> Tree:
        return read(self._stored[client_id], self._directory)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._stored))

    def __len__(self) -> int:
        return len(self._stored)


def manifest_name(round: int) -> str:
    """Name the manifest of a round."""
    return f"round-{round:06d}.json"


def manifests(directory: Directory) -> dict[int, str]:
    """Find the manifests of committed rounds, in ascending order of rounds."""
    return _manifests_in(backend_of(directory).names())


def _manifests_in(names: Iterable[str]) -> dict[int, str]:
    matches = [match for name in names if (match := re.fullmatch(r"round-(\d+)\.json", name, re.ASCII))]
    return dict(sorted((int(match[1]), match[0]) for match in matches))


def commit(state: RunState, directory: Directory) -> None:
    """Write a round's manifest, then remove what no kept round refers to.

    Raises:
        OSError: No space, no permission or no connection; the message says which.
        CheckpointError: A file of the state is missing.
    """
    backend = backend_of(directory)
    names = set(backend.names())
    for file in sorted(state.files - names):
        if not backend.exists(file):
            raise CheckpointError(f"{backend.file(file)} was written on another machine: {REACHABLE}")
    manifest = MANIFEST.dump_json(Manifest(state, state.sha256))
    backend.write(manifest_name(state.round), [manifest])
    _remove_unused(backend, names, state)


def _remove_unused(backend: StorageBackend, names: set[str], state: RunState) -> None:
    """Remove earlier manifests and states, but not those that a late client writes for a later round."""
    older = {round: name for round, name in _manifests_in(names).items() if round != state.round}
    used = {*state.files, manifest_name(state.round)}
    for name in list(older.values())[-(KEPT_ROUNDS - 1) :]:
        used.add(name)
        used |= load(backend, name).files
    written_in = {name: int(name.removesuffix(STATES).rpartition("-")[2]) for name in own_states(names)}
    unused = {*older.values()} | {name for name, round in written_in.items() if round <= state.round}
    backend.delete(sorted(unused - used))


def discard_after(directory: Directory, round: int) -> None:
    """Remove the manifests of later rounds, the last first, and what writers that were killed left behind."""
    backend = backend_of(directory)
    later = [name for number, name in reversed(manifests(backend).items()) if number > round]
    backend.delete(later + own_drafts(backend.names()))


def load(directory: Directory, name: str) -> RunState:
    """Read a manifest.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    backend = backend_of(directory)
    try:
        manifest = MANIFEST.validate_python(
            plain_json(backend.read(name)), strict=False
        )  # keys of JSON are no integers
        if manifest.state_sha256 != manifest.state.sha256:
            raise ValueError("its digest does not match its content")
    except (ValueError, OSError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else reason(error)
        raise CheckpointError(f"{backend.file(name)} is damaged ({problem}): {RESTORE}") from None
    return manifest.state


def latest(directory: Directory, round: int | None = None) -> RunState:
    """Read the last committed round or a given one, without its states.

    Raises:
        CheckpointError: There is none, or it is damaged.
    """
    names = manifests(directory)
    if not names:
        raise CheckpointError(f"{directory} holds no committed round: start the run anew")
    if round is not None and round not in names:
        raise CheckpointError(f"{directory} does not hold round {round}: it holds {', '.join(map(str, names))}")
    return load(directory, names[max(names) if round is None else round])
