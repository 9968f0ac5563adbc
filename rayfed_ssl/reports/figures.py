"""Figures of runs: samples by client and class as a file, runs beside each other, and lines over rounds."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from rayfed_ssl.data.partitions import count_samples, with_unlabeled
from rayfed_ssl.data.public_data import PublicClient, parse_public
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.formats import standard_error
from rayfed_ssl.records.metric_rows import Row
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

LARGEST = 0.9
"""Diameter of the largest circle, in cells."""


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
    for ((is_server, name), losses), marker in zip(sorted(sides.items()), cycle(MARKERS), strict=False):
        is_first, values = name.endswith("_first"), by_round(losses, name)
        side, epoch = "server" if is_server else "clients", "first" if is_first else "last"
        dash = {(False, False): "--", (False, True): ":", (True, False): "-", (True, True): "-."}[is_server, is_first]
        bands = () if is_server or is_first else ({round: (min(v), max(v)) for round, v in values.items()},)
        label = f"{side}: {name.removesuffix('_first').replace('_', ' ')}, {epoch} epoch"
        style = {"color": ORANGE if is_server else BLUE, "marker": marker, "linestyle": dash}
        lines.append(Line(label, {round: fmean(v) for round, v in values.items()}, bands, style))
    return lines


def draw_partition(federation: Federation, out: Path) -> Path:
    """Draw which client holds how many samples of which class; raises ConfigError for an unknown suffix."""
    train = federation.dataset.train
    heading = f"{federation.dataset.name}: {partition_text(federation.config)}, seed {federation.config.seed}"
    title, public = f"{heading}\n{federation.skew.text}", public_rows(federation)
    with styled():
        figure = partition_figure(
            train.labels, federation.shards, train.classes, title=title, public=public, names=federation.client_names
        )
        return save_figure(figure, out)


MOST_ROWS = 120
"""Clients that have a row of circles each; more of them are drawn by their number of samples."""


def partition_figure(
    labels: np.ndarray,
    shards: Mapping[int, np.ndarray],
    classes: Sequence[str],
    *,
    title: str = "",
    public: np.ndarray | None = None,
    names: Mapping[int, str] = MappingProxyType({}),
) -> Figure:
    """Draw which client holds how many samples of which class (FLESD, 2022, Fig. 2), public rows above the clients.

    The area of each circle is proportional to its count. Circles of public samples are hollow. Samples without a label
    have a column of their own. Beside the id of a client stands its name, if it has one.
    """
    rows = {f"{client_id} {names.get(client_id, '')}".strip(): shards[client_id] for client_id in sorted(shards)}
    if len(rows) > MOST_ROWS:
        return _many_clients(*with_unlabeled(labels, classes), rows, title)
    if public is not None:
        rows = {"public": public, **rows}
    labels, classes = with_unlabeled(labels, classes)
    counts = count_samples(labels, rows.values(), len(classes))
    cell = min(0.5, 14 / max(counts.shape))
    figure, axes = new_axes(width=max(cell * len(classes) + 1.8, 4), height=cell * len(rows) + 1.4)
    diameters = LARGEST * np.sqrt(counts / counts.max())
    row, column = np.nonzero(counts)
    hollow = (row == 0) & (public is not None)
    for chosen, face, edge in ((hollow, "none", ORANGE), (~hollow, BLUE, "none")):
        sizes = diameters[row[chosen], column[chosen]]
        places = np.column_stack([column[chosen], row[chosen]])
        style = {"facecolors": face, "edgecolors": edge, "offset_transform": axes.transData}
        axes.add_collection(EllipseCollection(sizes, sizes, np.zeros(len(sizes)), units="xy", offsets=places, **style))
    axes.set(xlim=(-0.5, len(classes) - 0.5), ylim=(len(rows) - 0.5, -0.5), aspect="equal")
    axes.set(xlabel=f"class (largest circle: {counts.max():,} samples)", ylabel="client (samples)", title=title)
    # Beyond some 30 names they overlap: every fifth or tenth then.
    for axis, texts in (
        (axes.xaxis, classes),
        (axes.yaxis, [f"{clean(name)[:24]} ({len(r):,})" for name, r in rows.items()]),
    ):
        step = 1 if len(texts) <= 30 else 5 if len(texts) <= 60 else 10
        axis.set_ticks(range(0, len(texts), step), texts[::step])
    axes.tick_params(axis="x", labelrotation=90 if max(map(len, classes)) > 2 else 0)
    return figure


def _many_clients(labels: np.ndarray, classes: Sequence[str], rows: Mapping[str, np.ndarray], title: str) -> Figure:
    """Draw clients' numbers of samples in ascending order, and below shares of classes, by each client's largest class.

    Clients whose classes are alike give even rows; where each has classes of its own, there is a bright diagonal.
    """
    order = sorted(rows, key=lambda name: len(rows[name]))
    counts = count_samples(labels, [rows[name] for name in order], len(classes))
    held = counts / counts.sum(1, keepdims=True)
    by_class = np.lexsort((-held.max(1), held.argmax(1)))
    figure = Figure(figsize=(7, min(3.6 + 0.09 * len(classes), 8)), layout="constrained")
    sizes, shares = figure.subplots(2, height_ratios=[1, min(0.9 + 0.04 * len(classes), 3)])
    sizes.fill_between(range(len(order)), counts.sum(1), step="mid", color=BLUE, linewidth=0)
    ends = [f"{clean(name)[:24]} has {len(rows[name]):,}" for name in (order[0], order[len(order) // 2], order[-1])]
    sizes.set(ylim=(0, None), xlim=(0, len(order) - 1), ylabel="samples", title=title)
    sizes.set_xlabel(f"{len(order):,} clients by number of samples: {', '.join(ends)}", fontsize=8)
    top = float(np.median(held.max(1)))
    image: Any = shares.imshow(held[by_class].T, cmap="cividis", aspect="auto", vmin=0, vmax=top)
    figure.colorbar(image, ax=shares, label="share of its samples", extend="max", pad=0.02)
    step = -(-len(classes) // 20)
    shares.set_yticks(range(0, len(classes), step), [clean(name) for name in classes[::step]])
    shares.set(xlabel="clients by the class of which they have most", ylabel="class")
    shares.grid(visible=False)
    return figure


def public_rows(federation: Federation) -> np.ndarray | None:
    """Find the rows of the training set that are public, where they are one client's shard."""
    config = federation.config
    if federation.public is None or config.public is None or not isinstance(parse_public(config.public), PublicClient):
        return None
    return federation.public.rows


def draw_comparison(summaries: Sequence[Summary], out: Path) -> Path:
    """Draw accuracy over bytes, a point a run; raises ConfigError without scores, or for an unknown suffix."""
    with styled():
        return save_figure(comparison_figure(summaries), out)


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
        errors = [200 / math.sqrt(2) * standard_error(mean, mean, group.runs[0].samples) for group, mean in scores]
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
