"""Figures of runs: samples by client and class as a file, runs beside each other, and lines over rounds."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.formats import standard_error
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.reports.partition_figure import partition_figure, public_rows
from rayfed_ssl.reports.seed_groups import by_seed, labeled
from rayfed_ssl.reports.style import (
    BLUE,
    EQUAL,
    MARKERS,
    ORANGE,
    clean,
    legend_below,
    line_style,
    mark_style,
    new_axes,
    save_figure,
    scale_megabytes,
    styled,
)
from rayfed_ssl.reports.summary import Summary, by_round, partition_text


@dataclass(frozen=True)
class Line:
    """Numbers over x under a label, with bands from low to high, the widest first; `style` changes that of its place."""

    label: str
    values: dict[Any, float]
    bands: tuple[dict[Any, tuple[float, float]], ...] = ()
    style: dict[str, Any] = field(default_factory=dict)


def draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw lines with their bands."""
    for index, line in enumerate(lines):
        style = line_style(index) | line.style
        axes.plot(list(line.values), list(line.values.values()), label=clean(line.label), markersize=5, **style)
        for band in filter(None, line.bands):
            low, high = zip(*band.values(), strict=True)
            axes.fill_between(list(band), low, high, color=style["color"], alpha=0.18, linewidth=0)


def loss_lines(rows: Sequence[Row]) -> list[Line]:
    """Find all losses on record, means over clients and their range: metrics named "loss" or "..._loss", or "..._first"."""
    sides: dict[tuple[bool, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["name"].removesuffix("_first").rpartition("_")[2] == "loss":
            sides[row["participant"] == "server", row["name"]].append(row)
    lines = []
    for ((is_server, name), own_rows), marker in zip(sorted(sides.items()), cycle(MARKERS), strict=False):
        is_first, values = name.endswith("_first"), by_round(own_rows, name)
        side, epoch = "server" if is_server else "clients", "first" if is_first else "last"
        dash = {(False, False): "--", (False, True): ":", (True, False): "-", (True, True): "-."}[is_server, is_first]
        bands = () if is_server or is_first else ({round: (min(v), max(v)) for round, v in values.items()},)
        label = f"{side}: {name.removesuffix('_first').replace('_', ' ')}, {epoch} epoch"
        style = {"color": ORANGE if is_server else BLUE, "marker": marker, "linestyle": dash}
        lines.append(Line(label, {round: fmean(losses) for round, losses in values.items()}, bands, style))
    return lines


def draw_partition(federation: Federation, out: Path) -> Path:
    """Draw which client holds how many samples of which class; raises ConfigError for an unknown suffix."""
    with styled():
        return save_figure(_partition(federation), out)


def draw_comparison(summaries: Sequence[Summary], out: Path) -> Path:
    """Draw accuracy over bytes, a point a run; raises ConfigError without scores, or for an unknown suffix."""
    with styled():
        return save_figure(comparison_figure(summaries), out)


def _partition(federation: Federation) -> Figure:
    train, public = federation.dataset.train, public_rows(federation)
    heading = f"{federation.dataset.name}: {partition_text(federation.config)}, seed {federation.config.seed}"
    title = f"{heading}\n{federation.skew.text}"
    return partition_figure(train.labels, federation.shards, train.classes, title=title, public=public)


def comparison_figure(summaries: Sequence[Summary]) -> Figure:
    """Draw accuracy over bytes, a point a run, one mark a setting; bars with two standard errors where bytes are equal."""
    scored = [(summary, score) for summary in summaries if (score := summary.headline("linear")) is not None]
    if not scored:
        raise ConfigError("none of these runs has a linear probe's score: let one come to its end")
    runs = [run for run, _ in scored]
    groups = labeled(by_seed(runs), {run.directory: (run.directory.name, "") for run in runs})
    figure, axes = new_axes(width=7, height=4.8)
    sent = [_sent(run) for run in runs]
    if len(groups) > 1 and max(sent) - min(sent) <= EQUAL * max(sent):
        scores = [(group, group.scores["linear"].mean) for group in groups]
        errors = [200 * standard_error(mean, 0.0, group.runs[0].samples) for group, mean in scores]
        axes.barh([clean(group.label) for group, _ in scores], [100 * mean for _, mean in scores], 0.6, xerr=errors)
        axes.invert_yaxis()
        axes.set(xlabel=f"linear probe (%), ± two standard errors; each client sends {max(sent):.4g} MB in all")
        return figure
    for index, group in enumerate(groups):
        style = mark_style(index) | {"linestyle": "", "markersize": 8, "label": clean(group.label)}
        axes.plot(list(map(_sent, group.runs)), [100 * (run.headline("linear") or 0) for run in group.runs], **style)
    scale_megabytes(axes, sent, 0.1)
    axes.set(xlabel="MB that a client sends in all", ylabel="linear probe (%)")
    legend_below(figure, axes)
    return figure


def _sent(run: Summary) -> float:
    return run.bytes_up / run.num_clients / 1e6
