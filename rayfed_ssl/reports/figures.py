"""Figures of a run, as PNG and SVG files: samples by client and class, losses over rounds, accuracy over bytes.

Colors are Okabe and Ito's, which color-blind readers tell apart; lines differ in marker and dash as well.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.partition_figure import partition_figure, public_rows
from rayfed_ssl.reports.summary import by_round, partition_text, summarize

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"

METHOD_STYLES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), ("#CC79A7", "D"), ("#56B4E9", "v"), ("#000000", "P"))


def draw_run(record: RunRecord) -> list[Path]:
    """Draw all figures of a run into its `figures` directory; returns the PNG files."""
    folder = record.directory / "figures"
    folder.mkdir(exist_ok=True)
    figures = {"partition": _partition(Federation.open(record.config())), "training": _training(record)}
    for name, figure in figures.items():
        for suffix in (".png", ".svg"):
            figure.savefig(folder / f"{name}{suffix}", dpi=144)
    return [folder / f"{name}.png" for name in figures]


def draw_partition(federation: Federation, out: Path) -> Path:
    """Draw which client holds how many samples of which class; raises ConfigError for an unknown suffix."""
    return save_figure(_partition(federation), out)


def save_figure(figure: Figure, out: Path) -> Path:
    """Write a figure; raises ConfigError for an unknown suffix."""
    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"a picture's name ends in .png, .svg or .pdf, got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=144)
    return out


def _partition(federation: Federation) -> Figure:
    config, train = federation.config, federation.dataset.train
    title = f"{federation.dataset.name}: {partition_text(config)}, seed {config.seed}"
    public = public_rows(federation)
    return partition_figure(
        train.labels, federation.shards, train.classes, title=title, caption=federation.skew.text, public=public
    )


def _training(record: RunRecord) -> Figure:
    """Draw losses of clients and server over rounds (as FLESD's Figure 5), and kNN accuracy over bytes."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, accuracy = figure.subplots(1, 2)
    draw_losses(losses, loss_series(record.metrics))
    losses.set(xlabel="round", ylabel="loss", title="Training")
    losses.legend(fontsize=8)
    summary = summarize(record)
    moved, probe = [point.bytes / 1e6 for point in summary.curve], summary.headline("linear")
    knn = [100 * point.knn for point in summary.curve]
    accuracy.plot(moved, knn, color=GREEN, marker="o", label="kNN, every round")
    if probe is not None and moved:
        accuracy.plot(moved[-1:], [100 * probe], color=BLUE, marker="D", linestyle="", label="linear probe, final")
    accuracy.set(xlabel="MB moved by all clients", ylabel="accuracy (%)", title="Costs")
    accuracy.legend(fontsize=8)
    figure.suptitle(record.directory.name, fontsize=10)
    return figure


@dataclass(frozen=True)
class LossSeries:
    """A loss of the clients or the server by round; `band` says whether the range over clients is drawn."""

    label: str
    style: dict[str, Any]
    values: dict[int, list[float]]
    band: bool


def loss_series(rows: Sequence[Row]) -> list[LossSeries]:
    """Find all losses on record: metrics named "loss" or "..._loss", with those of the first epoch, "..._first"."""
    sides: dict[tuple[bool, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["name"].removesuffix("_first").rpartition("_")[2] == "loss":
            sides[row["participant"] == "server", row["name"]].append(row)
    series = []
    for ((is_server, name), own_rows), marker in zip(sorted(sides.items()), cycle("os^vDX"), strict=False):
        is_first = name.endswith("_first")
        epoch = "first" if is_first else "last"
        side = "server" if is_server else "clients"
        label = f"{side}: {name.removesuffix('_first').replace('_', ' ')}, {epoch} epoch"
        dash = {(False, False): "--", (False, True): ":", (True, False): "-", (True, True): "-."}[is_server, is_first]
        style = {"color": ORANGE if is_server else BLUE, "marker": marker, "linestyle": dash}
        series.append(LossSeries(label, style, by_round(own_rows, name), not is_server and not is_first))
    return series


def draw_losses(axes: Axes, series: Sequence[LossSeries]) -> None:
    """Draw means over clients; the band is from the lowest to the highest client."""
    for line in series:
        rounds, values = list(line.values), line.values.values()
        axes.plot(rounds, [fmean(losses) for losses in values], label=line.label, markersize=4, **line.style)
        if line.band:
            low, high = [min(losses) for losses in values], [max(losses) for losses in values]
            axes.fill_between(rounds, low, high, color=line.style["color"], alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
