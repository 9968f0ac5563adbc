"""What finished runs achieved and cost, in the terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rayfed_ssl.formats import size
from rayfed_ssl.reports.summary import Summary
from tune.cli.scores import print_protocols, print_scores
from tune.terminal import plain_console, print_table


def print_run(summary: Summary, figures: Sequence[Path]) -> None:
    """Print a run's scores, bytes and digest, and where its record and figures are."""
    console = plain_console()
    labels = {name: f"{name} ({summary.architecture(name)})" for name in summary.scores}
    print_scores(summary.scores, labels if summary.config.clients.models else {})
    print_protocols(summary.scores)
    console.print()
    sizes = {
        kind: [summary.bytes_by_kind.get((direction, kind), 0) for direction in ("up", "down")]
        for kind in sorted({kind for _, kind in summary.bytes_by_kind})
    } | {"total": [summary.bytes_up, summary.bytes_down]}
    print_table(("content", "up", "down"), [[kind, *map(size, moved)] for kind, moved in sizes.items()])
    lines = [f"\nprivacy-leakage risk of uploads: {summary.privacy}"]
    if even := summary.break_even:
        numbers = even.rounds * even.num_public * even.dim
        lines.append(
            f"FLESD Eq. 11: {even.rounds} x {even.num_public:,} x {even.dim} = {numbers:,} numbers up per client, as many "
            f"as {even.rounds_of_averaging:.2f} rounds of averaging {even.num_parameters:,} parameters"
        )
    lines += [*remarks([summary]), f"state_sha256 {summary.state_sha256}", f"record: {summary.directory}"]
    for line in [*lines, *(f"figure: {figure}" for figure in figures)]:
        console.print(line, soft_wrap=True)


def remarks(summaries: Iterable[Summary]) -> list[str]:
    """Say which runs' accuracies are not of the test set."""
    names = [summary.directory.name for summary in summaries if summary.config.data.validation is not None]
    held_out = "are of held-out training samples (data.validation), not of the test set"
    return [f"accuracies of {', '.join(names)} {held_out}"] if names else []
