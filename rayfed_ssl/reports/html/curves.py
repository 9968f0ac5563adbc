"""Lines: accuracy over rounds, bytes and time, losses and diagnostics."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl.formats import MeanStd
from rayfed_ssl.reports.figures import draw_losses, loss_series
from rayfed_ssl.reports.html.figure import HEIGHT, MUTED, PAPER, Plot, clean, legend_below, line_style, new_axes
from rayfed_ssl.reports.html.groups import LabeledGroup
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageCell, PageTable
from rayfed_ssl.reports.summary import CurvePoint, by_round

X_LABELS = {"rounds": "round", "bytes": "MB moved by all clients", "time": "seconds of rounds (wall clock)"}
"""What accuracy is drawn over."""


def accuracy_plots(groups: Sequence[LabeledGroup]) -> list[Plot]:
    """Draw accuracy over rounds, over bytes and over time; a figure of a single point is left out."""
    lengths = [len(run.summary.curve) for group in groups for run in group.runs]
    if max(lengths) < 2 and sum(map(bool, lengths)) < 2:
        return []
    first, *others = X_LABELS if max(lengths) > 1 else ("bytes", "time")
    return [_accuracy_plot(groups, first, _accuracy_table(groups))] + [
        _accuracy_plot(groups, x, None, f" of the chart over {first}") for x in others
    ]


def _accuracy_plot(groups: Sequence[LabeledGroup], x: str, table: PageTable | None, which: str = "") -> Plot:
    return Plot(
        f"accuracy-over-{x}",
        f"Accuracy over {x}",
        f"Line chart: accuracy in percent over {X_LABELS[x]}, {len(groups)} series. The numbers are in the table{which}.",
        lambda: _draw_accuracy(groups, x),
        table,
        "Lines: kNN accuracy, mean over encoders and seeds; bands: one standard deviation over seeds. Hollow: linear probe "
        "of the final encoder, last epoch." + " Dotted: kNN before round 1." * bool(_starts(groups)),
    )


def _points(group: LabeledGroup) -> list[tuple[dict[str, float], MeanStd]]:
    """Average the kNN curves of a group round by round: position on each x axis, and accuracy over seeds."""
    rounds: dict[int, list[CurvePoint]] = defaultdict(list)
    for run in group.runs:
        for point in run.summary.curve:
            rounds[point.round].append(point)
    averaged = []
    for round, points in sorted(rounds.items()):
        moved, seconds = (fmean(values) for values in zip(*((p.bytes / 1e6, p.seconds) for p in points), strict=True))
        position = {"rounds": round, "bytes": moved, "time": seconds}
        averaged.append((position, MeanStd.of([point.knn for point in points])))
    return averaged


def _draw_accuracy(groups: Sequence[LabeledGroup], x: str) -> Figure:
    figure, axes = new_axes(height=HEIGHT + 0.19 * max(len(groups) - 2, 0))
    for index, group in enumerate(groups):
        style = line_style(index)
        points = _points(group)
        positions = [position[x] for position, _ in points]
        axes.plot(positions, [100 * knn.mean for _, knn in points], label=clean(group.label), markersize=5, **style)
        if any(knn.std for _, knn in points):
            low, high = ([100 * (knn.mean + sign * (knn.std or 0)) for _, knn in points] for sign in (-1, 1))
            axes.fill_between(positions, low, high, color=style["color"], alpha=0.18, linewidth=0)
        if (probe := group.scores.get("linear")) and points:
            hollow = {"markerfacecolor": PAPER, "markeredgewidth": 1.8, "markersize": 9, "linestyle": ""}
            axes.plot(positions[-1:], [100 * probe.mean], **style | hollow)
    _draw_starts(axes, groups)
    axes.set(xlabel=X_LABELS[x], ylabel="accuracy (%)")
    axes.margins(0.06)
    if x == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set_xlim(left=0)
    legend_below(figure, axes)
    return figure


def _starts(groups: Sequence[LabeledGroup]) -> dict[int, float]:
    """Average kNN before round 1 over the seeds of each group that knows it, by the group's index."""
    known = (
        (index, [start for run in group.runs if (start := run.summary.start("knn")) is not None])
        for index, group in enumerate(groups)
    )
    return {index: fmean(starts) for index, starts in known if starts}


def _draw_starts(axes: Axes, groups: Sequence[LabeledGroup]) -> None:
    """Draw one line where all groups start alike, and otherwise one in the color of each."""
    starts = _starts(groups)
    style: Any = {"linestyle": (0, (1, 2)), "linewidth": 1.2}
    if len({round(start, 6) for start in starts.values()}) == 1:
        random = all(run.summary.config.model.is_random for group in groups for run in group.runs)
        axes.axhline(100 * starts[min(starts)], color=MUTED, label="random start" if random else "start", **style)
        return
    for index, start in starts.items():
        axes.axhline(100 * start, color=line_style(index)["color"], **style)


def _accuracy_table(groups: Sequence[LabeledGroup]) -> PageTable:
    rows = [
        [group.label, *position.values(), PageCell.mean_std(knn)]
        for group in groups
        for position, knn in _points(group)
    ]
    return PageTable.of("kNN accuracy over the run", ["run", "round", "MB", "seconds", "kNN"], rows)


def loss_plot(run: ReportedRun) -> Plot | None:
    """Draw clients' losses dashed or dotted and the server's solid; None where none is on record."""
    series = loss_series(run.record.metrics)
    if not series:
        return None

    def draw() -> Figure:
        figure, axes = new_axes(height=HEIGHT + 0.3)
        draw_losses(axes, series)
        axes.set(xlabel="round", ylabel="loss")
        legend_below(figure, axes)
        return figure

    rounds = sorted({round for line in series for round in line.values})
    rows = [
        [round, *(fmean(line.values[round]) if round in line.values else None for line in series)] for round in rounds
    ]
    return Plot(
        "losses",
        "Losses over rounds",
        f"Line chart: losses over {len(rounds)} rounds; the clients' mean is dashed or dotted, the server's solid.",
        draw,
        PageTable.of("Losses, mean over clients", ["round", *(line.label for line in series)], rows),
        "Dashed: local training, mean over clients, the band from the lowest to the highest client. Solid: the server's.",
    )


TITLES = {
    "diag_effective_rank": "effective rank of features",
    "diag_feature_std": "deviation of normalized features",
    "diag_alignment": "alignment of two views",
    "diag_uniformity": "uniformity on the sphere",
    "diag_update_cosine": "cosine of clients' updates",
    "diag_cka": "linear CKA of clients' encoders",
    "diag_angle": "angle between representations (degrees)",
    "diag_relation_distance": "distance of relation matrices",
}
"""Titles of diagnostics; others are titled by their names."""

RANGES = ("_min", "_max", "_lower", "_upper")
"""Suffixes of the range and the quartiles of a metric that is a mean over clients or pairs."""


def diagnostic_plots(run: ReportedRun) -> list[Plot]:
    """Draw each "diag_" metric over rounds: a line where one participant has it, else mean and range."""
    names = {row["name"] for row in run.record.metrics if row["name"].startswith("diag_")}
    ranges = {name + suffix for name in names for suffix in RANGES}
    return [_diagnostic_plot(run, name, index) for index, name in enumerate(sorted(names - ranges))]


def _diagnostic_plot(run: ReportedRun, name: str, index: int) -> Plot:
    values = by_round(run.record.metrics, name)
    ranges = {suffix: by_round(run.record.metrics, name + suffix) for suffix in RANGES}
    low = [min(ranges["_min"].get(round, numbers)) for round, numbers in values.items()]
    high = [max(ranges["_max"].get(round, numbers)) for round, numbers in values.items()]
    quartiles = {
        round: (fmean(ranges["_lower"][round]), fmean(ranges["_upper"][round]))
        for round in values
        if round in ranges["_lower"] and round in ranges["_upper"]
    }
    title = TITLES.get(name, name.removeprefix("diag_").replace("_", " "))

    def draw() -> Figure:
        figure, axes = new_axes(height=2.6)
        style = line_style(index)
        axes.plot(list(values), [fmean(numbers) for numbers in values.values()], markersize=5, **style)
        if low != high:
            axes.fill_between(list(values), low, high, color=style["color"], alpha=0.18, linewidth=0)
        if quartiles:
            lower, upper = zip(*quartiles.values(), strict=True)
            axes.fill_between(list(quartiles), lower, upper, color=style["color"], alpha=0.25, linewidth=0)
        axes.set(xlabel="round", ylabel=clean(title))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return figure

    columns = ["round", "mean", "minimum", "maximum"]
    rows: list[list[object]] = [
        [round, fmean(numbers), *ends] for (round, numbers), *ends in zip(values.items(), low, high, strict=True)
    ]
    if quartiles:
        columns += ["lower quartile", "upper quartile"]
        rows = [[*row, *quartiles.get(round, (None, None))] for round, row in zip(values, rows, strict=True)]
    if not ranges["_min"]:  # else the record holds a mean, and not of how many numbers
        columns += ["standard deviation", "values"]
        rows = [[*row, pstdev(numbers), len(numbers)] for row, numbers in zip(rows, values.values(), strict=True)]
    return Plot(
        name,
        title[0].upper() + title[1:],
        f"Line chart: {title} over {len(values)} rounds. The numbers are in the table below.",
        draw,
        PageTable.of(f"{name} over rounds", columns, rows),
        "Line: mean over encoders or pairs; band: from the lowest to the highest"
        + (", darker between the mean quartiles." if quartiles else "."),
    )
