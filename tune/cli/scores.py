"""Encoders' scores in tables, for `run`, `resume` and `evaluate`."""

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

import typer

from rayfed_ssl.evaluation.registry import BEST, PROTOCOLS
from rayfed_ssl.formats import percent
from rayfed_ssl.method import Metrics
from tune.terminal import print_table

HEADINGS = {"knn": "kNN", "supervised": "classifier", "linear": "linear probe", "linear_best": "best epoch"}
"""Headings of the scores that every run has, and of the classifier that a supervised objective trains."""

OVER_CLIENTS: Mapping[str, Callable[[Iterable[float]], float]] = {
    "mean of clients": fmean,
    "minimum of clients": min,
}


def base_scores(scores: Mapping[str, Metrics]) -> dict[str, str]:
    """Select the scores that have a column, by name; "supervised" only where an encoder has it."""
    names = {name for metrics in scores.values() for name in metrics}
    return {name: heading for name, heading in HEADINGS.items() if name in names or name != "supervised"}


def with_client_summary(scores: Mapping[str, Metrics]) -> dict[str, Metrics]:
    """Add mean and minimum over clients' encoders, if there are several."""
    clients = [metrics for name, metrics in scores.items() if name != "global"]
    if len(clients) < 2:
        return dict(scores)
    names = [name for name in clients[0] if all(name in metrics for metrics in clients)]
    summary = {
        label: {name: reduce([metrics[name] for metrics in clients]) for name in names}
        for label, reduce in OVER_CLIENTS.items()
    }
    return dict(scores) | summary


def print_scores(scores: Mapping[str, Metrics], labels: Mapping[str, str]) -> None:
    """Print a row for each encoder, under its label if it has one."""
    names = base_scores(scores)
    rows = [
        [labels.get(encoder, encoder), *(percent(metrics.get(name)) for name in names)]
        for encoder, metrics in with_client_summary(scores).items()
    ]
    print_table(("encoder", *names.values()), rows)


def print_protocols(scores: Mapping[str, Metrics]) -> None:
    """Print a row for each protocol and encoder; nothing where no protocol was run."""
    rows = []
    for protocol in PROTOCOLS:
        measured = {encoder: metrics for encoder, metrics in scores.items() if protocol in metrics}
        if protocol == "knn" or not measured:
            continue
        for encoder, metrics in with_client_summary(measured).items():
            rows.append([protocol, encoder, percent(metrics.get(protocol)), percent(metrics.get(protocol + BEST))])
    if rows:
        typer.echo()
        print_table(("protocol", "encoder", "last epoch", "best epoch"), rows, text=2)
