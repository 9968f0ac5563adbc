"""Run and resume a federation from Python; the command line calls the same functions."""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from rayfed_ssl.config.recipes import Setting, parse_setting
from rayfed_ssl.config.schema import Config, takes_text
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import Direction
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.phase_timer import PhaseTimer
from rayfed_ssl.engine.round_loop import Executor, Observer, RunPlan, run_rounds
from rayfed_ssl.engine.run_watch import RunWarning, RunWatch, scaled_probes
from rayfed_ssl.engine.start_scores import start_scores
from rayfed_ssl.engine.virtual_time import attach_schedule
from rayfed_ssl.export.encoders import last_encoder, write_encoders
from rayfed_ssl.foreign import plugins
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.privacy.protection import accounted
from rayfed_ssl.records.metric_rows import METRICS, client_of, losses_by_round
from rayfed_ssl.records.resuming import (
    check_bits,
    check_schedule,
    config_to_resume,
    other_bits,
    other_scoring,
    state_to_resume,
    write_rounds,
)
from rayfed_ssl.records.run_lock import claimed
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import RunState
from rayfed_ssl.storage.encoder_file import LoadedEncoder, as_module
from rayfed_ssl.storage.tables import write_table
from rayfed_ssl.trackers import configured_trackers
from rayfed_ssl.trackers.tracking import tracked

ExecutorFactory = Callable[[Federation], Executor]


@dataclass(frozen=True)
class Result:
    """A run that finished, or reached the round at which it was to stop.

    Attributes:
        directory: The run record.
        state_sha256: Digest of the server's and all clients' states after its last round.
    """

    directory: Path
    state_sha256: str

    @cached_property
    def record(self) -> RunRecord:
        """The record, read from disk on first access."""
        return RunRecord.open(self.directory)

    @property
    def scores(self) -> dict[str, Metrics]:
        """Accuracies in [0, 1] of the last round by encoder, as `scoring.score` gives them; none if it was not scored."""
        return self.record.scores(self.record.last_round)

    @property
    def degraded(self) -> bool:
        """Whether any round is missing a client that belonged to it."""
        return bool(self.record.dropped())

    def bytes(self, direction: Direction | None = None) -> int:
        """Bytes that clients sent or received, in one direction or in both."""
        return sum(row["bytes"] for row in self.record.ledger if direction in (None, row["direction"]))

    def encoder(self, name: str | None = None) -> LoadedEncoder:
        """An encoder after the last round as a torch module in evaluation mode, on the CPU in float32.

        Without a name it is the global one, or else the first. It takes normalized images:
        `module(module.normalize(images))` gives features [N, d] of uint8 images [N, C, S, S].

        Raises:
            ConfigError: There is no encoder of this name.
        """
        return as_module(last_encoder(self.record, name))

    def encoder_weights(self, name: str | None = None) -> Encoder:
        """An encoder's architecture after the last round, and its weights as plain tensors, with those of its heads."""
        return last_encoder(self.record, name).encoder

    @property
    def metrics(self) -> pa.Table:
        """All metrics: round, participant ("global", "client-0", "server", "run"), name and value."""
        return pa.Table.from_pylist(self.record.metrics, schema=METRICS)


class Observers(Observer):
    """Forwards every call but warnings to several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        def forward(name: str, *arguments: Any) -> None:
            for observer in observers:
                getattr(observer, name)(*arguments)

        for name in (name for name in vars(Observer) if name.startswith("on_") and name != "on_warning"):
            setattr(self, name, partial(forward, name))


def default_directory(config: Config) -> Path:
    """Name a run after its time to the millisecond, method and objective, data and seed, under ./runs."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return Path("runs") / f"{stamp[:-3]}-{config.system}-{plugins.short(config.data.name)}-s{config.seed}"


def run(
    config: Config,
    directory: Path | str | None = None,
    *,
    observer: Observer | None = None,
    executor: ExecutorFactory = LocalExecutor,
    federation: Federation | None = None,
    until: int | None = None,
    finals: Collection[int] = (),
    timer: PhaseTimer | None = None,
) -> Result:
    """Run a federation from the start to the end.

    Args:
        config: The configuration.
        directory: Where the record is written; None names one under ./runs.
        observer: Is called at every step of the run; None prints progress in a terminal and in notebooks, else nothing.
        executor: Where steps run: in this process, whatever `engine.executor` says; `actors.run` and the command follow
            that. It changes no bit of the result.
        federation: The federation, if the caller has opened it already.
        until: Stop after this round, to be resumed to the same bits; None runs to the end.
        finals: Rounds that are scored as the last one is, besides it.
        timer: Divides the wall time among phases, from before this call on; None begins here.

    Raises:
        ConfigError: The configuration cannot be run.
        ClientError: A client's step failed.
    """
    timer = timer or PhaseTimer()
    timer.begin("data")
    federation = federation or Federation.open(config)
    federation.check_ready()
    attach_schedule(federation)
    target = Path(directory) if directory else default_directory(config)
    configured_trackers(federation.config)
    with claimed(target), _observed(observer, federation, target) as observing:
        with _started(executor, federation, timer) as running:
            # Now: a Ray that fails to start leaves no empty run.
            record = RunRecord.create(target, federation, running.arithmetic())
            budget = accounted(federation.method)
            if budget is not None and (message := budget.noise_warning(federation.trained_task)) is not None:
                record.add_warning(RunWarning("noise", 0, message))
                observing.on_warning(message)
            with record.locked_states():
                result = _run(federation, record, None, observing, running, timer, until, finals)
        record.add_seconds(timer.seconds())
    return result


def resume(
    directory: Path | str,
    *overrides: Setting,
    observer: Observer | None = None,
    executor: ExecutorFactory = LocalExecutor,
    round: int | None = None,
    until: int | None = None,
    trust: bool = False,
    timer: PhaseTimer | None = None,
) -> Result:
    """Resume a run after its last committed round, to the same bits as if it had never stopped.

    Args:
        directory: The run record.
        overrides: Changes of `engine.*` that change no bits; device, precision, layout, compile, determinism and threads do.
            `rounds=N` extends the run where the rounds that it has would have been the same.
        observer: As in `run`.
        executor: Where steps run.
        round: Resume from this committed round instead of the last.
        until: Stop after this round, as in `run`.
        trust: Import the modules that the run names, though this user did not make it here; from then on it is this user's.
        timer: As in `run`.

    Raises:
        ConfigError: There is no such run, another process is running it, or it would not give the same bits here.
        CheckpointError: It has no checkpoint, or a damaged one.
    """
    timer = timer or PhaseTimer()
    timer.begin("data")
    with RunRecord.open(Path(directory), tables=False).locked():
        record = RunRecord.open(Path(directory), trust=trust)  # again: another process may have written it until now
        federation = Federation.open(config_to_resume(record, *overrides))
        record.check(federation, draws=True)
        federation.check_ready()
        attach_schedule(federation)
        configured_trackers(federation.config)
        if "engine.checkpoints" in dict(parse_setting(override, takes_text) for override in overrides):
            record.find_states(federation.config.engine.checkpoints)
        with record.locked_states(), _observed(observer, federation, Path(directory), record) as observing:
            state = state_to_resume(record, round)
            check_schedule(state, federation)
            with _started(executor, federation, timer) as running:
                arithmetic = running.arithmetic()
                check_bits(record, federation.config.engine, arithmetic)
                last = 0 if state is None else state.round
                checkpoints.discard_after(record.checkpoints, last)
                write_rounds(record, federation)
                record.truncate(last, federation.public_entries())
                for warning in (*other_bits(record, arithmetic), *other_scoring(record, federation)):
                    record.add_warning(warning)
                    observing.on_warning(warning.message)
                result = _run(federation, record, state, observing, running, timer, until)
            record.add_seconds(timer.seconds())
    return result


@contextmanager
def _started(executor: ExecutorFactory, federation: Federation, timer: PhaseTimer) -> Iterator[Executor]:
    """Start an executor, and end it."""
    timer.begin("Ray")
    with closing(executor(federation)) as running:
        timer.begin("other")
        yield running
        timer.begin("Ray")
    timer.begin("writing")


@contextmanager
def _observed(
    observer: Observer | None, federation: Federation, directory: Path, record: RunRecord | None = None
) -> Iterator[Observer]:
    """Give the caller's observer; without one, progress where somebody sees it, else one that does nothing."""
    if observer is not None or not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        yield observer or Observer()
        return
    from rayfed_ssl.progress import RunProgress  # loads rich

    with RunProgress(federation.config, record=record) as progress:
        progress.introduce(federation, directory)
        yield progress
    progress.close()


def _run(
    federation: Federation,
    record: RunRecord,
    state: RunState | None,
    observer: Observer,
    executor: Executor,
    timer: PhaseTimer,
    until: int | None,
    finals: Collection[int] = (),
) -> Result:
    config = federation.config
    plan = RunPlan(
        config.rounds,
        federation.cohort,
        config.evaluation.every,
        record.checkpoints,
        config.engine.quorum,
        record.quarantined(),
        until,
        federation.schedule,
        finals,
    )
    if federation.schedule is not None:
        write_table(record.directory / "schedule.parquet", federation.schedule.table())
    with tracked(record, config, 0 if state is None else state.round, observer.on_warning) as tracking:
        observers = Observers(timer, record, tracking, observer, _watch(federation, record, observer))
        # After every resume too: it may bring other settings of the probes. What is scored already lies beside the data.
        timer.begin("start scores")
        observers.on_start_scored(start_scores(federation, executor, observer.on_warning))
        timer.begin("rounds")
        final = run_rounds(plan, executor, observers, state, record.evaluated())
        timer.begin("writing")
        if final.round < config.rounds:
            record.pause()
        else:
            record.finish(write_encoders(record, federation))
    if missing := record.dropped():
        observer.on_warning(
            f"the run is degraded: {len(missing)} client steps are missing from rounds "
            f"{', '.join(map(str, sorted({round for round, _ in missing})))}; run.json says which and why"
        )
    return Result(record.directory, final.sha256)


def _watch(federation: Federation, record: RunRecord, observer: Observer) -> RunWatch:
    """Follow a run, from where its record ends, for what the user should know before it is over."""
    task = federation.task

    def architecture(participant: str) -> str:
        client = client_of(participant)
        return task.encoder if client is None else task.architecture(client)

    def warn(warning: RunWarning) -> None:
        record.add_warning(warning)
        observer.on_warning(warning.message)

    batch = min(task.batch, *(len(rows) for rows in federation.shards.values()))
    losses = losses_by_round(record.metrics) if record.manifest.rounds else {}
    return RunWatch(
        federation.config.rounds,
        architecture,
        None if task.small_crops else task.objective.chance_loss(batch),
        scaled_probes(federation.config.evaluation),
        len(federation.dataset.test),
        warn,
        losses,
        record.manifest.warnings,
        federation.share,
        task.objective.num_to_fill / batch,
        task.objective.enough_steps,
    )
