"""From rows of a record to the series that trackers draw.

A series is named section/participant/name: "clients/loss/mean", "server/distil_loss", "accuracy/global/knn",
"diagnostics/clients/effective_rank/min", "bytes/up". Clients are shown by their mean, minimum and maximum.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from rayfed_ssl.evaluation.registry import is_score
from rayfed_ssl.records.metric_rows import Row, client_of

Points = dict[int, dict[str, float]]
"""Values by round and series."""


def points(rows: Iterable[Row]) -> Points:
    """Group rows of metrics.parquet; all rows of a round, a name and the clients have to come together."""
    series: Points = defaultdict(dict)
    by_clients: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        if client_of(row["participant"]) is None:
            series[row["round"]][_series(row["participant"], row["name"])] = row["value"]
        else:
            by_clients[row["round"], _series("clients", row["name"])].append(row["value"])
    for (round, name), values in by_clients.items():
        series[round] |= {f"{name}/mean": fmean(values), f"{name}/min": min(values), f"{name}/max": max(values)}
    return dict(sorted(series.items()))


def _series(participant: str, name: str) -> str:
    if is_score(name):
        return f"accuracy/{participant}/{name}"
    if name.startswith("diag_"):
        return f"diagnostics/{participant}/{name.removeprefix('diag_')}"
    return f"{participant}/{name}"


def total_bytes(ledger: Iterable[Row], before: Mapping[str, float] | None = None) -> Points:
    """Add up the bytes that all clients sent and received until the end of each round; round 0 is before the first.

    Rows come in ascending rounds; `before` holds the totals of the rounds before them.
    """
    totals = {"bytes/up": 0.0, "bytes/down": 0.0} | dict(before or {})
    by_round: Points = {}
    for row in ledger:
        totals[f"bytes/{row['direction']}"] += row["bytes"]
        by_round[row["round"]] = dict(totals)
    return by_round
