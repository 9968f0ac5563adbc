"""Figures of a benchmark: a score over bytes, and kNN over local epochs, with a label for each system."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfed_ssl.reports.labels import FONT_SIZE, Label, label_ends, label_points, mark_style
from tune.studies.results.benchmark_results import RANDOM, BenchmarkResults, Row

FIGURES = {"accuracy-over-bytes": "Accuracy over bytes", "knn-over-epochs": "kNN over local epochs"}
"""Titles of the figures by their files' names."""


def draw_benchmark(results: BenchmarkResults, directory: Path) -> None:
    """Draw all figures as PNG and SVG, a panel for each split."""
    for name in FIGURES:
        figure = benchmark_figure(results, name, results.splits)
        for suffix in ("png", "svg"):
            figure.savefig(directory / f"{name}.{suffix}", dpi=144)


def benchmark_figure(results: BenchmarkResults, name: str, splits: Sequence[str]) -> Figure:
    """Draw a figure of `FIGURES`, its panels below each other."""
    figure = Figure(figsize=(6.6, 5.2 * len(splits)), layout="constrained")
    panels = figure.subplots(len(splits), 1, squeeze=False)[:, 0]
    draw = _draw_bytes if name == "accuracy-over-bytes" else _draw_curves
    for axes, split in zip(panels, splits, strict=True):
        axes.set_title(split)
        axes.grid(alpha=0.3)
        _draw_random(axes, results, split, results.score if draw is _draw_bytes else "knn")
        draw(axes, results, split)
    return figure


def _systems(results: BenchmarkResults, split: str) -> list[tuple[int, Row]]:
    """Each system's row on a split, with its place in the order of all systems, which chooses its mark."""
    names = [name for name in dict.fromkeys(row.system for row in results.rows) if name != RANDOM]
    return [(names.index(row.system), row) for row in results.rows if row.split == split and row.system != RANDOM]


def _draw_random(axes: Axes, results: BenchmarkResults, split: str, score: str) -> None:
    for row in results.rows:
        if (row.split, row.system) == (split, RANDOM) and (mean := row.mean(score)) is not None:
            axes.axhline(100 * mean.mean, color="#4d5966", linestyle=":", linewidth=1)
            axes.annotate(
                "random encoder",
                (1, 100 * mean.mean),
                (-3, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                fontsize=FONT_SIZE,
                color="#4d5966",
            )


def _draw_bytes(axes: Axes, results: BenchmarkResults, split: str) -> None:
    labels = []
    for index, row in _systems(results, split):
        if (mean := row.mean(results.score)) is not None:
            labels.append(Label(row.system, fmean(run.bytes for run in row.runs) / 1e6, 100 * mean.mean))
            spread = None if mean.std is None else 100 * mean.std
            axes.errorbar(
                labels[-1].x,
                labels[-1].y,
                yerr=spread,
                linestyle="",
                capsize=2,
                elinewidth=1,
                markersize=7,
                **mark_style(index),
            )
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.xaxis.set_major_formatter("{x:g}")  # the report writes no powers of ten
    axes.margins(0.12, 0.08)
    axes.set(xlabel="MB that all clients send and receive", ylabel=f"{results.score} (%)")
    label_points(axes, labels)


def _draw_curves(axes: Axes, results: BenchmarkResults, split: str) -> None:
    labels = []
    for index, row in _systems(results, split):
        curve = row.knn_curve()
        if curve:
            knn = [100 * value for value in curve.values()]
            axes.plot(list(curve), knn, linewidth=1, markersize=6, **mark_style(index))
            labels.append(Label(row.system, list(curve)[-1], knn[-1]))
    axes.set(xlabel="local epochs", ylabel="kNN (%)")
    axes.margins(0.03, 0.06)
    label_ends(axes, labels)
