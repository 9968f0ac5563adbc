"""Bars: accuracy by client, bytes by kind and direction, time by phase."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl import formats
from rayfed_ssl.reports.figures import BLUE, GREEN, ORANGE
from rayfed_ssl.reports.html.figure import AMBER, INK, PAPER, PINK, SKY, Plot, clean, legend_below, new_axes
from rayfed_ssl.reports.html.groups import LabeledGroup
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageCell, PageTable, score_title
from rayfed_ssl.reports.summary import by_round

FILLS = ((BLUE, ""), (ORANGE, "////"), (GREEN, ".."), (SKY, "xx"), (PINK, "\\\\\\\\"), (AMBER, "++"))
"""Color and hatch of each series of bars."""


def grouped_bars(axes: Axes, labels: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> None:
    """Draw horizontal bars, those of all series beside each other at each label; None has no bar."""
    thickness = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        shift = (index - (len(series) - 1) / 2) * thickness
        bars = {row + shift: value for row, value in enumerate(values) if value is not None}
        color, hatch = FILLS[index]
        style: dict[str, Any] = {"color": color, "hatch": hatch, "edgecolor": PAPER, "label": name}
        axes.barh(list(bars), list(bars.values()), thickness, **style)
    axes.set_yticks(range(len(labels)), [clean(label) for label in labels])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def client_plot(run: ReportedRun) -> Plot | None:
    """Draw the scores of each client's own encoder; None where the method has no such encoders."""
    scores = {name: metrics for name, metrics in run.summary.scores.items() if name.startswith("client-")}
    names = [name for name in ("linear", "knn") if any(name in metrics for metrics in scores.values())]
    names = names or list(dict.fromkeys(name for metrics in scores.values() for name in metrics))[:2]
    if not names:
        return None
    values = {name: [metrics.get(name) for metrics in scores.values()] for name in names}

    def draw() -> Figure:
        figure, axes = new_axes(height=min(1.4 + 0.36 * len(scores), 9))
        percent = {score_title(name): [v if v is None else 100 * v for v in column] for name, column in values.items()}
        grouped_bars(axes, [f"{name} ({run.summary.architecture(name)})" for name in scores], percent)
        axes.set(xlabel="accuracy (%)")
        legend_below(figure, axes)
        return figure

    rows = [[client, *map(PageCell.percent, row)] for client, *row in zip(scores, *values.values(), strict=True)]
    means = ", ".join(
        f"{score_title(name)} {formats.percent(fmean(v for v in column if v is not None))}"
        for name, column in values.items()
    )
    return Plot(
        "clients",
        "Accuracy by client",
        f"Bar chart: final accuracy of each of {len(scores)} clients' encoders.",
        draw,
        PageTable.of("Accuracy by client", ["client", *map(score_title, names)], rows),
        f"Mean over clients: {means}.",
    )


def ledger_plot(run: ReportedRun) -> Plot:
    """Draw bytes by kind of content and direction."""
    moved = run.summary.bytes_by_kind
    kinds = {kind: (moved.get(("up", kind), 0), moved.get(("down", kind), 0)) for _, kind in sorted(moved)}
    by_field: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in run.record.ledger:
        by_field[row["direction"], row["kind"], row["field"]] += row["bytes"]
    rows = [
        [*key, PageCell.size(total), PageCell.size(total / max(run.summary.num_clients, 1))]
        for key, total in sorted(by_field.items())
    ]
    return Plot(
        "ledger",
        "Bytes by kind and direction",
        "Bar chart: megabytes that crossed clients' boundaries, by kind of content, up and down.",
        lambda: _draw_bytes(dict(sorted(kinds.items(), key=lambda item: -sum(item[1])))),
        PageTable.of(
            "Bytes of the whole run", ["direction", "kind", "field", "all clients", "a client on average"], rows
        ),
        "Up: sent by clients; down: received by them. Sizes are uncompressed and without framing; 1 MB is 10⁶ bytes.",
    )


def traffic_plot(groups: Sequence[LabeledGroup]) -> Plot:
    """Draw bytes up and down of each group of runs, a client's share."""
    shares = {
        group.label: (
            fmean(run.summary.bytes_up / max(run.summary.num_clients, 1) for run in group.runs),
            fmean(run.summary.bytes_down / max(run.summary.num_clients, 1) for run in group.runs),
        )
        for group in groups
    }
    rows = [[label, *map(PageCell.size, sizes)] for label, sizes in shares.items()]
    return Plot(
        "traffic",
        "What a client sends and receives",
        "Bar chart: megabytes that a client sends and receives in the whole run, by run.",
        lambda: _draw_bytes(shares),
        PageTable.of("Bytes of a client, mean over clients and seeds", ["run", "up", "down"], rows),
    )


def _draw_bytes(moved: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw bytes up and down, each with its number."""
    figure, axes = new_axes(height=1.5 + 0.5 * len(moved))
    megabytes = {name: [sizes[i] / 1e6 for sizes in moved.values()] for i, name in enumerate(("up", "down"))}
    grouped_bars(axes, list(moved), megabytes)
    for bars, values in zip(axes.containers, megabytes.values(), strict=True):
        axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3, color=INK, fontsize=8)  # type: ignore[arg-type]
    axes.set(xlabel="MB")
    axes.margins(x=0.14)
    legend_below(figure, axes)
    return figure


PHASES = ("clients", "server", "evaluation")


def seconds_by_phase(run: ReportedRun) -> dict[str, dict[int, float]]:
    """Sum compute seconds by phase and round; clients' steps may have run side by side, so their sum is not a time."""
    phases: dict[str, dict[int, float]] = {phase: defaultdict(float) for phase in PHASES}
    for row in run.record.metrics:
        if row["name"] == "evaluation_seconds":
            phases["evaluation"][row["round"]] += row["value"]
        elif row["name"] == "seconds" and row["participant"] != "run":
            phases["server" if row["participant"] == "server" else "clients"][row["round"]] += row["value"]
    return phases


def timing_plot(run: ReportedRun) -> Plot | None:
    """Draw seconds by phase, a bar a round; None before the first round."""
    phases = seconds_by_phase(run)
    rounds = sorted({round for seconds in phases.values() for round in seconds})
    if not rounds:
        return None
    wall = {round: sum(values) for round, values in by_round(run.record.metrics, "seconds", "run").items()}

    def draw() -> Figure:
        figure, axes = new_axes()
        below = [0.0] * len(rounds)
        for (color, hatch), phase in zip(FILLS, PHASES, strict=False):
            values = [phases[phase].get(round, 0.0) for round in rounds]
            axes.bar(rounds, values, 0.8, below, color=color, hatch=hatch, edgecolor=PAPER, label=phase)
            below = [low + value for low, value in zip(below, values, strict=True)]
        dashes: dict[str, Any] = {"color": INK, "marker": "_", "linestyle": "", "markersize": 12}
        axes.plot(list(wall), list(wall.values()), label="wall clock", **dashes)
        axes.set(xlabel="round", ylabel="seconds")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(visible=False, axis="x")
        legend_below(figure, axes)
        return figure

    rows = [[round, *(phases[phase].get(round, 0.0) for phase in PHASES), wall.get(round)] for round in rounds]
    totals = ", ".join(f"{phase} {formats.duration(sum(phases[phase].values()))}" for phase in PHASES)
    return Plot(
        "timing",
        "Time by phase",
        f"Stacked bar chart: seconds of clients, server and evaluation in each of {len(rounds)} rounds.",
        draw,
        PageTable.of("Seconds by phase", ["round", *PHASES, "wall clock of the round"], rows),
        f"Totals: {totals}. Clients' seconds are summed, also where they ran side by side; the dash is a round's wall "
        "clock, evaluation not included.",
    )
