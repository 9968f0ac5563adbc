"""Figures from records alone: accuracy, losses, diagnostics, bytes and time."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl import formats
from rayfed_ssl.analysis.diagnosis import Diagnostics, PairMatrix
from rayfed_ssl.formats import MeanStd
from rayfed_ssl.privacy.robust import DISTANCE, WEIGHT
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.reports.clock_figure import schedule_figure, staleness_of, tasks_of
from rayfed_ssl.reports.figures import Line, draw_lines, loss_lines
from rayfed_ssl.reports.html.charts import Plot, bar_plot, heatmap, line_plot, pictures_plot
from rayfed_ssl.reports.html.page import score_title
from rayfed_ssl.reports.seed_groups import SeedGroup
from rayfed_ssl.reports.style import HEIGHT, MUTED, PAPER, legend_below, line_style, new_axes
from rayfed_ssl.reports.summary import CurvePoint, Summary, by_round
from rayfed_ssl.reports.table import Cell, Table

X_LABELS = {
    "rounds": "round",
    "bytes": "MB moved by all clients",
    "time": "seconds of rounds (wall clock)",
    "virtual-time": "virtual hours",
}
"""What accuracy is drawn over; virtual time where all runs have it."""

X_HEADS = {"rounds": "round", "bytes": "MB", "time": "s", "virtual-time": "virtual h"}
"""Heads of these columns in the table."""

Curve = list[tuple[dict[str, float], MeanStd, MeanStd | None]]
"""The position on each x axis, and over seeds kNN and, where the linear probe ran, its accuracy."""


def accuracy_plots(groups: Sequence[SeedGroup]) -> list[Plot]:
    """Draw accuracy over rounds, over bytes and over time; a figure of a single point is left out."""
    lengths = [len(run.curve) for group in groups for run in group.runs]
    if max(lengths) < 2 and sum(map(bool, lengths)) < 2:
        return []
    curves = [(group, _curve(group.runs)) for group in groups]
    axes = [x for x in X_LABELS if all(x in at for _, curve in curves for at, _, _ in curve)]
    rows = [
        [group.label, *(at[x] for x in axes), Cell.of(knn, "percent"), Cell.of(linear, "percent")]
        for group, curve in curves
        for at, knn, linear in curve
    ]
    heads = ["run", *(X_HEADS[x] for x in axes), "kNN", "linear probe"]
    note = (
        "Lines: kNN accuracy, mean over encoders and seeds; bands: one standard deviation over seeds. Hollow: linear probe, "
        "last epoch. Dotted: kNN before round 1."
    )
    plots: list[Plot] = []
    for x in axes if max(lengths) > 1 else axes[1:]:
        table = None if plots else Table.of("Accuracy over the run", heads, rows)
        alt = f"Line chart: accuracy in percent over {X_LABELS[x]}, {len(groups)} series. The first has a table."
        title = f"Accuracy over {x.replace('-', ' ')}"
        plots.append(Plot(f"accuracy-over-{x}", title, alt, _draw_accuracy(curves, x), table, note))
    return plots


def _curve(runs: Iterable[Summary]) -> Curve:
    """Average the curves of runs round by round."""
    rounds: dict[int, list[CurvePoint]] = defaultdict(list)
    for run in runs:
        for point in run.curve:
            rounds[point.round].append(point)
    curve = []
    for round, points in sorted(rounds.items()):
        at = {"rounds": round, "bytes": fmean(p.bytes for p in points) / 1e6, "time": fmean(p.seconds for p in points)}
        virtual = [point.virtual for point in points if point.virtual is not None]
        if len(virtual) == len(points):
            at["virtual-time"] = fmean(virtual) / 3600
        linear = [point.linear for point in points if point.linear is not None]
        probed = MeanStd.of(linear) if len(linear) == len(points) else None
        curve.append((at, MeanStd.of([point.knn for point in points]), probed))
    return curve


def _draw_accuracy(curves: Sequence[tuple[SeedGroup, Curve]], x: str) -> Figure:
    figure, axes = new_axes(height=HEIGHT + 0.19 * max(len(curves) - 2, 0))
    lines = []
    for group, curve in curves:
        band = {at[x]: (100 * (knn.mean - knn.std), 100 * (knn.mean + knn.std)) for at, knn, _ in curve if knn.std}
        lines.append(Line(group.label, {at[x]: 100 * knn.mean for at, knn, _ in curve}, (band,)))
    draw_lines(axes, lines)
    hollow = {"markerfacecolor": PAPER, "markeredgewidth": 1.8, "markersize": 9, "linestyle": ""}
    starts = {}
    for index, (group, curve) in enumerate(curves):
        if probed := {at[x]: 100 * linear.mean for at, _, linear in curve if linear}:
            axes.plot(list(probed), list(probed.values()), **line_style(index) | hollow)
        if knns := [start for run in group.runs if (start := run.start("knn")) is not None]:
            starts[index] = 100 * fmean(knns)
    alike = len({round(start, 4) for start in starts.values()}) == 1  # then one line is enough
    random = all(run.config.model.is_random for group, _ in curves for run in group.runs)
    for index, start in list(starts.items())[: 1 if alike else None]:
        color, label = (MUTED, "random start" if random else "start") if alike else (line_style(index)["color"], None)
        axes.axhline(start, color=color, linestyle=(0, (1, 2)), linewidth=1.2, label=label)
    axes.set(xlabel=X_LABELS[x], ylabel="accuracy (%)")
    axes.margins(0.06)
    if x == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    else:
        axes.set_xlim(left=0)
    legend_below(figure, axes)
    return figure


def loss_plot(rows: Sequence[Row]) -> Plot | None:
    """Draw clients' losses dashed or dotted and the server's solid; None where none is on record."""
    note = "Dashed: local training, mean over clients, the band from the lowest to the highest client. Solid: the server's."
    lines = loss_lines(rows)
    return line_plot("losses", "Losses over rounds", "loss", lines, note) if lines else None


RANGES = ("_min", "_max", "_lower", "_upper")
"""Suffixes of the range and the quartiles of a metric that is a mean over clients or pairs."""


def diagnostic_plots(rows: Sequence[Row]) -> list[Plot]:
    """Draw each "diag_" metric over rounds, with its range and quartiles as bands."""
    names = {row["name"] for row in rows if row["name"].startswith("diag_")}
    note = "Line: mean over encoders or pairs; band: from the lowest to the highest, darker between the mean quartiles."
    plots = []
    for index, name in enumerate(sorted(names - {name + suffix for name in names for suffix in RANGES})):
        values = by_round(rows, name)
        low, high, lower, upper = (by_round(rows, name + suffix) for suffix in RANGES)
        whole = {round: (min(low.get(round, v)), max(high.get(round, v))) for round, v in values.items()}
        quartiles = {round: (fmean(lower[round]), fmean(upper[round])) for round in values if round in lower}
        title = name.removeprefix("diag_").replace("_", " ")
        means: dict[float, float] = {round: fmean(v) for round, v in values.items()}
        line = Line("mean", means, (whole, quartiles) if quartiles else (whole,), line_style(index))
        plots.append(line_plot(name, title[0].upper() + title[1:], title, [line], note))
    return plots


def epsilon_plot(rows: Sequence[Row]) -> Plot:
    """Draw what uploads have cost by the end of each round."""
    spent = {round: fmean(values) for round, values in by_round(rows, "epsilon", "server").items()}
    return line_plot("epsilon", "Epsilon over rounds", "epsilon so far", [Line("epsilon", spent)])


def schedule_plots(events: pa.Table) -> list[Plot]:
    """Draw what clients do over virtual time, and how stale the uploads are that server steps use."""
    title, tasks = "Clients over virtual time", tasks_of(events)
    alt = f"Gantt chart: download, training and upload of {len(tasks)} tasks. Their times are in schedule.parquet."
    note = (
        "The first tasks of the first clients; a vertical line is a server step. Pale: no server step uses the upload."
    )
    counts = staleness_of(events)
    series = {"uploads": list(counts.values())}
    stale = "Server steps between the state that a client starts from and the step that uses its upload."
    plots = [Plot("schedule", title, alt, schedule_figure(events, tasks, ""), None, note)]
    if len(counts) > 1:
        plots.append(bar_plot("staleness", "Uploads by staleness", "staleness", list(counts), series, "", stale))
    return plots


def client_plot(summary: Summary) -> Plot | None:
    """Draw the scores of each client's own encoder; None where the method has no such encoders."""
    scores = {name: metrics for name, metrics in summary.scores.items() if name.startswith("client-")}
    names = list(dict.fromkeys(name for metrics in scores.values() for name in metrics))
    names = [name for name in ("linear", "knn") if name in names] or names[:2]
    if not names:
        return None
    series = {score_title(name): [metrics.get(name) for metrics in scores.values()] for name in names}
    means = [
        f"{title} {formats.percent(fmean(v for v in column if v is not None))}" for title, column in series.items()
    ]
    labels = [f"{name} ({summary.architecture(name)})" for name in scores]
    note = f"Mean over clients: {', '.join(means)}."
    return bar_plot("clients", "Accuracy by client", "client", labels, series, "percent", note)


def reconstructions_plot(attack: str, pictures: tuple[int, np.ndarray, np.ndarray]) -> Plot:
    """Draw originals above reconstructions, of a client, uint8 [M, C, H, W] each."""
    client, originals, others = pictures
    what = f"pictures of client {client}, and below each what {attack} made of the upload."
    rows = {"original": originals, "attack": others}
    return pictures_plot(f"audit-{attack}", f"What {attack} reconstructs", what, rows, f"Client {client}.")


def ledger_plot(summary: Summary) -> Plot:
    """Draw bytes by kind of content and direction."""
    moved = summary.bytes_by_kind
    kinds = sorted(
        {kind for _, kind in moved}, key=lambda kind: -sum(moved.get((way, kind), 0) for way in ("up", "down"))
    )
    series = {way: [moved.get((way, kind), 0) for kind in kinds] for way in ("up", "down")}
    note = "Up: sent by all clients; down: received by them. Sizes are uncompressed and without framing; 1 MB is 10⁶ bytes."
    return bar_plot("ledger", "Bytes by kind and direction", "kind", kinds, series, "bytes", note)


def traffic_plot(groups: Sequence[SeedGroup]) -> Plot:
    """Draw bytes up and down of each group of runs, a client's share."""
    series = {
        way: [fmean(getattr(run, f"bytes_{way}") / max(run.num_clients, 1) for run in group.runs) for group in groups]
        for way in ("up", "down")
    }
    labels = [group.label for group in groups]
    note = "Mean over clients and seeds, in the whole run."
    return bar_plot("traffic", "What a client sends and receives", "run", labels, series, "bytes", note)


def rule_plot(rows: Sequence[Row], notes: Sequence[str]) -> Plot | None:
    """Draw what a robust rule made of each client by round: its weight, or its distance under a rule by coordinate."""
    weighs = any(row["name"].startswith(WEIGHT) for row in rows)
    prefix, what = (WEIGHT, "weight in the result") if weighs else (DISTANCE, "distance from the result")
    values = {
        (int(row["name"].removeprefix(prefix)), row["round"]): row["value"]
        for row in rows
        if row["name"].startswith(prefix)
    }
    if not values:
        return None
    clients, rounds = (sorted(set(side)) for side in zip(*values, strict=True))
    columns = [[values.get((client, round)) for client in clients] for round in rounds]
    figure, axes = new_axes(height=min(1.6 + 0.22 * len(clients), 9))
    cells = np.array([[np.nan if v is None else v for v in column] for column in columns], dtype=float).T
    image = axes.imshow(cells, cmap="cividis", vmin=0, aspect="auto", interpolation="none")
    figure.colorbar(image, ax=axes, label=what)
    axes.set_yticks(range(0, len(clients), max(len(clients) // 20, 1)), clients[:: max(len(clients) // 20, 1)])
    axes.set_xticks(range(0, len(rounds), max(len(rounds) // 10, 1)), rounds[:: max(len(rounds) // 10, 1)])
    axes.set(xlabel="round", ylabel="client")
    axes.grid(visible=False)
    title, heads = "What the rule makes of each client", ["client", *(f"round {round}" for round in rounds)]
    alt = f"Heatmap: {what} of {len(clients)} clients in {len(rounds)} rounds. The numbers are in the table below."
    hostile = next((f"{note[:1].upper()}{note[1:]}. " for note in notes if note.startswith("hostile clients")), "")
    table = Table.of(title, heads, zip(map(str, clients), *columns, strict=True))
    return Plot("robust", title, alt, figure, table, f"{hostile}An empty cell: the client took no part.")


def timing_plot(rows: Sequence[Row]) -> Plot | None:
    """Draw seconds of clients, server and evaluation over rounds; None before the first round."""
    phases: Mapping[str, dict[float, float]] = {
        phase: defaultdict(float) for phase in ("clients, summed", "server", "evaluation", "wall clock of the round")
    }
    names = {"server": "server", "run": "wall clock of the round"}
    for row in rows:
        if row["name"] == "evaluation_seconds":
            phases["evaluation"][row["round"]] += row["value"]
        elif row["name"] == "seconds":
            phases[names.get(row["participant"], "clients, summed")][row["round"]] += row["value"]
    if not phases["wall clock of the round"]:
        return None
    totals = ", ".join(f"{phase} {formats.duration(sum(seconds.values()))}" for phase, seconds in phases.items())
    note = f"Totals: {totals}. Clients may have run side by side; evaluation is not part of a round's wall clock."
    lines = [Line(phase, dict(sorted(seconds.items()))) for phase, seconds in phases.items() if seconds]
    return line_plot("timing", "Time by phase", "seconds", lines, note)


def matrix_plot(name: str, matrix: PairMatrix) -> Plot:
    """Draw a matrix of pairs of encoders (CKA, angles, distances of R as in FedFoA's Figure 6)."""
    values = np.array([[np.nan if v is None else v for v in row] for row in matrix.values], dtype=float)
    encoders, (low, high) = matrix.encoders, matrix.range
    label = f"{matrix.title} ({matrix.unit})" if matrix.unit else matrix.title
    ticks = [(float(i), encoders[i]) for i in range(0, len(encoders), max(len(encoders) // 20, 1))]
    rows = [[encoder, *row] for encoder, row in zip(encoders, matrix.values, strict=True)]
    return Plot(
        f"matrix-{name}",
        f"{matrix.title[0].upper()}{matrix.title[1:]} of encoders",
        f"Heatmap: {label} of each pair of {len(encoders)} encoders. The numbers are in the table below.",
        heatmap(values, label=label, low=low, high=high, ticks=ticks),
        Table.of(label, ["encoder", *encoders], rows),
    )


def negatives_plot(diagnostics: Diagnostics) -> Plot | None:
    """Draw the share of false negatives of each client (FCL, Eq. 4-5); None where it was not measured."""
    shares = diagnostics.false_negatives
    if shares is None:
        return None
    series = {"own negatives": shares.local, "own and others' negatives (FCL, Eq. 4)": shares.fused}
    series |= {} if shares.remote is None else {"others' negatives (FCL, Eq. 5)": shares.remote}
    clients = [f"client {client}" for client in shares.clients]
    note = "The share of negatives of the sample's own class, from the labels of the partition, which no client sees."
    return bar_plot("false-negatives", "False negatives by client", "client", clients, series, "percent", note)
