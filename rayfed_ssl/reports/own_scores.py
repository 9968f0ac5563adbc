"""Clients' scores on samples of their own, as tables and lines."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from rayfed_ssl.evaluation.registry import OWN, OWN_ENCODERS, OWN_SAMPLES
from rayfed_ssl.formats import DECISIVE, percent
from rayfed_ssl.method import Metrics
from rayfed_ssl.records.own_scores import OwnScores, differences, mean_gain, summarize
from rayfed_ssl.reports.summary import SCORES, Summary
from rayfed_ssl.reports.table import MISSING, Cell, Table

OWN_COLUMNS = {"own linear": "mean", "worst tenth": "worst_tenth", "gaining": "gaining"}
"""Columns of clients' own scores where runs are compared: linear probe of what a client has after a run."""

HEADS = ("encoder", "score", "mean", "std", "worst tenth", "above start", "below start", "mean gain")


def own_table(scores: OwnScores) -> Table:
    """Summarize scores over clients: a row for each encoder and score."""
    rows = []
    for encoder in OWN_ENCODERS:
        for score, title in SCORES.items():
            name = f"{OWN}{encoder}_{score}"
            if summary := summarize(scores, name):
                mean = fmean(each[name] for each in scores.values() if name in each)
                spread = [Cell.of(value, "percent") for value in (mean, summary["std"], summary["worst_tenth"])]
                rows.append([encoder, title, *spread, *_gains(differences(scores, name))])
    return Table.of("Each client on samples of its own", HEADS, rows)


def _gains(gains: Mapping[int, tuple[float, float]]) -> list[str]:
    """Count clients above and below a reference, in brackets those by more than two standard errors; and the mean gain."""
    if not gains:
        return [MISSING] * 3
    sides = [[(gain, error) for gain, error in gains.values() if sign * gain > 0] for sign in (1, -1)]
    counts = [f"{len(side)} ({sum(abs(gain) > DECISIVE * error for gain, error in side)})" for side in sides]
    mean, error = mean_gain(gains)
    return [*counts, f"{100 * mean:+.2f}" + ("" if error is None else f" ± {100 * error:.2f}")]


def own_note(scores: OwnScores) -> str:
    """Say what the numbers of `own_table` are of."""
    sizes = [int(metrics[OWN_SAMPLES]) for metrics in scores.values()]
    between = " to ".join(map(str, sorted({min(sizes), max(sizes)})))
    return (
        f"{len(sizes)} clients on {between} samples of their own each, that none trains on; in brackets: "
        "by more than two standard errors of these samples; mean gain over the start in points, ± its standard error over "
        "clients"
    )


def own_beside(one: Summary, other: Summary) -> list[str]:
    """Compare what clients have after two runs, their own or the global encoder, on test parts that are the same in both."""
    if not one.own or not other.own or _parts(one) != _parts(other):
        return []
    lines = []
    for score, title in SCORES.items():
        names = [own_name(run.own, score) for run in (one, other)]
        if gains := differences(one.own, names[0], other.own, names[1]):
            above, below, mean = _gains(gains)
            encoders = " and ".join(dict.fromkeys(name.removeprefix(OWN).rpartition("_")[0] for name in names))
            lines.append(
                f"{one.directory.name} beside {other.directory.name}, each client on its own samples ({encoders} encoder): "
                f"{title} of {above} clients above, {below} below, of {len(gains)}; mean {mean} points"
            )
    return lines


def own_name(scores: OwnScores, score: str) -> str:
    """Name the score of what a client has after a run: of its own encoder, or else of the global one."""
    own = f"{OWN}personal_{score}"
    return own if any(own in metrics for metrics in scores.values()) else f"{OWN}global_{score}"


def _parts(run: Summary) -> tuple[Any, ...]:
    """Collect what test parts follow from."""
    config = run.config
    return (
        run.fingerprint,
        config.seed,
        config.clients.number,
        config.clients.test_fraction,
        config.partition,
        config.public,
    )


def own_headline(scores: OwnScores) -> Metrics:
    """Give the numbers over clients that a run is compared by, of `OWN_COLUMNS`; nothing without scores."""
    name = own_name(scores, "linear")
    values = [metrics[name] for metrics in scores.values() if name in metrics]
    numbers = {"mean": fmean(values)} | summarize(scores, name) if values else {}
    return {column: numbers[key] for column, key in OWN_COLUMNS.items() if key in numbers}


def own_columns(scores: OwnScores) -> dict[str, str]:
    """Give the columns that `compare` has for clients' own scores."""
    shares = own_headline(scores)
    return {column: percent(shares[column]) if column in shares else "" for column in OWN_COLUMNS}
