"""Lines: accuracy over rounds, bytes and time, and the losses (FLESD's Figure 5)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.reports.figures import BLUE, ORANGE
from rayfed_ssl.reports.html.figure import DASHES, PAPER, SERIES, Plot, clean
from rayfed_ssl.reports.html.groups import Group, spread
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageCell, PageTable
from rayfed_ssl.reports.summary import by_round

WIDTH, HEIGHT = 4.2, 3.1
"""Inches of a figure: at the width of a phone its letters can still be read."""

Over = Literal["rounds", "bytes", "time"]

_AXES = {"rounds": "round", "bytes": "MB moved by all clients", "time": "seconds of rounds (wall clock)"}


@dataclass(frozen=True)
class Moment:
    """A run after a round: where it is on each axis, and its kNN accuracy in [0, 1]."""

    round: int
    megabytes: float
    seconds: float
    knn: float

    def at(self, over: Over) -> float:
        """Tell the place on an axis."""
        return {"rounds": float(self.round), "bytes": self.megabytes, "time": self.seconds}[over]


def moments(run: ReportedRun) -> list[Moment]:
    """Read a run's kNN curve, with the wall time of the rounds so far."""
    seconds = {row["round"]: row["value"] for row in run.record.metrics if _is(row, "run", "seconds")}
    return [
        Moment(
            point.round, point.bytes / 1e6, sum(s for round, s in seconds.items() if round <= point.round), point.knn
        )
        for point in run.summary.curve
    ]


def _is(row: Row, participant: str, name: str) -> bool:
    return bool(row["participant"] == participant and row["name"] == name)


def new_axes(*, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Begin a figure of one panel."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend under the axes, where labels of any length have room."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = 1 if max(map(len, labels)) > 24 or len(labels) < 2 else 2
        figure.legend(handles, labels, loc="outside lower left", ncols=columns)


def style(index: int) -> dict[str, Any]:
    """Choose color, marker and dash of a series; together they never repeat."""
    color, marker = SERIES[index % len(SERIES)]
    return {"color": color, "marker": marker, "linestyle": DASHES[index // len(SERIES) % len(DASHES)]}


def accuracy_plots(groups: Sequence[Group]) -> list[Plot]:
    """Draw accuracy over rounds, over bytes and over time; what would show a single point is left out."""
    lengths = [len(moments(run)) for group in groups for run in group.runs]
    if max(lengths) < 2 and sum(map(bool, lengths)) < 2:
        return []
    table = _curve_table(groups)
    overs: tuple[Over, ...] = ("rounds", "bytes", "time") if max(lengths) > 1 else ("bytes", "time")
    plots = []
    for over in overs:
        alt = (
            f"Line chart: accuracy in percent over {_AXES[over]}, {len(groups)} series. The numbers are in the table of the "
            f"chart over {overs[0]}."
        )
        plots.append(
            Plot(
                f"accuracy-over-{over}",
                f"Accuracy over {over}",
                alt,
                lambda over=over: _accuracy(groups, over),  # type: ignore[misc]
                table if over == overs[0] else None,
                "Lines: kNN accuracy, mean over encoders and seeds; bands: one standard deviation over seeds. Hollow: "
                "linear probe of the final encoder, last epoch.",
            )
        )
    return plots


def _accuracy(groups: Sequence[Group], over: Over) -> Figure:
    figure, axes = new_axes(height=HEIGHT + 0.19 * max(len(groups) - 2, 0))
    for index, group in enumerate(groups):
        line = style(index)
        points = list(_over_seeds([moments(run) for run in group.runs], over))
        places, means, deviations = zip(*points, strict=True) if points else ((), (), ())
        axes.plot(places, means, label=clean(group.label), markersize=5, **line)
        if any(deviations):
            low, high = ([m + sign * d for m, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
            axes.fill_between(places, low, high, color=line["color"], alpha=0.18, linewidth=0)
        probes = group.scores("linear")
        if probes and points:
            axes.plot(
                places[-1:],
                [100 * fmean(probes)],
                marker=line["marker"],
                markersize=9,
                markerfacecolor=PAPER,
                markeredgecolor=line["color"],
                markeredgewidth=1.8,
                linestyle="",
            )
    axes.set(xlabel=_AXES[over], ylabel="accuracy (%)")
    if over == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(0.06)
    if over != "rounds":
        axes.set_xlim(left=0)
    legend_below(figure, axes)
    return figure


def _over_seeds(curves: Iterable[Sequence[Moment]], over: Over) -> Iterable[tuple[float, float, float]]:
    """Average curves of several seeds round by round: place, accuracy and its deviation in percent."""
    moments: dict[int, list[Moment]] = defaultdict(list)
    for curve in curves:
        for moment in curve:
            moments[moment.round].append(moment)
    for _, found in sorted(moments.items()):
        values = [100 * moment.knn for moment in found]
        yield fmean(moment.at(over) for moment in found), fmean(values), stdev(values) if len(values) > 1 else 0.0


def _curve_table(groups: Sequence[Group]) -> PageTable:
    rows = []
    for group in groups:
        found: dict[int, list[Moment]] = defaultdict(list)
        for run in group.runs:
            for moment in moments(run):
                found[moment.round].append(moment)
        for round, at in sorted(found.items()):
            rows.append(
                [
                    PageCell(group.label),
                    round,
                    fmean(moment.megabytes for moment in at),
                    fmean(moment.seconds for moment in at),
                    spread([moment.knn for moment in at]),
                ]
            )
    return PageTable.of("kNN accuracy over the run", ["run", "round", "MB", "seconds", "kNN"], rows)


_LOSSES = {
    "loss_first": ("clients, first local epoch", BLUE, "o", ":"),
    "loss": ("clients, last local epoch", BLUE, "s", "--"),
    "distil_loss_first": ("server, first distillation epoch", ORANGE, "v", "-."),
    "distil_loss": ("server, last distillation epoch", ORANGE, "^", "-"),
}


def loss_plot(run: ReportedRun) -> Plot | None:
    """Draw local losses dashed and the server's solid, as FLESD's Figure 5 does; None where none is on record."""
    series = {name: by_round(run.record.metrics, name) for name in _LOSSES}
    series = {name: found for name, found in series.items() if found}
    if not series:
        return None

    def draw() -> Figure:
        figure, axes = new_axes(height=HEIGHT + 0.3)
        for name, found in series.items():
            label, color, marker, dash = _LOSSES[name]
            rounds, means = list(found), [fmean(values) for values in found.values()]
            axes.plot(rounds, means, color=color, marker=marker, linestyle=dash, markersize=4, label=label)
            if len(next(iter(found.values()))) > 1 and name == "loss":
                low, high = [min(v) for v in found.values()], [max(v) for v in found.values()]
                axes.fill_between(rounds, low, high, color=color, alpha=0.15, linewidth=0)
        axes.set(xlabel="round", ylabel="loss")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(figure, axes)
        return figure

    rounds = sorted({round for found in series.values() for round in found})
    columns = ["round", *(_LOSSES[name][0] for name in series)]
    rows = [
        [
            round,
            *(fmean(found[round]) if round in found else None for found in series.values()),
        ]
        for round in rounds
    ]
    return Plot(
        "losses",
        "Losses over rounds",
        f"Line chart: losses over {len(rounds)} rounds; the clients' mean is dashed or dotted, the server's solid.",
        draw,
        PageTable.of("Losses, mean over clients", columns, rows),
        "Dashed: local training, mean over clients, the band from the lowest to the highest client. Solid: the server's.",
    )


_DIAGNOSTICS = {
    "diag_effective_rank": "effective rank of features",
    "diag_feature_std": "deviation of normalized features",
    "diag_alignment": "alignment of two views",
    "diag_uniformity": "uniformity on the sphere",
    "diag_update_cosine": "cosine of clients' updates",
    "diag_cka": "linear CKA of clients' encoders",
    "diag_angle": "angle between representations (degrees)",
    "diag_relation_distance": "distance of relation matrices",
}


def diagnostic_plots(run: ReportedRun) -> list[Plot]:
    """Draw each "diag_" metric over rounds: a line where one participant has it, else mean and range."""
    names = {row["name"] for row in run.record.metrics if row["name"].startswith("diag_")}
    folded = {name + part for name in names for part in _PARTS} & names
    return [_diagnostic_plot(run, name, index) for index, name in enumerate(sorted(names - folded))]


_PARTS = ("_min", "_max", "_lower", "_upper")
"""What the server adds to the name of a metric that it has averaged over clients or pairs: range and quartiles."""


def _diagnostic_plot(run: ReportedRun, name: str, index: int) -> Plot:
    found = by_round(run.record.metrics, name)
    parts = {part: by_round(run.record.metrics, name + part) for part in _PARTS}
    low = [min(parts["_min"].get(round, values)) for round, values in found.items()]
    high = [max(parts["_max"].get(round, values)) for round, values in found.items()]
    quartiles = [round for round in found if round in parts["_lower"] and round in parts["_upper"]]
    lower, upper = ({round: fmean(parts[part][round]) for round in quartiles} for part in ("_lower", "_upper"))
    title = _DIAGNOSTICS.get(name, name.removeprefix("diag_").replace("_", " "))

    def draw() -> Figure:
        figure, axes = new_axes(height=2.6)
        means = [fmean(values) for values in found.values()]
        line = style(index)
        axes.plot(list(found), means, markersize=5, **line)
        if low != high:
            axes.fill_between(list(found), low, high, color=line["color"], alpha=0.18, linewidth=0)
        if quartiles:
            between = list(lower.values()), list(upper.values())
            axes.fill_between(quartiles, *between, color=line["color"], alpha=0.25, linewidth=0)
        axes.set(xlabel="round", ylabel=clean(title))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return figure

    columns = ["round", "mean", "minimum", "maximum"]
    rows: list[list[object]] = [
        [round, fmean(v), least, most] for (round, v), least, most in zip(found.items(), low, high, strict=True)
    ]
    if quartiles:
        columns += ["lower quartile", "upper quartile"]
        rows = [[*row, *(q.get(round) for q in (lower, upper))] for round, row in zip(found, rows, strict=True)]
    if not parts["_min"]:  # else what is on record is a mean already, and how many it is of is not
        columns += ["standard deviation", "values"]
        rows = [[*row, pstdev(v), len(v)] for row, v in zip(rows, found.values(), strict=True)]
    return Plot(
        name,
        title[0].upper() + title[1:],
        f"Line chart: {title} over {len(found)} rounds. The numbers are in the table below.",
        draw,
        PageTable.of(f"{name} over rounds", columns, rows),
        "Line: mean over encoders or pairs; band: from the lowest to the highest"
        + (", darker between the mean quartiles." if quartiles else "."),
    )
