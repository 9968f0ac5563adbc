"""Clients' scores on samples of their own (`clients.test_fraction`): their rows, and what they come to over clients."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from rayfed_ssl.engine.round_loop import Evaluation
from rayfed_ssl.evaluation.registry import OWN, OWN_SAMPLES, OWN_SCORES
from rayfed_ssl.formats import MeanStd, standard_error
from rayfed_ssl.method import Metrics
from rayfed_ssl.records.metric_rows import Row, client_of, score_rows

OVER_CLIENTS = "clients"
"""The participant of rows that are about all clients with scores of their own."""

OwnScores = Mapping[int, Metrics]
"""Scores in [0, 1] by name, and `OWN_SAMPLES`, by client id."""


def own_rows(evaluations: Sequence[Evaluation]) -> list[Row]:
    """List the rows of metrics.parquet that clients' own scores add, a summary at the end; none without scores."""
    if not evaluations:
        return []
    rows = score_rows(evaluations)
    scores = own_scores(rows, evaluations[0].round)
    summary = {f"{name}_{key}": value for name in OWN_SCORES for key, value in summarize(scores, name).items()}
    return rows + [
        {"round": evaluations[0].round, "participant": OVER_CLIENTS, "name": name, "value": value}
        for name, value in summary.items()
    ]


def own_scores(rows: Iterable[Row], round: int) -> dict[int, Metrics]:
    """Read a round's scores by client from rows of metrics.parquet."""
    scores: dict[int, Metrics] = {}
    for row in rows:
        client = client_of(row["participant"])
        if client is not None and row["round"] == round and row["name"] in (OWN_SAMPLES, *OWN_SCORES):
            scores.setdefault(client, {})[row["name"]] = row["value"]
    return scores


def summarize(scores: OwnScores, name: str) -> Metrics:
    """Summarize a score over the clients that have it, by `OWN_SUMMARIES`; nothing where none has it.

    The worst tenth is the mean of the lowest tenth of the clients, rounded up. A client gains where it is above the start.
    """
    values = sorted(metrics[name] for metrics in scores.values() if name in metrics)
    if not values:
        return {}
    summary = {"std": pstdev(values), "worst_tenth": fmean(values[: math.ceil(len(values) / 10)])}
    gains = differences(scores, name)
    return summary | ({"gaining": sum(gain > 0 for gain, _ in gains.values()) / len(gains)} if gains else {})


def differences(
    scores: OwnScores, name: str, others: OwnScores | None = None, reference: str | None = None
) -> dict[int, tuple[float, float]]:
    """Compute how far clients' scores are above those of `others` by `reference`, each with its standard error.

    By default these are the clients' own scores by the start.
    """
    reference = reference or f"{OWN}start_{name.rpartition('_')[2]}"
    gains = {}
    for client, metrics in scores.items():
        before = (scores if others is None else others).get(client, {})
        if name in metrics and reference in before and (others is not None or name != reference):
            error = standard_error(metrics[name], before[reference], int(metrics[OWN_SAMPLES]))
            gains[client] = metrics[name] - before[reference], error
    return gains


def mean_gain(gains: Mapping[int, tuple[float, float]]) -> tuple[float, float | None]:
    """Average differences over clients, with the standard error by their spread; None for a single client."""
    spread = MeanStd.of([gain for gain, _ in gains.values()])
    return spread.mean, None if spread.std is None else spread.std / math.sqrt(spread.n)


def deciding_samples(scores: OwnScores, name: str) -> int:
    """Count what the error of a number over clients follows from: test samples, or clients where these are counted."""
    if name.endswith(("_std", "_gaining")):
        return len(scores)
    total = sum(int(metrics[OWN_SAMPLES]) for metrics in scores.values())
    return total * math.ceil(len(scores) / 10) // len(scores) if name.endswith("_worst_tenth") else total
