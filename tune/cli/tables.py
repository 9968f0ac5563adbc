"""Tables for the terminal."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rayfed_ssl.config.recipes import recipe_names
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import Evaluation
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.records.metric_rows import spans
from rayfed_ssl.reports.summary import Summary
from tune.cli.progress import megabytes

if TYPE_CHECKING:
    from tune.sweeps.definition.sweep import Sweep

WIDTH = 140
"""Columns of output that goes to a file or a pipe, where no terminal sets them."""


BASE_SCORES = {"knn": "kNN", "supervised": "classifier", "linear": "linear probe", "linear_best": "best epoch"}
"""Headings of the scores that runs have always, and of the classifier that a supervised objective trains."""


class _Console(Console):
    """A console whose reader may leave early, as `head` does, without that being an error."""

    def on_broken_pipe(self) -> None:
        """Stop in silence."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0)


def plain_console() -> Console:
    """Open the terminal, or a wide page where there is none; brackets in names and paths are no markup."""
    console = _Console(highlight=False, markup=False)
    return console if console.is_terminal else _Console(highlight=False, markup=False, width=WIDTH)


def plain_table(*columns: str, title: str | None = None) -> Table:
    """Begin a table without lines: the first column to the left, numbers to the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    return table


def percent(value: float | None) -> str:
    """Write a score in [0, 1] as 12.34%, and none as a dash."""
    return "-" if value is None else f"{100 * value:.2f}%"


def _base_scores(scores: Iterable[Mapping[str, float]]) -> list[str]:
    found = {name for metrics in scores for name in metrics}
    return [name for name in BASE_SCORES if name in found or name != "supervised"]


def print_run(summary: Summary, figures: Sequence[Path]) -> None:
    """Print what a finished run achieved and cost."""
    console = plain_console()
    names = _base_scores(summary.scores.values())
    table = plain_table("encoder", *(BASE_SCORES[name] for name in names))
    for name, scores in summary.scores.items():
        shown = f"{name} ({summary.architecture(name)})" if summary.config.clients.models else name
        table.add_row(shown, *(percent(scores.get(score)) for score in names))
    if len(summary.scores) > 1:
        local = [scores for name, scores in summary.scores.items() if name != "global"]
        for label, function in (("mean of clients", np.mean), ("minimum of clients", np.min)):
            found = [[float(scores[s]) for scores in local if s in scores] for s in names]
            table.add_row(label, *(percent(float(function(values))) if values else "-" for values in found))
    console.print(table)
    from tune.cli.score_tables import print_protocols  # it takes its tables from here

    print_protocols(summary.scores)
    moved = plain_table("content", "up", "down")
    for kind in sorted({kind for _, kind in summary.bytes_by_kind}):
        sizes = (summary.bytes_by_kind.get((direction, kind), 0) for direction in ("up", "down"))
        moved.add_row(kind, *(megabytes(size) for size in sizes))
    moved.add_row("total", megabytes(summary.bytes_up), megabytes(summary.bytes_down))
    console.print()
    console.print(moved)
    console.print(f"\nprivacy-leakage risk of uploads: {summary.privacy}")
    if summary.break_even is not None:
        even = summary.break_even
        numbers = even.rounds * even.num_public * even.dim
        console.print(
            f"FLESD Eq. 11: {even.rounds} x {even.num_public:,} x {even.dim} = {numbers:,} numbers up per client, as many "
            f"as {even.rounds_of_averaging:.2f} rounds of averaging {even.num_parameters:,} parameters",
            soft_wrap=True,
        )
    print_remarks([summary])
    console.print(f"state_sha256 {summary.state_sha256}", soft_wrap=True)
    console.print(f"record: {summary.directory}" + "".join(f"\nfigure: {figure}" for figure in figures), soft_wrap=True)


def print_comparison(summaries: Sequence[Summary], as_json: bool) -> None:
    """Print accuracy against bytes and rounds, a run a row."""
    if as_json:
        print_json([_plain(summary) for summary in summaries])
        return
    table = plain_table(
        "run", "method", "split", "seed", "rounds", "linear", "minimum", "kNN", "up", "down", "seconds", "privacy"
    )
    for summary in summaries:
        config = summary.config
        split = config.partition.name + (f" {config.partition.alpha:g}" if config.partition.alpha else "")
        table.add_row(
            summary.directory.name + ("" if summary.finished else " (unfinished)"),
            summary.name,
            split,
            str(config.seed),
            f"{summary.rounds}x{config.epochs}",
            percent(summary.headline("linear")),
            percent(summary.minimum("linear")) if len(summary.scores) > 1 else "",
            percent(summary.headline("knn")),
            megabytes(summary.bytes_up),
            megabytes(summary.bytes_down),
            f"{summary.seconds:.0f}",
            summary.privacy,
        )
    plain_console().print(table)
    print_remarks(summaries)


def print_remarks(summaries: Iterable[Summary]) -> None:
    """Say of which runs accuracies are not of the test set, and of which rows are lost."""
    console, summaries = plain_console(), list(summaries)
    names = [summary.directory.name for summary in summaries if summary.config.data.validation is not None]
    if names:
        console.print(
            f"accuracies of {', '.join(names)} are of held-out training samples (data.validation), not of the test set",
            soft_wrap=True,
        )
    for summary in summaries:
        for table, rounds in summary.lost.items():
            told = f"{table} of rounds {spans(rounds)}"
            console.print(
                f"{summary.directory.name} was damaged, and has lost {told}: bytes and seconds are of what is left",
                soft_wrap=True,
            )


def _plain(summary: Summary) -> dict[str, Any]:
    plain = asdict(summary) | {"directory": str(summary.directory), "config": summary.config.dump()}
    plain["bytes_by_kind"] = {"/".join(key): size for key, size in summary.bytes_by_kind.items()}
    plain |= {"linear": summary.headline("linear"), "linear_minimum": summary.minimum("linear")}
    return plain


def print_evaluations(evaluations: Sequence[Evaluation], as_json: bool) -> None:
    """Print scores, an encoder a row."""
    if as_json:
        print_json([asdict(evaluation) for evaluation in evaluations])
        return
    names = _base_scores(evaluation.metrics for evaluation in evaluations)
    table = plain_table("encoder", "round", *(BASE_SCORES[name] for name in names), "seconds")
    for evaluation in evaluations:
        scores = (percent(evaluation.metrics.get(score)) for score in names)
        table.add_row(evaluation.encoder, str(evaluation.round), *scores, f"{evaluation.seconds:.1f}")
    plain_console().print(table)
    from tune.cli.score_tables import print_protocols  # it takes its tables from here

    print_protocols({evaluation.encoder: evaluation.metrics for evaluation in evaluations})


def print_json(value: Any) -> None:
    """Print JSON that other programs read."""
    plain_console().print_json(json.dumps(value, default=str))


def print_partition(federation: Federation) -> None:
    """Print samples by client and class."""
    labels, classes = federation.dataset.train.labels, federation.dataset.train.classes
    shown = len(classes) <= 20
    table = plain_table("client", "samples", "classes", *(classes if shown else ()))
    for client_id, rows in federation.shards.items():
        counts = np.bincount(labels[rows][labels[rows] >= 0], minlength=len(classes))
        cells = map(str, counts) if shown else ()
        table.add_row(str(client_id), str(len(rows)), str(np.count_nonzero(counts)), *cells)
    plain_console().print(table)
    if federation.num_public:
        plain_console().print(f"public: {federation.num_public:,} samples from {federation.config.public}")


def print_names(kind: str) -> None:
    """Print the names of a kind and what they stand for."""
    kinds = ("methods", "objectives", "datasets", "models", "views", "protocols", "recipes", "reproductions", "sweeps")
    if kind not in kinds:
        raise ConfigError(f"there is no list of {kind!r}{nearest(kind, kinds)}")
    table = plain_table("name", "what it is")
    table.columns[1].justify = "left"
    for name, text in _names(kind).items():
        table.add_row(name, text)
    plain_console().print(table)


def _names(kind: str) -> Mapping[str, str]:
    if kind == "reproductions":
        from rayfed_ssl.reproductions.loading import read_reproduction, reproduction_names

        return {name: read_reproduction(name)["title"] for name in reproduction_names()}
    if kind == "sweeps":
        from tune.sweeps.definition.files import load_sweep, sweep_names

        return {name: _sweep_summary(load_sweep(name)) for name in sweep_names()}
    if kind == "recipes":
        return {name: _recipe_summary(name) for name in recipe_names()}
    if kind == "methods":
        from rayfed_ssl.methods import METHODS

        return {name: info.summary for name, info in METHODS.items()}
    if kind == "objectives":
        from rayfed_ssl.objectives import OBJECTIVES
        from rayfed_ssl.training.state_parts import Parts, describe

        return {
            name: f"{_first_line(chosen)}: {describe(Parts().over(chosen.parts))}"
            for name, chosen in OBJECTIVES.items()
        }
    if kind == "datasets":
        from rayfed_ssl.data.datasets import DATASETS

        return {name: dataset.description for name, dataset in DATASETS.items()}
    if kind == "protocols":
        from rayfed_ssl.evaluation.registry import PROTOCOLS

        return {name: f"{protocol.description}; {protocol.source}" for name, protocol in PROTOCOLS.items()}
    if kind == "models":
        from rayfed_ssl.models import ENCODERS

        return {name: encoder.description for name, encoder in ENCODERS.items()}
    from rayfed_ssl.data.augmentation import VIEWS

    return {name: _describe_views(views) for name, views in VIEWS.items()}


def _describe_views(views: Any) -> str:
    first = views.first
    parts = [
        f"crop {first.crop_scale[0]:g}-{first.crop_scale[1]:g}" if first.crop_scale else "",
        "flip" * bool(first.flip),
    ]
    parts += [f"jitter {'/'.join(f'{s:g}' for s in first.jitter)}" if first.jitter else ""]
    parts += [name for name in ("grayscale", "blur", "solarize", "rotation") if getattr(first, name)]
    return ", ".join(part for part in parts if part) + ("" if views.first == views.second else "; second view differs")


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0].rstrip(".")


def _sweep_summary(sweep: "Sweep") -> str:
    from tune.sweeps.results.trial_results import number_of

    begins = f", after {sweep.begin.sweep}" if sweep.begin else ""
    return f"{sweep.title}: {number_of(sweep)} trials x {len(sweep.seeds)} seed{'s' * (len(sweep.seeds) > 1)}{begins}"


def _recipe_summary(name: str) -> str:
    from importlib import resources

    first = resources.files("rayfed_ssl.recipes").joinpath(f"{name}.yaml").read_text().splitlines()[0]
    return first.lstrip("# ").rstrip(".")
