"""The round loop, its reports and errors, and the executor that it needs."""

import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from rayfed_ssl.clock.schedule import Schedule
from rayfed_ssl.engine.arithmetic import Arithmetic
from rayfed_ssl.engine.background_writer import BackgroundWriter
from rayfed_ssl.engine.ledger import LedgerEntry
from rayfed_ssl.method import Metrics
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import RunState, Stored


@dataclass(frozen=True)
class ClientReport:
    """Report of a client's step: never its data, its state or its upload."""

    client: int
    state: Stored
    metrics: Metrics
    ledger: tuple[LedgerEntry, ...]
    seconds: float


@dataclass(frozen=True)
class Dropped:
    """A client that was left out of a round, or if `quarantined` of all rounds to come; `reason` is one line."""

    client: int
    reason: str
    quarantined: bool = False


@dataclass(frozen=True)
class ServerReport:
    """Report of the server's step.

    Attributes:
        again: Clients that were trained again since their uploads were lost: what was aggregated, and their states. On
            another machine these may have other bits than the first ones.
        dropped: Clients that failed when they were trained again.
    """

    state: Stored
    metrics: Metrics
    seconds: float
    again: tuple[ClientReport, ...] = ()
    dropped: tuple[Dropped, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """Scores of one encoder after one round."""

    round: int
    encoder: str
    metrics: Metrics
    seconds: float


@dataclass(frozen=True)
class RoundOutcome:
    """A finished round.

    Attributes:
        clients: In ascending client id.
        seconds: Wall time of the round without evaluation.
        retries: Client steps that were repeated because their actor died.
        dropped: Clients of the cohort that were left out, in ascending id.
        virtual: What the schedule says of the round, by name; nothing without one.
    """

    state: RunState
    clients: tuple[ClientReport, ...]
    server: ServerReport
    seconds: float
    retries: int = 0
    dropped: tuple[Dropped, ...] = ()
    virtual: Mapping[str, float] = field(default_factory=dict)


class ClientError(RuntimeError):
    """A client's step failed: the message names round, client, seed, cause and the command that replays it."""


class ServerError(RuntimeError):
    """The server's step failed: the message names round and cause."""


class QuorumError(ServerError):
    """Too few clients of a round delivered."""


class Observer:
    """Receives events of a run; every method may be overridden."""

    def on_start_scored(self, scores: Mapping[str, Metrics]) -> None:
        """The encoders before round 1 were scored, by architecture."""

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        """A round starts."""

    def on_client(self, report: ClientReport) -> None:
        """A client's step is done; the order is that of completion."""

    def on_dropped(self, dropped: Dropped) -> None:
        """A client of the cohort is left out of the round."""

    def on_server(self, report: ServerReport) -> None:
        """The server's step is done."""

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """A round is computed, and those before it are committed."""

    def on_commit(self, outcome: RoundOutcome) -> None:
        """A round is about to be committed: called in another thread, while the next round runs."""

    def on_evaluations(self, final: bool) -> None:
        """Scoring starts."""

    def on_clients_scored(self, evaluations: Sequence[Evaluation]) -> None:
        """Clients were scored on samples of their own; the other scores of the round follow."""

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """All encoders of a round were scored."""

    def on_warning(self, message: str) -> None:
        """Something went wrong that does not stop the run."""
        warnings.warn(message, RuntimeWarning, stacklevel=2)


@dataclass
class Listener:
    """Forwards reports of a round's clients to the observer while they run, and records those that are left out.

    Attributes:
        quarantined: Clients that are left out of all rounds to come.
        writer: Commits the round before, which is done when the first report of this one is forwarded.
    """

    observer: Observer
    quarantined: Collection[int] = ()
    dropped: dict[int, Dropped] = field(default_factory=dict)
    writer: BackgroundWriter = field(default_factory=BackgroundWriter)

    def on_client(self, report: ClientReport) -> None:
        """A client's step is done."""
        self.writer.wait()
        self.observer.on_client(report)

    def on_dropped(self, dropped: Dropped) -> None:
        """A client is left out."""
        self.writer.wait()
        self.dropped[dropped.client] = dropped
        self.observer.on_dropped(dropped)

    def on_warning(self, message: str) -> None:
        """Something went wrong that does not stop the run."""
        self.observer.on_warning(message)


class Executor(Protocol):
    """Runs the steps of a federation; which executor does it changes no bit of any result.

    `retries` counts client steps that were repeated because their actor died.
    """

    retries: int

    def arithmetic(self) -> Arithmetic:
        """Say how the processes that run clients' steps compute."""

    def init_server(self, directory: Directory) -> Stored:
        """Make and store the server's state before round 1."""

    def train_clients(
        self, state: RunState, cohort: Sequence[int], directory: Directory, listener: Listener
    ) -> tuple[ClientReport, ...]:
        """Run one round's client steps; their uploads stay with the executor.

        Returns reports in ascending id of those that delivered; the listener receives the others, unless
        `engine.on_failure=stop` raises ClientError.
        """

    def update_server(self, state: RunState, cohort: Sequence[int], directory: Directory) -> ServerReport:
        """Aggregate the uploads of the clients that were just trained, and train those again whose uploads were lost."""

    def evaluate(self, state: RunState, directory: Directory, final: bool) -> tuple[Evaluation, ...]:
        """Score every encoder of the method as `scoring.score` does."""

    def score_clients(self, state: RunState, directory: Directory) -> tuple[Evaluation, ...]:
        """Score every client that has a test part as `client_scores.score_client` does, in ascending id."""

    def score_start(self, architecture: str) -> Metrics:
        """Score an architecture's weights before round 1 as `start_scores.score_start` does."""

    def close(self) -> None:
        """Release processes and memory."""


@dataclass(frozen=True)
class RunPlan:
    """The loop's part of the configuration.

    Attributes:
        evaluate_every: kNN after every so many rounds; 0 means at the end only.
        quorum: Part of a cohort that must deliver.
        quarantined: Round since when a client is left out; grows during the run.
        until: Round after which the loop stops, to be resumed; None goes to the end.
        finals: Rounds that are scored as the last one is, besides it.
        schedule: The schedule that `cohort` follows, if there is a clock.
    """

    rounds: int
    cohort: Callable[[int], tuple[int, ...]]
    evaluate_every: int
    directory: Directory
    quorum: float = 1.0
    quarantined: dict[int, int] = field(default_factory=dict)
    until: int | None = None
    schedule: Schedule | None = None
    finals: Collection[int] = ()

    @property
    def last(self) -> int:
        """The round after which the loop stops."""
        return self.rounds if self.until is None else min(self.until, self.rounds)

    def evaluation_is_due(self, round: int) -> bool:
        """Whether a round is scored: the last one always."""
        return self.is_final(round) or bool(self.evaluate_every and round and round % self.evaluate_every == 0)

    def is_final(self, round: int) -> bool:
        """Whether a round is scored by the probe and the protocols in any case."""
        return round == self.rounds or round in self.finals


def run_rounds(
    plan: RunPlan,
    executor: Executor,
    observer: Observer,
    state: RunState | None = None,
    evaluated: Collection[int] = (),
) -> RunState:
    """Run the federation from the start, or on from a committed round, to the end or to where the plan stops it.

    A round is written and committed as soon as it is computed, while the next one begins. It is committed before that one's
    first report and before it is scored, so that a killed run loses at most the running round or score. `evaluated` holds
    rounds whose scores are on record.
    """
    if state is None:
        digest = None if plan.schedule is None else plan.schedule.digests[0]
        state = RunState(0, executor.init_server(plan.directory), schedule=digest)
        checkpoints.commit(state, plan.directory)
    elif plan.evaluation_is_due(state.round) and state.round not in evaluated:
        _evaluate(plan, executor, observer, state)
    with BackgroundWriter() as writer:
        for round in range(state.round + 1, plan.last + 1):
            outcome = run_round(plan, executor, observer, state, round, writer)
            observer.on_round_end(outcome)
            state = outcome.state
            writer.submit(partial(_write, plan, observer, outcome))
            if plan.evaluation_is_due(round):
                writer.wait()
                _evaluate(plan, executor, observer, state)
    return state


def _write(plan: RunPlan, observer: Observer, outcome: RoundOutcome) -> None:
    observer.on_commit(outcome)
    checkpoints.commit(outcome.state, plan.directory)


def run_round(
    plan: RunPlan, executor: Executor, observer: Observer, state: RunState, round: int, writer: BackgroundWriter
) -> RoundOutcome:
    """Run one round: clients, then server."""
    start, retries = time.perf_counter(), executor.retries
    cohort, dropped_clients = plan.cohort(round), Listener(observer, plan.quarantined, writer=writer)
    observer.on_round(round, cohort)
    for client_id in cohort:
        if since := plan.quarantined.get(client_id):
            dropped_clients.on_dropped(Dropped(client_id, f"quarantined since round {since}", quarantined=True))
    present = tuple(client_id for client_id in cohort if client_id not in dropped_clients.dropped)
    running = replace(state, round=round)
    clients = executor.train_clients(running, present, plan.directory, dropped_clients)
    _check_quorum(plan, round, cohort, dropped_clients.dropped)
    server = executor.update_server(running, [report.client for report in clients], plan.directory)
    observer.on_server(server)
    for failed in server.dropped:
        dropped_clients.on_dropped(failed)
    _check_quorum(plan, round, cohort, dropped_clients.dropped)
    latest = {report.client: report for report in (*clients, *server.again)}
    clients = tuple(report for client_id, report in latest.items() if client_id not in dropped_clients.dropped)
    for client_id, dropped in dropped_clients.dropped.items():
        if dropped.quarantined:
            plan.quarantined.setdefault(client_id, round)
    states: Mapping[int, Stored] = {**state.clients, **{report.client: report.state for report in clients}}
    needed = () if plan.schedule is None else plan.schedule.versions_after(round)
    return RoundOutcome(
        RunState(
            round,
            server.state,
            states,
            None if plan.schedule is None else plan.schedule.digests[round],
            {version: running.server_of(version) for version in needed},
        ),
        clients,
        server,
        time.perf_counter() - start,
        executor.retries - retries,
        tuple(dropped for _, dropped in sorted(dropped_clients.dropped.items())),
        {} if plan.schedule is None else plan.schedule.metrics(round),
    )


def _check_quorum(plan: RunPlan, round: int, cohort: Sequence[int], dropped: Mapping[int, Dropped]) -> None:
    delivered, required = len(cohort) - len(dropped), max(1, math.ceil(plan.quorum * len(cohort) - 1e-9))
    if delivered < required:
        first = next(iter(dropped.values()))
        raise QuorumError(
            f"round {round} failed: {delivered} of {len(cohort)} clients delivered, engine.quorum={plan.quorum:g} asks for "
            f"{required}; client {first.client} was left out because {first.reason}; repair that or lower "
            "engine.quorum, then resume the run"
        )


def _evaluate(plan: RunPlan, executor: Executor, observer: Observer, state: RunState) -> None:
    final = plan.is_final(state.round)
    observer.on_evaluations(final)
    evaluations = executor.evaluate(state, plan.directory, final)
    if final:
        observer.on_clients_scored(executor.score_clients(state, plan.directory))
    observer.on_evaluated(evaluations)
