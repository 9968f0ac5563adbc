"""Tables of protocols' scores and of scores over seeds, for the terminal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from rayfed_ssl.evaluation.registry import BEST, PROTOCOLS
from rayfed_ssl.method import Metrics
from rayfed_ssl.reports.measurements import TABLE, Measurement
from rayfed_ssl.reports.seeds import SeedGroup, Spread
from tune.cli.tables import percent, plain_console, plain_table, print_json, print_remarks

OVER_CLIENTS: Mapping[str, Callable[[Iterable[float]], float]] = {
    "mean of clients": fmean,
    "minimum of clients": min,
}


def print_protocols(scores: Mapping[str, Metrics]) -> None:
    """Print what a run's protocols found, a protocol and an encoder a row; nothing where none was run."""
    names = [name for name in PROTOCOLS if name != "knn" and any(name in found for found in scores.values())]
    if not names:
        return
    table = plain_table("protocol", "encoder", "last epoch", "best epoch")
    for name in names:
        for encoder, found in over_clients({who: metrics for who, metrics in scores.items() if name in metrics}):
            table.add_row(name, encoder, percent(found.get(name)), percent(found.get(name + BEST)))
    plain_console().print()
    plain_console().print(table)


def over_clients(scores: Mapping[str, Metrics]) -> list[tuple[str, Metrics]]:
    """Add mean and minimum over clients' own encoders, where there are several."""
    rows = list(scores.items())
    local = [metrics for name, metrics in rows if name != "global"]
    if len(local) < 2:
        return rows
    for label, function in OVER_CLIENTS.items():
        names = [name for name in local[0] if all(name in metrics for metrics in local)]
        rows.append((label, {name: function([metrics[name] for metrics in local]) for name in names}))
    return rows


def print_measurements(measurements: Sequence[Measurement], run: Path | None, as_json: bool) -> None:
    """Print what protocols found, a protocol and an encoder a row, with mean and minimum over clients."""
    if as_json:
        print_json([asdict(one) for one in measurements])
        return
    table = plain_table("protocol", "encoder", "round", "last epoch", "best epoch", "seconds")
    for protocol in dict.fromkeys(one.protocol for one in measurements):
        own = {one.encoder: one for one in measurements if one.protocol == protocol}
        for encoder, scores in over_clients({name: one.scores for name, one in own.items()}):
            known = own.get(encoder)
            at, seconds = ("", "") if known is None else (str(known.round), f"{known.seconds:.1f}")
            table.add_row(
                protocol, encoder, at, percent(scores.get(protocol)), percent(scores.get(protocol + BEST)), seconds
            )
    plain_console().print(table)
    if run is not None:
        plain_console().print(f"appended to {run / TABLE}", soft_wrap=True, markup=False)


def print_seed_groups(groups: Sequence[SeedGroup], as_json: bool) -> None:
    """Print mean, sample standard deviation and number over seeds, a setting and a score a row."""
    if as_json:
        print_json([_plain(group) for group in groups])
        return
    table = plain_table("method", "split", "rounds", "score", "mean", "std", "n", "minimum", "seeds")
    for group in groups:
        first = group.runs[0]
        split = first.config.partition
        named = (
            first.name,
            split.name + (f" {split.alpha:g}" if split.alpha else ""),
            f"{first.rounds}x{first.config.epochs}",
        )
        for score, spread in group.scores.items():
            lowest = group.minimum.get(score)
            seeds = ", ".join(map(str, group.seeds))
            table.add_row(*named, score, *_cells(spread), "" if lowest is None else plus_minus(lowest), seeds)
    plain_console().print(table)
    print_remarks([run for group in groups for run in group.runs])


def _cells(spread: Spread) -> tuple[str, str, str]:
    return percent(spread.mean), percent(spread.std), str(spread.n)


def plus_minus(spread: Spread) -> str:
    """Write "75.31% ± 0.42", or the mean alone where there is one run."""
    return percent(spread.mean) + ("" if spread.std is None else f" ± {100 * spread.std:.2f}")


def _plain(group: SeedGroup) -> dict[str, object]:
    return {
        "method": group.runs[0].name,
        "runs": [str(run.directory) for run in group.runs],
        "seeds": group.seeds,
        "scores": {name: asdict(spread) for name, spread in group.scores.items()},
        "minimum": {name: asdict(spread) for name, spread in group.minimum.items()},
    }
