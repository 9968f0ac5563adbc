"""Bars: accuracy by client, bytes by kind and direction, time by phase."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl import formats
from rayfed_ssl.reports.figures import BLUE, GREEN, ORANGE
from rayfed_ssl.reports.html.curves import HEIGHT, legend_below, new_axes
from rayfed_ssl.reports.html.figure import AMBER, INK, PAPER, PINK, SKY, Plot, clean
from rayfed_ssl.reports.html.groups import Group
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageCell, PageTable, score_title
from rayfed_ssl.reports.summary import by_round

FILLS = ((BLUE, ""), (ORANGE, "////"), (GREEN, ".."), (SKY, "xx"), (PINK, "\\\\\\\\"), (AMBER, "++"))
"""Color and hatch of each kind of bar."""


def client_plot(run: ReportedRun) -> Plot | None:
    """Draw the scores of each client's own encoder; None where the method has no such encoders."""
    scores = {name: metrics for name, metrics in run.summary.scores.items() if name.startswith("client-")}
    names = [name for name in ("linear", "knn") if any(name in metrics for metrics in scores.values())]
    names = names or list(dict.fromkeys(name for metrics in scores.values() for name in metrics))[:2]
    if not names:
        return None

    def draw() -> Figure:
        figure, axes = new_axes(height=min(1.4 + 0.36 * len(scores), 9))
        thickness = 0.8 / len(names)
        for index, name in enumerate(names):
            shift = (index - (len(names) - 1) / 2) * thickness
            found = {row + shift: 100 * m[name] for row, m in enumerate(scores.values()) if name in m}
            color, hatch = FILLS[index]
            axes.barh(
                list(found),
                list(found.values()),
                thickness,
                color=color,
                hatch=hatch,
                edgecolor=PAPER,
                label=score_title(name),
            )
        labels = [f"{name} ({run.summary.architecture(name)})" for name in scores]
        axes.set_yticks(range(len(scores)), [clean(label) for label in labels])
        axes.invert_yaxis()
        axes.set(xlabel="accuracy (%)")
        axes.grid(visible=False, axis="y")
        legend_below(figure, axes)
        return figure

    rows = [[client, *(PageCell.percent(metrics.get(name)) for name in names)] for client, metrics in scores.items()]
    means = ", ".join(
        f"{score_title(name)} {100 * fmean([m[name] for m in scores.values() if name in m]):.2f}%" for name in names
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
    kinds = sorted({kind for _, kind in moved}, key=lambda kind: -sum(moved.get((d, kind), 0) for d in ("up", "down")))
    by_field: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in run.record.ledger:
        by_field[row["direction"], row["kind"], row["field"]] += row["bytes"]
    rows = [
        [
            PageCell(direction),
            PageCell(kind),
            PageCell(field),
            PageCell.size(total),
            PageCell.size(total / max(run.summary.num_clients, 1)),
        ]
        for (direction, kind, field), total in sorted(by_field.items())
    ]
    return Plot(
        "ledger",
        "Bytes by kind and direction",
        "Bar chart: megabytes that crossed clients' boundaries, by kind of content, up and down.",
        lambda: _up_and_down({kind: (moved.get(("up", kind), 0), moved.get(("down", kind), 0)) for kind in kinds}),
        PageTable.of(
            "Bytes of the whole run",
            ["direction", "kind", "field", "all clients", "a client on average"],
            rows,
        ),
        "Up: sent by clients; down: received by them. Sizes are uncompressed and without framing; 1 MB is 10⁶ bytes.",
    )


def traffic_plot(groups: Sequence[Group]) -> Plot:
    """Draw bytes up and down of each group of runs, a client's share."""
    shares = {
        group.label: tuple(
            fmean(value / max(run.summary.num_clients, 1) for run, value in zip(group.runs, values, strict=True))
            for values in (
                [run.summary.bytes_up for run in group.runs],
                [run.summary.bytes_down for run in group.runs],
            )
        )
        for group in groups
    }
    rows = [[label, PageCell.size(up), PageCell.size(down)] for label, (up, down) in shares.items()]
    return Plot(
        "traffic",
        "What a client sends and receives",
        "Bar chart: megabytes that a client sends and receives in the whole run, by run.",
        lambda: _up_and_down({label: (up, down) for label, (up, down) in shares.items()}),
        PageTable.of("Bytes of a client, mean over clients and seeds", ["run", "up", "down"], rows),
    )


def _up_and_down(moved: Mapping[str, tuple[float, float]]) -> Figure:
    figure, axes = new_axes(height=1.5 + 0.5 * max(len(moved), 1))
    for index, direction in enumerate(("up", "down")):
        places = [row + (index - 0.5) * 0.38 for row in range(len(moved))]
        color, hatch = FILLS[index]
        values = [sizes[index] / 1e6 for sizes in moved.values()]
        bars = axes.barh(places, values, 0.36, color=color, hatch=hatch, edgecolor=PAPER, label=direction)
        axes.bar_label(bars, [f" {value:.3g}" if value else " 0" for value in values], color=INK, fontsize=8)
    axes.set_yticks(range(len(moved)), [clean(name) for name in moved])
    axes.invert_yaxis()
    axes.set(xlabel="MB")
    axes.margins(x=0.14)
    axes.grid(visible=False, axis="y")
    legend_below(figure, axes)
    return figure


PHASES = ("clients", "server", "evaluation")


def seconds_by_phase(run: ReportedRun) -> dict[str, dict[int, float]]:
    """Sum compute seconds by phase and round; clients' steps may have run side by side, so their sum is not a time."""
    rows = run.record.metrics
    kinds = {
        "clients": [row for row in rows if row["name"] == "seconds" and row["participant"].startswith("client-")],
        "server": [row for row in rows if row["name"] == "seconds" and row["participant"] == "server"],
        "evaluation": [row | {"name": "seconds"} for row in rows if row["name"] == "evaluation_seconds"],
    }
    return {
        phase: {round: sum(values) for round, values in by_round(found, "seconds").items()}
        for phase, found in kinds.items()
    }


def timing_plot(run: ReportedRun) -> Plot | None:
    """Draw seconds by phase, a bar a round; None before the first round."""
    phases = seconds_by_phase(run)
    rounds = sorted({round for found in phases.values() for round in found})
    if not rounds:
        return None
    wall = {
        row["round"]: row["value"]
        for row in run.record.metrics
        if row["participant"] == "run" and row["name"] == "seconds"
    }

    def draw() -> Figure:
        figure, axes = new_axes(height=HEIGHT)
        below = [0.0] * len(rounds)
        for (color, hatch), phase in zip(FILLS, PHASES, strict=False):
            values = [phases[phase].get(round, 0.0) for round in rounds]
            axes.bar(rounds, values, 0.8, below, color=color, hatch=hatch, edgecolor=PAPER, label=phase)
            below = [low + value for low, value in zip(below, values, strict=True)]
        axes.plot(
            list(wall), list(wall.values()), color=INK, marker="_", linestyle="", markersize=12, label="wall clock"
        )
        axes.set(xlabel="round", ylabel="seconds")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(visible=False, axis="x")
        legend_below(figure, axes)
        return figure

    rows = [
        [
            round,
            *(phases[phase].get(round, 0.0) for phase in PHASES),
            wall.get(round),
        ]
        for round in rounds
    ]
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
