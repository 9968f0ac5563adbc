"""Where a run resumes, the last round whose states and rows are whole, and whether it gives the same bits there."""

from collections.abc import Callable, Iterator

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.run_watch import RunWarning
from rayfed_ssl.environment import environment
from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.records.bits import other_processor, other_versions
from rayfed_ssl.records.manifest import PrecisionEntry, bits_settings, fingerprint_of
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory, backend_of
from rayfed_ssl.storage.checkpoints import RunState
from rayfed_ssl.storage.filesystem import LocalDirectory
from rayfed_ssl.storage.tensor_files import EARLIER


def state_to_resume(record: RunRecord, round: int | None, warn: Callable[[str], None]) -> RunState | None:
    """Find the state to resume from; None where the run was stopped before its first commit.

    Args:
        record: The run's record.
        round: The committed round to resume from; None takes the last whole one.
        warn: Is called with one line if later rounds were skipped.

    Raises:
        CheckpointError: There is none.
    """
    committed = checkpoints.manifests(record.checkpoints)
    if not committed:
        if not record.last_round:
            return None
        raise CheckpointError(
            f"{record.checkpoints} holds no committed round, but this run reached round {record.last_round}: restore its "
            "states, or start the run anew"
        )
    last_whole = record.last_whole_round()
    if last_whole < min(committed):
        raise CheckpointError(
            f"rows of round {last_whole + 1} are missing or damaged in {record.directory}, and its checkpoints begin with "
            f"round {min(committed)}: restore the tables from a copy, or start the run anew"
        )
    if round is not None:
        state = whole_state(record.checkpoints, round, last_whole)
    else:
        state, skipped = last_whole_state(record.checkpoints, last_whole)
        if skipped:
            warn(skipped)
    expected = {entry.round: entry.state_sha256 for entry in record.manifest.rounds}.get(state.round)
    if expected not in (None, state.sha256):
        raise CheckpointError(
            f"{record.checkpoints} holds states of another run: their digest after round {state.round} is "
            f"{state.sha256[:12]}, this run recorded {str(expected)[:12]}: restore its own states, or start a new run"
        )
    return state


def last_whole_state(directory: Directory, last_recorded: int) -> tuple[RunState, str | None]:
    """Find the last committed round whose states are whole: continuing from an earlier one gives the same bits.

    Returns:
        The round, and one line for the user if later ones were skipped.

    Raises:
        CheckpointError: There is none; the message is that of the last.
    """
    skipped: CheckpointError | None = None
    for round in reversed(checkpoints.manifests(directory)):
        try:
            state = whole_state(directory, round, last_recorded)
        except CheckpointError as error:
            skipped = skipped or error
            continue
        if skipped is None:
            return state, None
        return state, f"resuming from round {round}, the last that is whole: {str(skipped).rpartition(': ')[0]}"
    raise skipped or CheckpointError(f"{directory} holds no committed round: start the run anew")


def whole_state(directory: Directory, round: int, last_recorded: int) -> RunState:
    """Read a committed round, and all its states in a directory; a bucket holds whole objects only.

    Raises:
        CheckpointError: The round is later than the record's last, or a file is missing or damaged.
    """
    if round > last_recorded:
        raise CheckpointError(
            f"the record is whole up to round {last_recorded}, which is before round {round}: {EARLIER}"
        )
    state = checkpoints.latest(directory, round)
    if isinstance(backend_of(directory), LocalDirectory):
        for stored in state.states:
            checkpoints.read(stored, directory)
    return state


def check_bits(record: RunRecord, federation: Federation) -> None:
    """Refuse another device, precision or number of threads than a run began with, with other bits as result.

    Raises:
        ConfigError: They differ.
    """
    began, now = record.manifest.bits, bits_settings(PrecisionEntry.of(federation.task), federation.config.engine)
    if names := [name for name in began if began[name] != now[name]]:
        before, after = (" ".join(f"engine.{name}={bits[name]}" for name in names) for bits in (began, now))
        raise ConfigError(
            f"this run began with {before}, got {after}, which gives other results: resume it with {before}, or start a "
            "new run"
        )


def other_bits(record: RunRecord, federation: Federation) -> Iterator[RunWarning]:
    """Warn where this process computes other bits than the one that began the run."""
    manifest = record.manifest
    processor = other_processor(manifest.fingerprint, fingerprint_of(federation), federation.config.engine.cpu)
    versions = other_versions(manifest.versions, environment()["versions"])
    for line in (processor, versions and f"this run began with other versions: {versions}"):
        if line:
            message = f"{line}; the run goes on, and its digests compare with no other run's"
            yield RunWarning("bits", record.last_round, message)
