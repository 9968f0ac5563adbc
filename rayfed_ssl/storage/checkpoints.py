"""Checkpoints: trees in safetensors files, a JSON manifest that makes a round count, nothing that runs when loaded.

What holds, in a directory as in a bucket:

- A round counts once its manifest is in place, which is written last, as a whole. A run that is killed at any moment, by
  any signal, in any process, goes on from the last complete round: at most the running round is lost.
- A power loss may take more. What is new in a round is flushed to disk before its manifest is written if it is below
  `AT_ONCE`; larger states are flushed every half a minute while the run goes on, and the last round that was flushed stays
  until a later one is. Which one that is lies on disk too, so that a run that goes on (`recovery`) knows what it can trust.
- A state is checked against its digest when it is read, except by the run that wrote it, and a manifest against its own.
  If the last round is damaged, the one before it is there: `KEPT_ROUNDS` rounds stay, and every file that they name.

States that did not change since an earlier round are not written again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rayfed_ssl.errors import CheckpointError
from rayfed_ssl.method import Empty
from rayfed_ssl.storage import round_files
from rayfed_ssl.storage.filesystem import Directory, Place, place_of
from rayfed_ssl.storage.round_files import STATES, is_of_later_round, manifest_name, manifests_in
from rayfed_ssl.storage.tensor_files import EARLIER, chunks, encode
from rayfed_ssl.trees import Tree, digest, digest_leaves, leaves

KEPT_ROUNDS = 2
"""How many rounds stay: the last, and one before it in case the last is damaged."""

ROUNDS_AT_ONCE = KEPT_ROUNDS + 3
"""How many rounds' states lie there at most: besides, the last that was flushed, the one being flushed, the running one."""

AT_ONCE = 8_000_000
"""Bytes up to which a round's new states are flushed before it counts; a common disk takes 40 ms for them."""


@dataclass(frozen=True)
class Stored:
    """A state that was written.

    Attributes:
        file: Its file in the checkpoint directory, "" for an empty state.
        sha256: Digest of its content.
        nbytes: Bytes of its tensors; 0 if it was written before this was noted.
    """

    file: str
    sha256: str
    nbytes: int = field(default=0, compare=False)


@dataclass(frozen=True)
class RunState:
    """All that a run needs to go on after a round.

    Generators are not part of it: every draw follows from (seed, round, client).
    """

    round: int
    server: Stored
    clients: Mapping[int, Stored] = field(default_factory=dict)

    @cached_property
    def sha256(self) -> str:
        """Digest of the round, the server's and every client's state: equal digests mean equal bits."""
        parts = [f"round:{self.round}", f"server:{self.server.sha256}"]
        parts += [f"client-{client_id}:{self.clients[client_id].sha256}" for client_id in sorted(self.clients)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def files(self) -> frozenset[str]:
        """Every file that this state lies in."""
        return frozenset(stored.file for stored in (self.server, *self.clients.values()) if stored.file)

    def nbytes_beside(self, files: frozenset[str]) -> int:
        """Sum the bytes of the states that are not in these files."""
        return sum(stored.nbytes for stored in (self.server, *self.clients.values()) if stored.file not in files)


def store(tree: Tree, directory: Directory, name: str) -> Stored:
    """Write a state, which `commit` makes last; an empty one needs no file.

    Raises:
        OSError: There is no room, no permission, no connection; the message says which.
    """
    if isinstance(tree, Empty):
        return Stored("", digest(tree))
    structure, tensors = encode(tree)
    # Hashing takes as long as writing and both let go of the interpreter's lock.
    with ThreadPoolExecutor(1) as hashing:
        sha256 = hashing.submit(digest_leaves, ((path, tensors.get(path, leaf)) for path, leaf in leaves(tree)))
        place_of(directory).write(name + STATES, chunks(structure, tensors))
        return Stored(name + STATES, sha256.result(), sum(tensor.nbytes for tensor in tensors.values()))


def read(stored: Stored, directory: Directory, *, check: bool = True) -> Tree:
    """Read a state and check it against its digest, unless the same run wrote it, in whichever round and process.

    Raises:
        CheckpointError: The file is missing, damaged or was changed.
    """
    if not stored.file:
        return Empty()
    place = place_of(directory)
    tree = place.read_tree(stored.file)
    if check and digest(tree) != stored.sha256 != digest_leaves(leaves(tree), plainly=True):
        raise CheckpointError(f"{place.file(stored.file)} does not hold what its manifest says: {EARLIER}")
    return tree


class StoredStates(Mapping[int, Tree]):
    """Client states by id in ascending order, each read when it is asked for.

    Args:
        stored: Where they lie.
        directory: The checkpoint directory.
    """

    def __init__(self, stored: Mapping[int, Stored], directory: Directory) -> None:
        self._stored, self._directory = stored, directory

    def __getitem__(self, client_id: int) -> Tree:
        return read(self._stored[client_id], self._directory)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._stored))

    def __len__(self) -> int:
        return len(self._stored)


def read_file(path: Path) -> Tree:
    """Read a tree without a digest to check it against.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    return place_of(path.parent).read_tree(path.name)


def manifests(directory: Directory) -> dict[int, str]:
    """Find the manifests of committed rounds, in ascending order of rounds."""
    return manifests_in(place_of(directory).names())


def commit(state: RunState, directory: Directory) -> None:
    """Make a round count, then remove what no kept round refers to.

    A `Place` that is given again remembers what its kept rounds refer to, and flushes large states and removes files while
    the next round runs; for a path the manifests are read, and nothing is left to do afterwards.

    Raises:
        OSError: There is no room, no permission, no connection; the message says which.
        CheckpointError: A file of the state is not there.
    """
    place = place_of(directory)
    known, anew = (place.kept, False) if place.kept is not None else (_kept_in(place), True)
    if anew:
        on_disk = settled(place)
        place.settling.settled = None if on_disk is None else (on_disk.round, on_disk.files)
    if isinstance(directory, Path) or place.is_durable or state.nbytes_beside(place.settling.files) <= AT_ONCE:
        _settle_first(state, place)
    else:
        place.write(manifest_name(state.round), [_manifest(state, is_settled=False)])
        place.settling.begin(state.round, state.files, partial(_settle, state, place, place.settling.files))
    rounds = known | {state.round: state.files}
    place.kept = {round: rounds[round] for round in sorted(rounds)[-KEPT_ROUNDS:]} | place.settling.needed
    _clean(place, anew)
    if place is not directory:
        place.wait()


def _settle_first(state: RunState, place: Place) -> None:
    place.settling.wait()
    place.settle(state.files - place.settling.files)
    place.write(manifest_name(state.round), [_manifest(state, is_settled=True)], durably=True)
    place.settle(())
    place.settling.settled = state.round, state.files


def _settle(state: RunState, place: Place, before: frozenset[str]) -> None:
    place.settle(state.files - before)
    place.settle([manifest_name(state.round)])
    round_files.note_settled(place, state.round)


def settle(state: RunState, directory: Directory) -> None:
    """See that a committed round outlives a power loss.

    Raises:
        OSError: It cannot be written to disk.
        CheckpointError: A file of the state is not there.
    """
    place = place_of(directory)
    place.settling.wait()
    if place.settling.settled is None or place.settling.settled[0] != state.round:
        _settle(state, place, place.settling.files)
        place.settling.settled = state.round, state.files


def settled(directory: Directory) -> RunState | None:
    """Find the last round that is known to outlive a power loss."""
    place = place_of(directory)
    noted = round_files.noted_as_settled(place)
    for round, name in reversed(manifests(place).items()):
        with suppress(CheckpointError):
            content, state = _read_manifest(place, name)
            if place.is_durable or round == noted or content.get("settled"):
                return state
    return None


def _kept_in(place: Place) -> dict[int, frozenset[str]]:
    """Read what the kept rounds refer to; one that is damaged keeps nothing."""
    found = {}
    for round, name in list(manifests(place).items())[-KEPT_ROUNDS:]:
        with suppress(CheckpointError):
            found[round] = load(place, name).files
    return found


def _clean(place: Place, leftovers: bool) -> None:
    """Remove states and manifests that are not kept, and perhaps what writers that were killed left behind."""
    assert place.kept
    wanted = {manifest_name(round) for round in place.kept}.union(*place.kept.values())
    names = place.names()
    manifests_there = set(manifests_in(names).values())
    unwanted = [
        name
        for name in names
        if name not in wanted
        and (name in manifests_there or (name.endswith(STATES) and not is_of_later_round(name, max(place.kept))))
    ]
    place.delete_later(
        unwanted + [name for name in names if leftovers and name.startswith((".client-", ".server-", ".round-"))]
    )


def _manifest(state: RunState, *, is_settled: bool) -> bytes:
    clients = {str(client_id): vars(own) for client_id, own in sorted(state.clients.items())}
    content = {"round": state.round, "server": vars(state.server), "clients": clients, "state_sha256": state.sha256}
    return json.dumps(content | {"settled": is_settled}).encode()


def forget_after(directory: Directory, round: int) -> None:
    """Take back what was committed after a round, so that going on from it cannot be mistaken for being done."""
    place = place_of(directory)
    place.kept = None
    round_files.forget_settled(place, round)
    for later, name in reversed(manifests(place).items()):
        if later > round:
            place.delete([name])
    place.settle(())  # before anything of those rounds is written anew


def load(directory: Directory, name: str) -> RunState:
    """Read a manifest.

    Raises:
        CheckpointError: It is damaged.
    """
    return _read_manifest(place_of(directory), name)[1]


def _read_manifest(place: Place, name: str) -> tuple[dict[str, Any], RunState]:
    try:
        content = json.loads(place.read(name))
        clients = {int(client_id): Stored(**own) for client_id, own in content["clients"].items()}
        state = RunState(content["round"], Stored(**content["server"]), clients)
        if content["state_sha256"] != state.sha256:
            raise ValueError("its digest does not fit its content")
        return content, state
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        FileNotFoundError,
        IsADirectoryError,
    ) as error:
        raise CheckpointError(
            f"{place.file(name)} is damaged ({error}): delete it to go on from the round before"
        ) from None


def latest(directory: Directory, round: int | None = None) -> RunState:
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
    return load(directory, found[max(found) if round is None else round])
