"""Reports of a round, scores, and the errors that end a run."""

from dataclasses import dataclass

from rayfed_ssl.engine.ledger import LedgerEntry
from rayfed_ssl.method import Metrics
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
    """

    state: RunState
    clients: tuple[ClientReport, ...]
    server: ServerReport
    seconds: float
    retries: int = 0
    dropped: tuple[Dropped, ...] = ()


class ClientError(RuntimeError):
    """A client's step failed: the message names round, client, seed, cause and the command that replays it."""


class ServerError(RuntimeError):
    """The server's step failed: the message names round and cause."""


class QuorumError(ServerError):
    """Too few clients of a round delivered."""
