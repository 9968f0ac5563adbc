"""Where a run goes on that was stopped, perhaps by a power loss, which empties files that were not flushed to disk."""

from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import RunState
from rayfed_ssl.storage.filesystem import Directory, Folder, Place, place_of
from rayfed_ssl.storage.tensor_files import EARLIER


def last_intact(directory: Directory, recorded: int | None = None) -> tuple[RunState, str | None]:
    """Find the last committed round that can be gone on from, and flush it to disk.

    Rounds that are newer than the one that is known to be on disk may have lost files. Each state of theirs that is not in
    that round is checked, and a round with damage is passed over: going on from an earlier one gives the same bits.

    Args:
        directory: The checkpoint directory.
        recorded: The last round of the run's record; a later one is passed over, as what happened in it is not known.

    Returns:
        The round, and one line for the user if others were passed over.

    Raises:
        CheckpointError: There is none; the message is that of the last.
    """
    place, damage = place_of(directory), None
    for round, name in reversed(checkpoints.manifests(place).items()):
        try:
            check_recorded(round, recorded)
            state = checked(checkpoints.load(place, name), place)
        except CheckpointError as error:
            damage = damage or error
            continue
        if damage is None:
            return state, None
        return state, f"going back to round {round}, the last that is whole: {str(damage).rpartition(': ')[0]}"
    raise damage or CheckpointError(f"{directory} holds no complete round: start the run anew")


def check_moved(before: Place, place: Place, recorded: int, round: int | None) -> None:
    """Refuse to go on from a copy of a run's states that is older than they are.

    Args:
        before: Where they were last.
        place: Where they are to be now.
        recorded: The last round of the run's record, which may not have been committed.
        round: The round to go on from, if one is asked for.

    Raises:
        ConfigError: There are none, or older ones.
    """
    found = checkpoints.manifests(place)
    if not found:
        raise ConfigError(
            f"the states of this run lie in {before}, and {place} holds none: leave engine.checkpoints as it was, or copy "
            "them there"
        )
    known = checkpoints.manifests(before) if isinstance(before, Folder) else {}
    last = max(known, default=recorded - 1)
    if round is None and max(found) < last:
        raise ConfigError(
            f"{place} ends with round {max(found)}, and this run came to round {last} with its states in {before}: leave "
            f"engine.checkpoints as it was, copy them there, or go back with --round {max(found)}"
        )


def check_recorded(round: int, recorded: int | None) -> None:
    """Refuse to go on from a round that the record lost, with who was left out of it.

    Raises:
        CheckpointError: The round is later than the record's last.
    """
    if recorded is not None and round > recorded:
        raise CheckpointError(f"run.json ends with round {recorded}, before round {round}: {EARLIER}")


def checked(state: RunState, place: Place) -> RunState:
    """See that a round can be gone on from, and that it is on disk from now on.

    Raises:
        CheckpointError: A state that may not have been flushed is missing or damaged.
        OSError: It cannot be written to disk.
    """
    known = checkpoints.settled(place)
    if place.is_durable or (known is not None and known.round == state.round):
        return state
    trusted = frozenset() if known is None else known.files
    for stored in (state.server, *state.clients.values()):
        if stored.file not in trusted:
            checkpoints.read(stored, place)
    place.settling.settled = None if known is None else (known.round, known.files)
    checkpoints.settle(state, place)
    return state
