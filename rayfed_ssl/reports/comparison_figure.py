"""Accuracy over bytes of several runs: a mark and a label for each system."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reports.figures import save_figure
from rayfed_ssl.reports.labels import Label, label_points, mark_style
from rayfed_ssl.reports.summary import Summary, partition_text


def draw_comparison(summaries: Sequence[Summary], out: Path) -> Path:
    """Draw accuracy over bytes, a point a run; raises ConfigError without scores, or for an unknown suffix."""
    return save_figure(comparison_figure(summaries), out)


def comparison_figure(summaries: Sequence[Summary]) -> Figure:
    """Draw accuracy over bytes, a point a run; runs of a system have one mark, and its best has the label."""
    scored = [(summary, score) for summary in summaries if (score := summary.headline("linear")) is not None]
    if not scored:
        raise ConfigError("none of these runs has a linear probe's score: let one come to its end")
    names = system_names([summary for summary, _ in scored])
    figure = Figure(figsize=(7, 4.8), layout="constrained")
    axes = figure.add_subplot()
    labels = []
    for index, name in enumerate(dict.fromkeys(names)):
        points = [
            Label(name, run.bytes_up / run.num_clients / 1e6, 100 * score)
            for (run, score), of in zip(scored, names, strict=True)
            if of == name
        ]
        places = [point.x for point in points], [point.y for point in points]
        axes.plot(*places, linestyle="", markersize=8, **mark_style(index))
        labels.append(max(points, key=lambda point: point.y))
    axes.set_xscale("symlog", linthresh=0.1)
    axes.margins(0.12, 0.1)
    axes.set(xlabel="MB that a client sends in all", ylabel="linear probe (%)")
    axes.grid(alpha=0.3)
    label_points(axes, labels)
    return figure


def system_names(summaries: Sequence[Summary]) -> list[str]:
    """Name each run's system: its method, with objective, model, data and split where these differ between the runs."""
    parts = [
        (summary.objective, summary.models, summary.dataset, partition_text(summary.config)) for summary in summaries
    ]
    differ = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    return [
        ", ".join([summary.name, *(part for part, differs in zip(own, differ, strict=True) if differs)])
        for summary, own in zip(summaries, parts, strict=True)
    ]
