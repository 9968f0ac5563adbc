"""What a run's tables hold: their columns, and the rows that a round adds."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rayfed_ssl.engine.ledger import Entry
from rayfed_ssl.engine.round_loop import Evaluation, RoundOutcome
from rayfed_ssl.method import Metrics

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

Row = dict[str, Any]


def metric_rows(outcome: RoundOutcome) -> list[Row]:
    """List the rows of metrics.parquet that a round adds."""
    round = outcome.state.round
    rows = []
    for report in outcome.clients:
        rows += _rows(round, f"client-{report.client}", report.metrics | {"seconds": report.seconds})
    rows += _rows(round, "server", outcome.server.metrics | {"seconds": outcome.server.seconds})
    return rows + _rows(round, "run", {"seconds": outcome.seconds, "retries": outcome.retries})


def ledger_rows(outcome: RoundOutcome) -> list[Row]:
    """List the rows of ledger.parquet that a round adds."""
    return entry_rows(entry for report in outcome.clients for entry in report.ledger)


def entry_rows(entries: Iterable[Entry]) -> list[Row]:
    """List entries as rows of ledger.parquet."""
    return [dict(vars(entry)) for entry in entries]


def score_rows(evaluations: Sequence[Evaluation]) -> list[Row]:
    """List the rows of metrics.parquet that scoring adds."""
    rows = []
    for evaluation in evaluations:
        scores = evaluation.metrics | {EVALUATION_SECONDS: evaluation.seconds}
        rows += _rows(evaluation.round, evaluation.encoder, scores)
    return rows


def lost_rows(rounds: Sequence[Mapping[str, Any]], tables: Mapping[str, Sequence[Row]]) -> dict[str, list[int]]:
    """Find rounds whose entry in run.json tells of more rows than a table holds.

    Args:
        rounds: Those entries; ones of earlier versions tell of none.
        tables: Rows by the table's name.

    Returns:
        Rounds by table.
    """
    held = {name: Counter(row["round"] for row in rows) for name, rows in tables.items()}
    found: dict[str, list[int]] = {}
    for entry in rounds:
        for name, number in entry.get("rows", {}).items():
            if held[name][entry["round"]] < number:
                found.setdefault(name, []).append(entry["round"])
    return found


def _rows(round: int, participant: str, metrics: Metrics) -> list[Row]:
    return [
        {"round": round, "participant": participant, "name": name, "value": float(value)}
        for name, value in metrics.items()
    ]


def spans(rounds: Iterable[int]) -> str:
    """Write rounds for people: "1-3, 5"."""
    found: list[list[int]] = []
    for round in sorted(rounds):
        if found and found[-1][-1] == round - 1:
            found[-1][1:] = [round]
        else:
            found.append([round])
    return ", ".join("-".join(map(str, ends)) for ends in found)
