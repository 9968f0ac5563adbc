"""What a round leaves behind: reports, scores, and the errors that end it."""

from dataclasses import dataclass

from rayfed_ssl.engine.ledger import LedgerEntry
from rayfed_ssl.method import Metrics
from rayfed_ssl.storage.checkpoints import RunState, Stored


@dataclass(frozen=True)
class ClientReport:
    """What is known of a client's step outside of it: never its data, its state or its upload.

    Attributes:
        client: The client's id.
        state: Where its next state lies.
        metrics: Losses and counts.
        ledger: What it received and sent.
        seconds: Compute time of the step.
    """

    client: int
    state: Stored
    metrics: Metrics
    ledger: tuple[LedgerEntry, ...]
    seconds: float


@dataclass(frozen=True)
class Dropped:
    """A client that was left out of a round.

    Attributes:
        client: The client's id.
        reason: Why, in one line.
        quarantined: Whether it is left out of all rounds to come.
    """

    client: int
    reason: str
    quarantined: bool = False


@dataclass(frozen=True)
class ServerReport:
    """What is known of the server's step outside of it.

    Attributes:
        state: Where its next state lies.
        metrics: Losses and counts.
        seconds: Compute time of the step.
        again: Clients whose uploads were lost, so that they were trained again: what was aggregated, and what their
            states now are. On another machine these may have other bits than the first ones.
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
        state: Where everything lies now.
        clients: Reports in ascending client id.
        server: The server's report.
        seconds: Wall time of the round, evaluation not included.
        retries: Client steps that were repeated because their actor died.
        dropped: Clients of the cohort that were left out, in ascending id; a run with any is degraded.
    """

    state: RunState
    clients: tuple[ClientReport, ...]
    server: ServerReport
    seconds: float
    retries: int = 0
    dropped: tuple[Dropped, ...] = ()


class ClientError(RuntimeError):
    """A client's step that failed: the message says round, client, seed and cause, and how to replay it."""


class ServerError(RuntimeError):
    """A server's step that failed: the message says round and cause."""


class QuorumError(ServerError):
    """A round in which too few clients delivered: the message says how many, and why the others did not."""
