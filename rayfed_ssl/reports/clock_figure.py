"""Figure of a schedule: what clients do over virtual time, and when the server steps."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rayfed_ssl.clock.devices import SECOND
from rayfed_ssl.clock.schedule import USED, Schedule
from rayfed_ssl.reports.style import BLUE, GREEN, GRID, MUTED, ORANGE, legend_below, new_axes, save_figure, styled

MOST_CLIENTS, MOST_TASKS = 30, 10
"""Clients that are drawn, and tasks of each of them on average."""

UNITS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))


def draw_schedule(schedule: Schedule, title: str, out: Path) -> Path:
    """Draw the first tasks of the first clients; raises ConfigError for an unknown suffix."""
    with styled():
        return save_figure(_figure(schedule, title), out)


def _figure(schedule: Schedule, title: str) -> Figure:
    tasks = schedule.tasks
    places = np.unique(tasks["place"])[:MOST_CLIENTS]
    rows = np.flatnonzero(np.isin(tasks["place"], places))[: MOST_TASKS * len(places)]
    until = max(int(tasks["ended"][rows].max()), 1)
    unit, name = next((pair for pair in UNITS if until >= 2 * pair[0] * SECOND), UNITS[-1])
    figure, axes = new_axes(width=7, height=1.6 + 0.17 * len(places))
    row_of = {int(place): row for row, place in enumerate(places)}
    parts = (("download", "asked", "downloaded", BLUE), ("training", "downloaded", "trained", GREEN))
    for label, start, end, color in (*parts, ("upload", "trained", "sent", ORANGE)):
        for used in (True, False):
            chosen = rows[(tasks["end"][rows] == USED) == used]
            starts, ends = (np.minimum(tasks[key], tasks["ended"])[chosen] / SECOND / unit for key in (start, end))
            heights = [row_of[int(place)] for place in tasks["place"][chosen]]
            bars = axes.barh(heights, ends - starts, left=starts, height=0.7, color=color, alpha=1.0 if used else 0.35)
            bars.set_label(label if used else f"{label}, wasted")
    for time in schedule.times:
        if time <= until:
            axes.axvline(time / SECOND / unit, color=MUTED, linewidth=0.7, zorder=0.5)
    axes.set(xlabel=f"virtual {name} (a line is a server step)", ylabel="client", title=title)
    axes.set_yticks(range(len(places)), [str(schedule.clients[int(place)]) for place in places], fontsize=7)
    axes.grid(axis="y", color=GRID, linewidth=0.3)
    axes.invert_yaxis()
    legend_below(figure, axes, columns=3)
    return figure
