"""From rows of a record to the few series that trackers draw.

A series is named section/whom/what: "clients/loss/mean", "server/distil_loss", "accuracy/global/knn",
"diagnostics/clients/effective_rank/min", "bytes/up". However many clients there are, they give mean, minimum and maximum.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from rayfed_ssl.evaluation.registry import is_score
from rayfed_ssl.records.metric_rows import Row

Points = dict[int, dict[str, float]]
"""Values by round and series."""

DIAGNOSTIC = "diag_"


def points(rows: Iterable[Row]) -> Points:
    """Group rows of metrics.parquet; all rows of a round, a name and the clients have to come together."""
    single: Points = defaultdict(dict)
    several: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        kind, _, number = row["participant"].partition("-")
        if kind == "client" and number.isdecimal():
            several[row["round"], _series("clients", row["name"])].append(row["value"])
        else:
            single[row["round"]][_series(row["participant"], row["name"])] = row["value"]
    for (round, name), values in several.items():
        single[round] |= {f"{name}/mean": fmean(values), f"{name}/min": min(values), f"{name}/max": max(values)}
    return dict(sorted(single.items()))


def _series(whom: str, name: str) -> str:
    if is_score(name):
        return f"accuracy/{whom}/{name}"
    if name.startswith(DIAGNOSTIC):
        return f"diagnostics/{whom}/{name.removeprefix(DIAGNOSTIC)}"
    return f"{whom}/{name}"


def moved(ledger: Iterable[Row], before: Mapping[str, float] | None = None) -> Points:
    """Add up the bytes that all clients sent and received until the end of each round; round 0 is before the first.

    Args:
        ledger: Rows of ledger.parquet in ascending rounds.
        before: Totals of the rounds before.
    """
    totals = {"bytes/up": 0.0, "bytes/down": 0.0} | dict(before or {})
    found: Points = {}
    for row in ledger:
        totals[f"bytes/{row['direction']}"] += row["bytes"]
        found[row["round"]] = dict(totals)
    return found
