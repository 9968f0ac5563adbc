"""Figures of a run, as PNG and SVG files: who held which classes, losses over rounds, accuracy over bytes.

Colors are Okabe and Ito's, which color-blind readers tell apart; lines differ in marker and dash as well.
"""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl.data.public_data import PublicClient, parse_public
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.partition_figure import partition_figure
from rayfed_ssl.reports.summary import Summary, by_round, summarize

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"

METHOD_STYLES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), ("#CC79A7", "D"), ("#56B4E9", "v"), ("#000000", "P"))


def draw_run(record: RunRecord) -> list[Path]:
    """Draw all figures of a run into its `figures` directory; returns the PNG files."""
    folder = record.directory / "figures"
    folder.mkdir(exist_ok=True)
    figures = {"partition": _partition(Federation.open(record.config())), "training": _training(record)}
    return [_save(figure, folder / f"{name}.png", also_svg=True) for name, figure in figures.items()]


def draw_partition(federation: Federation, out: Path) -> Path:
    """Draw which client holds how many samples of which class.

    Raises:
        ConfigError: The file's ending is none that can be written.
    """
    return _save(_partition(federation), _drawable(out))


def draw_comparison(summaries: Sequence[Summary], out: Path) -> Path:
    """Draw accuracy over bytes, a point a run, a color and a marker a method.

    Raises:
        ConfigError: No run was scored, or the file's ending is none that can be written.
    """
    scored = [(summary, score) for summary in summaries if (score := summary.headline("linear")) is not None]
    if not scored:
        raise ConfigError("none of these runs has a linear probe's score: let one come to its end")
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    styles = dict(zip(sorted({summary.name for summary, _ in scored}), cycle(METHOD_STYLES), strict=False))
    for name, (color, marker) in styles.items():
        own = [(s.bytes_up / s.num_clients / 1e6, 100 * score) for s, score in scored if s.name == name]
        axes.plot(*zip(*own, strict=True), color=color, marker=marker, linestyle="", markersize=8, label=name)
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set(xlabel="MB that a client sends in all", ylabel="linear probe (%)")
    axes.set_xlim(left=-0.02)
    axes.grid(alpha=0.3)
    axes.legend(title="method", loc="center left", bbox_to_anchor=(1, 0.5))
    return _save(figure, _drawable(out))


def _drawable(out: Path) -> Path:
    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"a picture's name ends in .png, .svg or .pdf, got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    return out


def _save(figure: Figure, path: Path, *, also_svg: bool = False) -> Path:
    figure.savefig(path, dpi=144)
    if also_svg:
        figure.savefig(path.with_suffix(".svg"))
    return path


def _partition(federation: Federation) -> Figure:
    config, train = federation.config, federation.dataset.train
    spec = None if config.public is None else parse_public(config.public)
    public = federation.public.rows if federation.public is not None and isinstance(spec, PublicClient) else None
    alpha = f", alpha {config.partition.alpha:g}" if config.partition.name == "dirichlet" else ""
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
    styles = {
        "loss_first": ("clients' mean, first local epoch", BLUE, "o", ":"),
        "loss": ("clients' mean, last local epoch", BLUE, "s", "--"),
        "distil_loss": ("server, last distillation epoch", ORANGE, "^", "-"),
    }
    for name, (label, color, marker, dash) in styles.items():
        if series := by_round(rows, name):
            means = [fmean(values) for values in series.values()]
            axes.plot(list(series), means, color=color, marker=marker, linestyle=dash, label=label)
    axes.set(xlabel="round", ylabel="loss", title="Training")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8)


def _draw_accuracy(axes: Axes, record: RunRecord) -> None:
    summary = summarize(record)
    moved = [point.bytes / 1e6 for point in summary.curve]
    axes.plot(moved, [100 * point.knn for point in summary.curve], color=GREEN, marker="o", label="kNN, every round")
    probe = summary.headline("linear")
    if probe is not None and moved:
        axes.plot(moved[-1:], [100 * probe], color=BLUE, marker="D", linestyle="", label="linear probe, final")
    axes.set(xlabel="MB moved by all clients", ylabel="accuracy (%)", title="What it cost")
    axes.legend(fontsize=8)
