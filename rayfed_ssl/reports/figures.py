"""Figures of a run, as PNG and SVG files: who held which classes, losses over rounds, accuracy over bytes.

Colours are Okabe and Ito's, which colour-blind readers tell apart; lines differ in marker and dash as well.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl.config import ConfigError
from rayfed_ssl.data.public import PublicClient, parse_public
from rayfed_ssl.federation import Federation
from rayfed_ssl.record import Row, RunRecord
from rayfed_ssl.reports.compare import summarise
from rayfed_ssl.reports.partition_figure import partition_figure

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def draw_run(directory: Path) -> list[Path]:
    """Draw all figures of a run into its `figures` directory; returns the PNG files."""
    record = RunRecord.open(directory)
    folder = directory / "figures"
    folder.mkdir(exist_ok=True)
    figures = {"partition": _partition(Federation.open(record.config())), "training": _training(record)}
    return [_save(figure, folder / f"{name}.png", also_svg=True) for name, figure in figures.items()]


def draw_partition(federation: Federation, out: Path) -> Path:
    """Draw which client holds how many samples of which class.

    Raises:
        ConfigError: The file's ending is none that can be written.
    """
    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"a picture's name ends in .png, .svg or .pdf, got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    return _save(_partition(federation), out)


def _save(figure: Figure, path: Path, *, also_svg: bool = False) -> Path:
    figure.savefig(path, dpi=144)
    if also_svg:
        figure.savefig(path.with_suffix(".svg"))
    return path


def _partition(federation: Federation) -> Figure:
    config, train = federation.config, federation.dataset.train
    spec = None if config.public is None else parse_public(config.public)
    public = federation.public.rows if federation.public is not None and isinstance(spec, PublicClient) else None
    alpha = f", alpha {config.partition.alpha:g}" if config.partition.alpha else ""
    title = f"{federation.dataset.name}: {config.partition.name}{alpha}, seed {config.seed}"
    return partition_figure(train.labels, federation.shards, train.classes, title=title, public=public)


def _training(record: RunRecord) -> Figure:
    """Losses of clients and server over rounds (as FLESD's Figure 5), and kNN accuracy over bytes."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, accuracy = figure.subplots(1, 2)
    _draw_losses(losses, record.metrics)
    _draw_accuracy(accuracy, record)
    figure.suptitle(f"{record.directory.name}", fontsize=10)
    return figure


def _draw_losses(axes: Axes, rows: list[Row]) -> None:
    by_name: dict[str, dict[int, list[float]]] = {}
    for name in ("loss_first", "loss", "distil_loss"):
        series: dict[int, list[float]] = defaultdict(list)
        for row in rows:
            if row["name"] == name:
                series[row["round"]].append(row["value"])
        by_name[name] = dict(sorted(series.items()))
    styles = {
        "loss_first": ("clients' mean, first local epoch", BLUE, "o", ":"),
        "loss": ("clients' mean, last local epoch", BLUE, "s", "--"),
        "distil_loss": ("server, last distillation epoch", ORANGE, "^", "-"),
    }
    for name, series in by_name.items():
        label, colour, marker, dash = styles[name]
        if series:
            means = [fmean(values) for values in series.values()]
            axes.plot(list(series), means, color=colour, marker=marker, linestyle=dash, label=label)
    axes.set(xlabel="round", ylabel="loss", title="Training")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8)


def _draw_accuracy(axes: Axes, record: RunRecord) -> None:
    summary = summarise(record.directory)
    moved = [point.bytes / 1e6 for point in summary.curve]
    axes.plot(moved, [100 * point.knn for point in summary.curve], color=GREEN, marker="o", label="kNN, every round")
    probe = summary.headline("linear")
    if probe is not None and moved:
        axes.plot(moved[-1:], [100 * probe], color=BLUE, marker="D", linestyle="", label="linear probe, final")
    axes.set(xlabel="MB moved by all clients", ylabel="accuracy (%)", title="What it cost")
    axes.legend(fontsize=8)
