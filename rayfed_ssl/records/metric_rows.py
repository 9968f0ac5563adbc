"""What a run's tables hold: their columns, and the rows that a round adds."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import pyarrow as pa

from rayfed_ssl.engine.ledger import LedgerEntry
from rayfed_ssl.engine.round_loop import Evaluation, RoundOutcome
from rayfed_ssl.engine.run_watch import RoundLosses
from rayfed_ssl.evaluation.registry import OWN_GOALS, OWN_SAMPLES, is_score
from rayfed_ssl.method import Metrics
from rayfed_ssl.records.manifest import RoundEntry

METRICS = pa.schema(
    [("round", pa.int32()), ("participant", pa.string()), ("name", pa.string()), ("value", pa.float64())]
)
LEDGER = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("direction", pa.string()),
        ("kind", pa.string()),
        ("field", pa.string()),
        ("bytes", pa.int64()),
    ]
)

EVALUATION_SECONDS = "evaluation_seconds"
"""The name under which every scoring has a row, whatever it could score."""

MAX_STEPS = 1 << 53
"""Steps of a client in a round that a float counts exactly."""

COUNTS = ("steps", OWN_SAMPLES)
"""What is counted and no accuracy."""

Row = dict[str, Any]


def metric_rows(outcome: RoundOutcome) -> list[Row]:
    """List the rows of metrics.parquet that a round adds."""
    round = outcome.state.round
    rows = []
    for report in outcome.clients:
        rows += _rows(round, f"client-{report.client}", report.metrics | {"seconds": report.seconds})
    rows += _rows(round, "server", outcome.server.metrics | {"seconds": outcome.server.seconds})
    return rows + _rows(round, "run", {"seconds": outcome.seconds, "retries": outcome.retries, **outcome.virtual})


def ledger_rows(outcome: RoundOutcome) -> list[Row]:
    """List the rows of ledger.parquet that a round adds."""
    return entry_rows(entry for report in outcome.clients for entry in report.ledger)


def entry_rows(entries: Iterable[LedgerEntry]) -> list[Row]:
    """List entries as rows of ledger.parquet."""
    return [dict(vars(entry)) for entry in entries]


def score_rows(evaluations: Sequence[Evaluation]) -> list[Row]:
    """List the rows of metrics.parquet that scoring adds."""
    rows = []
    for evaluation in evaluations:
        scores = evaluation.metrics | {EVALUATION_SECONDS: evaluation.seconds}
        rows += _rows(evaluation.round, evaluation.encoder, scores)
    return rows


def losses_by_round(rows: Iterable[Row]) -> dict[int, RoundLosses]:
    """Read the mean losses of each round's clients."""
    clients: dict[int, dict[str, dict[str, float]]] = {}
    for row in rows:
        if client_of(row["participant"]) is not None:
            clients.setdefault(row["round"], {}).setdefault(row["participant"], {})[row["name"]] = row["value"]
    by_round = {round: RoundLosses.of(metrics.values()) for round, metrics in sorted(clients.items())}
    return {round: losses for round, losses in by_round.items() if losses is not None}


def client_of(participant: str) -> int | None:
    """Read the client id of a participant's or an encoder's name: 3 of "client-3", None of "global"."""
    kind, _, number = participant.partition("-")
    return int(number) if kind == "client" and number.isdecimal() else None


def headline(scores: Mapping[str, Metrics], name: str, take: str | None = None) -> float | None:
    """Choose among encoders' scores as `taken` does."""
    return taken({encoder: metrics[name] for encoder, metrics in scores.items() if name in metrics}, take)


def taken(values: Mapping[str, float], take: str | None) -> float | None:
    """Choose among encoders' values by name the one that is meant; None where it is not there.

    `take` is an encoder, "mean" or "minimum" of the clients' own; None is the global encoder, or the mean without one.
    """
    local = [value for name, value in values.items() if name != "global"]
    if take == "minimum":
        return min(local, default=None)
    if take == "mean" or (take is None and "global" not in values):
        return fmean(local) if local else None
    return values.get(take or "global")


def lost_round(rounds: Sequence[RoundEntry], metrics: Sequence[Row], ledger: Sequence[Row]) -> int | None:
    """Find the first round whose entry in run.json counts more rows than a table has."""
    tables = {"metrics": metrics, "ledger": ledger}
    held = {name: Counter(row["round"] for row in rows) for name, rows in tables.items()}
    for entry in rounds:
        if any(held[name][entry.round] < number for name, number in entry.rows):
            return entry.round
    return None


def impossible(rows: Sequence[Row], starts: Mapping[str, Metrics]) -> str | None:
    """Find the first accuracy that is none in [0, 1], or number of steps that no run takes; None where all can be."""
    names = {row["name"] for row in rows}
    most = {name: 1 for name in names if is_score(name) or name in OWN_GOALS} | dict.fromkeys(COUNTS, MAX_STEPS)
    measured = [(row["name"], row["value"]) for row in rows if row["name"] in most]
    measured += [(name, value) for scores in starts.values() for name, value in scores.items() if is_score(name)]
    for name, value in measured:
        if not 0 <= value <= most.get(name, 1):
            return f"it has {value:g} for {name}"
    return None


def _rows(round: int, participant: str, metrics: Metrics) -> list[Row]:
    return [
        {"round": round, "participant": participant, "name": name, "value": float(value)}
        for name, value in metrics.items()
    ]
