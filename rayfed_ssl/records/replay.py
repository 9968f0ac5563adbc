"""Computing one client's step again from a run's checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rayfed_ssl.engine.contributions import server_of
from rayfed_ssl.engine.federation import ClientResult, Federation
from rayfed_ssl.engine.virtual_time import attach_schedule
from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints


def replay(directory: Path | str, round: int, client_id: int, *, trust: bool = False) -> ClientResult:
    """Run one client's step of a round again, in this process, from the checkpoint before it.

    With `trust`, the modules that a run of somebody else names are imported.

    Raises:
        CheckpointError: The round before is no longer on disk.
        ClientError: The step fails, as it did.
    """
    record, federation = open_run(Path(directory), trust=trust)
    return replay_step(record, federation, round, client_id)[1]


def open_run(directory: Path, *, trust: bool, draws: bool = True) -> tuple[RunRecord, Federation]:
    """Open a run to compute with it in this process; with `draws` its start is checked too. Errors as of `RunRecord`."""
    record = RunRecord.open(directory, trust=trust)
    federation = Federation.open(record.config("engine.executor=local"))
    record.check(federation, draws=draws)
    return record, federation


def replay_step(record: RunRecord, federation: Federation, round: int, client_id: int) -> tuple[Any, ClientResult]:
    """Run one client's step of an open run again; gives what it received, and its result. Errors as of `replay`."""
    if client_id not in federation.shards:
        clients = ", ".join(map(str, federation.client_ids))
        raise ConfigError(f"there is no client {client_id} that trains: the clients are {clients}")
    try:
        state = checkpoints.latest(record.checkpoints, round - 1)
    except CheckpointError as error:
        raise CheckpointError(
            f"round {round} begins from the states after round {round - 1}: {error}; "
            "a run keeps those of its last round"
        ) from None
    attach_schedule(federation)
    take_part = federation.schedule is not None and client_id in federation.cohort(round)
    start = server_of(federation, replace(state, round=round), round, client_id) if take_part else state.server
    server: Any = checkpoints.read(start, record.checkpoints)
    stored = state.clients.get(client_id)
    download = federation.method.download(server, client_id)
    previous = None if stored is None else checkpoints.read(stored, record.checkpoints)
    epochs = federation.scheduled_epochs(round, client_id)
    with compute_threads(federation.config.engine.threads):
        return download, federation.update_client(round, client_id, download, previous, epochs)
