"""What finished runs achieved and cost, in tables, for `run`, `resume`, `evaluate` and `compare`."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from rayfed_ssl.engine.phase_timer import phases_text
from rayfed_ssl.evaluation.registry import ATTACK_SUCCESS, ATTACK_SUCCESS_KNN, BEST, PROTOCOLS
from rayfed_ssl.formats import percent, size
from rayfed_ssl.method import Metrics
from rayfed_ssl.records.own_scores import OwnScores
from rayfed_ssl.reports.own_scores import own_note, own_table
from rayfed_ssl.reports.summary import Summary, epsilon_text, virtual_text, with_client_summary
from tune.terminal import echo, plain_console, print_table

HEADINGS = {"knn": "kNN", "supervised": "classifier", "linear": "linear probe", "linear_best": "best epoch"} | {
    ATTACK_SUCCESS: "attack success",
    ATTACK_SUCCESS_KNN: "attack success, kNN",
}
"""Headings of the scores that every run has, of a supervised objective's classifier, and of a backdoor's success."""

OF_CHOICE = tuple(name for name in PROTOCOLS if name != "knn")
"""Protocols that a run measures on request only."""


def print_run(summary: Summary, verbose: bool = False, warned: Collection[str] = ()) -> None:
    """Print a run's scores, bytes and digest, where its record is, and warnings that were not shown; more if verbose."""
    console = plain_console()
    labels = {name: f"{name} ({summary.architecture(name)})" for name in summary.scores}
    if summary.scores:
        print_scores(summary.scores, labels if summary.config.clients.models else {}, verbose)
        print_protocols(summary.scores, verbose)
        for line in filter(None, (summary.start_line(), summary.attack_line(), summary.rule_line())):
            console.print(line, soft_wrap=True)
        console.print()
    print_own_scores(summary.own)
    sizes = {
        kind: [summary.bytes_by_kind.get((direction, kind), 0) for direction in ("up", "down")]
        for kind in sorted({kind for _, kind in summary.bytes_by_kind})
    } | {"total": [summary.bytes_up, summary.bytes_down]}
    print_table(("content", "up", "down"), [[kind, *map(size, moved)] for kind, moved in sizes.items()])
    lines = [""]
    if summary.phases:
        lines.append(f"time: {phases_text(summary.phases)}")
    if summary.epsilon is not None:
        lines.append(f"privacy: {epsilon_text(summary.epsilon, summary.config)}")
    if virtual := virtual_text(summary):
        lines.append(f"virtual time: {virtual}")
    if verbose and (even := summary.break_even):
        lines.append(even.text)
    lines += [f"warning: {warning}" for warning in summary.warnings if warning not in warned]
    lines += [*remarks([summary]), f"state_sha256 {summary.state_sha256}", f"record: {summary.directory}"]
    for line in lines:
        console.print(line, soft_wrap=True)


def print_own_scores(scores: OwnScores) -> None:
    """Print clients' scores on samples of their own, a row for each encoder and score; nothing where there are none."""
    if scores:
        table = own_table(scores)
        print_table(table.head, table.texts(), text=2)
        echo(own_note(scores))
        echo()


def remarks(summaries: Sequence[Summary]) -> list[str]:
    """Say which runs' settings were changed since, and which accuracies are not of the test set."""
    changed = [f"warning: {summary.changed}" for summary in summaries if summary.changed]
    names = [summary.directory.name for summary in summaries if summary.config.data.validation is not None]
    held_out = "are of held-out training samples (data.validation), not of the test set"
    return changed + ([f"accuracies of {', '.join(names)} {held_out}"] if names else [])


def print_scores(scores: Mapping[str, Metrics], labels: Mapping[str, str], verbose: bool) -> None:
    """Print a row for each encoder, under its label if it has one; a classifier's column only where one has it."""
    names = {name: heading for name, heading in HEADINGS.items() if verbose or not name.endswith(BEST)}
    for name in ("supervised", ATTACK_SUCCESS, ATTACK_SUCCESS_KNN):
        if not any(name in metrics for metrics in scores.values()):
            del names[name]
    rows = [
        [labels.get(encoder, encoder), *(percent(metrics.get(name)) for name in names)]
        for encoder, metrics in with_client_summary(scores).items()
    ]
    print_table(("encoder", *names.values()), rows)


def print_protocols(scores: Mapping[str, Metrics], verbose: bool = True, protocols: Iterable[str] = OF_CHOICE) -> None:
    """Print a row for each protocol and encoder; nothing where no protocol was run."""
    rows = []
    for protocol in protocols:
        measured = {encoder: metrics for encoder, metrics in scores.items() if protocol in metrics}
        for encoder, metrics in with_client_summary(measured).items():
            best = [percent(metrics.get(protocol + BEST))] * verbose
            rows.append([protocol, encoder, percent(metrics.get(protocol)), *best])
    if rows:
        echo()
        print_table(("protocol", "encoder", "last epoch", *["best epoch"] * verbose), rows, text=2)
