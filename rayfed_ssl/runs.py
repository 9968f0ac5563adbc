"""Run, resume and replay a federation from Python; the command line calls the same functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rayfed_ssl import trackers
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.faults import Fault
from rayfed_ssl.engine.federation import ClientResult, Federation
from rayfed_ssl.engine.ledger import Direction
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.readiness import check_ready
from rayfed_ssl.engine.round_loop import (
    ClientReport,
    Dropped,
    Evaluation,
    Executor,
    Observer,
    Plan,
    RoundOutcome,
    ServerReport,
    run_rounds,
)
from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import RunState, check_recorded, check_states, last_intact
from rayfed_ssl.trackers.tracking import tracked

ExecutorFactory = Callable[[Federation], Executor]


@dataclass(frozen=True)
class Result:
    """A run that came to its end, or to the round where it was to stop.

    Attributes:
        directory: The run record.
        state_sha256: Digest of the server's and all clients' states after its last round.
    """

    directory: Path
    state_sha256: str

    @property
    def record(self) -> RunRecord:
        """The record as it lies on disk."""
        return RunRecord.open(self.directory)

    @property
    def scores(self) -> dict[str, Metrics]:
        """Accuracies in [0, 1] of the last round by encoder, as `scoring.score` gives them; none if it was not scored."""
        record = self.record
        return record.scores(record.last_round)

    @property
    def degraded(self) -> bool:
        """Whether any round went on without a client that belonged to it."""
        return bool(self.record.dropped())

    def bytes(self, direction: Direction | None = None) -> int:
        """Bytes that crossed clients' boundaries, in one direction or in both."""
        return sum(row["bytes"] for row in self.record.ledger if direction in (None, row["direction"]))

    def encoder(self, name: str = "global") -> Encoder:
        """A final encoder's architecture and weights."""
        encoder: Encoder = checkpoints.read_file(self.directory / "encoders" / f"{name}.safetensors")
        return encoder


class _Both(Observer):
    """Tells several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        for observer in self._observers:
            observer.on_round(round, cohort)

    def on_client(self, report: ClientReport) -> None:
        for observer in self._observers:
            observer.on_client(report)

    def on_dropped(self, dropped: Dropped) -> None:
        for observer in self._observers:
            observer.on_dropped(dropped)

    def on_fault(self, fault: Fault) -> None:
        for observer in self._observers:
            observer.on_fault(fault)

    def on_server(self, report: ServerReport) -> None:
        for observer in self._observers:
            observer.on_server(report)

    def on_round_end(self, outcome: RoundOutcome) -> None:
        for observer in self._observers:
            observer.on_round_end(outcome)

    def on_evaluations(self, final: bool) -> None:
        for observer in self._observers:
            observer.on_evaluations(final)

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        for observer in self._observers:
            observer.on_evaluated(evaluations)


def default_directory(config: Config) -> Path:
    """Name a run after its time, method and objective, data and seed, under ./runs."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{stamp}-{config.system}-{config.data.name}-s{config.seed}"


def run(
    config: Config,
    directory: Path | str | None = None,
    *,
    observer: Observer | None = None,
    executor: ExecutorFactory = LocalExecutor,
    federation: Federation | None = None,
    until: int | None = None,
) -> Result:
    """Run a federation from the start to the end.

    Args:
        config: What to run.
        directory: Where the record goes; None names one under ./runs.
        observer: Is told how the run goes on.
        executor: Where steps run; `actors.RayExecutor` for Ray. It changes no bit of the result.
        federation: The federation, if the caller has opened it already.
        until: Stop after this round, to go on with `resume`, to the same bits; None goes to the end.

    Raises:
        ConfigError: The configuration cannot be run.
        ClientError: A client's step failed.
    """
    federation = federation or Federation.open(config)
    check_ready(federation)
    target = Path(directory) if directory else default_directory(config)
    RunRecord.refuse_used(target)
    trackers.chosen(federation.config)
    running = executor(federation)  # before the record: a Ray that does not start leaves no empty run behind
    try:
        record = RunRecord.create(target, federation)
        with record.locked():
            return _go(federation, record, None, observer, running, until)
    finally:
        running.close()


def resume(
    directory: Path | str,
    *overrides: str,
    observer: Observer | None = None,
    executor: ExecutorFactory = LocalExecutor,
    round: int | None = None,
    until: int | None = None,
) -> Result:
    """Go on with a run after its last committed round, to the same bits as if it had never stopped.

    Args:
        directory: The run record.
        overrides: Changes of `engine.*`, which change no bit where they leave device, precision and threads alone.
        observer: Is told how the run goes on.
        executor: Where steps run.
        round: Go on from this committed round instead of the last.
        until: Stop after this round, as in `run`.

    Raises:
        ConfigError: There is no such run, or another process is running it.
        CheckpointError: It has no usable checkpoint.
    """
    record = RunRecord.open(Path(directory), tables=False)
    with record.locked():
        record = RunRecord.open(Path(directory), tables=False)  # once more, as who had the lock may have gone on
        federation = Federation.open(record.config(*overrides))
        record.check(federation, draws=True)
        check_ready(federation)
        trackers.chosen(federation.config)
        if any(override.partition("=")[0].strip() == "engine.checkpoints" for override in overrides):
            record.find_states(federation.config.engine.checkpoints, round)
        state = _state_to_go_on_from(record, round, observer or Observer())
        running = executor(federation)
        try:
            last = 0 if state is None else state.round
            checkpoints.discard_after(record.checkpoints, last)
            record.truncate(last, federation)
            return _go(federation, record, state, observer, running, until)
        finally:
            running.close()


def _state_to_go_on_from(record: RunRecord, round: int | None, observer: Observer) -> RunState | None:
    committed = checkpoints.manifests(record.checkpoints)
    if not committed:
        if not record.last_round:
            return None
        raise CheckpointError(
            f"{record.checkpoints} holds no committed round, but this run reached round {record.last_round}: restore its "
            "states, or start the run anew"
        )
    whole = record.last_whole_round()
    if whole < min(committed):
        raise CheckpointError(
            f"rows of round {whole + 1} are missing or damaged in {record.directory}, and its checkpoints begin with round "
            f"{min(committed)}: restore the tables from a copy, or start the run anew"
        )
    if round is not None:
        check_recorded(round, whole)
        state = check_states(checkpoints.latest(record.checkpoints, round), record.checkpoints)
    else:
        state, skipped = last_intact(record.checkpoints, whole)
        if skipped is not None:
            observer.on_warning(skipped)
    record.check_states(state)
    return state


def _go(
    federation: Federation,
    record: RunRecord,
    state: RunState | None,
    observer: Observer | None,
    executor: Executor,
    until: int | None,
) -> Result:
    config = federation.config
    plan = Plan(
        config.rounds,
        federation.cohort,
        config.evaluation.every,
        record.checkpoints,
        config.engine.quorum,
        record.quarantined(),
        until,
    )
    watching = observer or Observer()
    begun = 0 if state is None else state.round
    with tracked(record, config, begun, watching.on_warning) as tracking:
        everybody = _Both(record, tracking, watching)
        executor.faults.tell = everybody.on_fault
        final = run_rounds(plan, executor, everybody, state, record.evaluated())
        if final.round == config.rounds:
            record.finish(federation)
        else:
            record.pause()
    if missing := record.dropped():
        watching.on_warning(
            f"the run is degraded: {len(missing)} client steps are missing from rounds "
            f"{', '.join(map(str, sorted({round for round, _ in missing})))}; run.json says which and why"
        )
    for fault in executor.faults.left(plan.last):
        watching.on_warning(f"--inject {fault} did not strike: what it was for did not happen in that round")
    return Result(record.directory, final.sha256)


def replay(directory: Path | str, round: int, client_id: int) -> ClientResult:
    """Run one client's step of a round again, in this process, from the checkpoint before it.

    Raises:
        CheckpointError: The round before is no longer on disk.
        ClientError: The step fails, as it did.
    """
    record = RunRecord.open(Path(directory))
    federation = Federation.open(record.config("engine.executor=local"))
    record.check(federation, draws=True)
    if client_id not in federation.shards:
        known = ", ".join(map(str, federation.client_ids))
        raise ConfigError(f"there is no client {client_id} that trains: the clients are {known}")
    state = checkpoints.latest(record.checkpoints, round - 1)
    server: Any = checkpoints.read(state.server, record.checkpoints)
    own = state.clients.get(client_id)
    return federation.update_client(
        round,
        client_id,
        federation.method.download(server, client_id),
        None if own is None else checkpoints.read(own, record.checkpoints),
    )
