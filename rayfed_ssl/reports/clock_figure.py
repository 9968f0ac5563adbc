"""Figures of schedule.parquet: what clients do over virtual time, and how stale uploads are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from rayfed_ssl.clock.devices import SECOND
from rayfed_ssl.foreign.parquet import rows_of
from rayfed_ssl.randomness.seeds import SERVER
from rayfed_ssl.reports.style import (
    BLUE,
    GREEN,
    GRID,
    MUTED,
    ORANGE,
    legend_below,
    new_axes,
    save_figure,
    styled,
)

MOST_CLIENTS, MOST_TASKS = 30, 10
"""Clients that are drawn, and tasks of each of them on average."""

MOST_STALE = 20
"""Staleness up to which uploads are counted apart."""

MOST_LINES = 200
"""Server steps that are drawn."""

UNITS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))

PARTS = (
    ("download", "asked", "downloaded", BLUE),
    ("training", "downloaded", "trained", GREEN),
    ("upload", "trained", "end", ORANGE),
)


def draw_schedule(events: pa.Table, title: str, out: Path) -> Path:
    """Draw the first tasks of the first clients; raises ConfigError for an unknown suffix."""
    with styled():
        return save_figure(schedule_figure(events, tasks_of(events), title), out)


def tasks_of(events: pa.Table) -> list[dict[str, Any]]:
    """Collect the first tasks of the first clients: nanoseconds by event, with `client`, `used` and `end`."""
    is_client = pc.not_equal(events["client"], SERVER)
    clients = sorted(pc.unique(events["client"].filter(is_client)).to_pylist())[:MOST_CLIENTS]
    running, tasks = dict[int, dict[str, Any]](), list[dict[str, Any]]()
    for row in rows_of(events.filter(pc.is_in(events["client"], pa.array(clients, pa.int32())))):
        client, event = row["client"], row["event"]
        if event == "asked":
            running[client] = {"client": client}
        if (task := running.get(client)) is None or event == "available":
            continue
        task[event] = row["time"]
        if event in ("uploaded", "gone"):
            tasks.append(running.pop(client) | {"end": row["time"], "used": bool(row["used"])})
    return sorted(tasks, key=lambda task: (task["asked"], task["client"]))[: MOST_TASKS * max(1, len(clients))]


def staleness_of(events: pa.Table) -> dict[str, int]:
    """Count the uploads that server steps use by staleness, the server steps between a client's start and its use."""
    used = events.filter(pc.and_(pc.equal(events["event"], "uploaded"), pc.equal(events["used"], 1)))
    behind = used["step"].to_numpy() - used["version"].to_numpy() - 1
    counts = np.bincount(behind.clip(0, MOST_STALE), minlength=1).tolist()
    return {f"{stale} or more" if stale == MOST_STALE else str(stale): count for stale, count in enumerate(counts)}


def wasted_training(events: pa.Table) -> float:
    """Give the share of clients' training time, in [0, 1], that no server step uses."""
    order = np.lexsort((events["count"].to_numpy(), events["client"].to_numpy()))
    time, used = events["time"].to_numpy()[order], events["used"].to_numpy()[order]
    begins = np.flatnonzero(pc.equal(events["event"], "downloaded").to_numpy()[order][:-1])
    seconds = (time[begins + 1] - time[begins]) / SECOND
    return float(np.clip(seconds[used[begins] == 0].sum() / max(seconds.sum(), 1e-9), 0, 1))


def waiting_spans(events: pa.Table) -> npt.NDArray[np.int64]:
    """Find from when to when no device works until the last server step, as none is available, [N, 2] in nanoseconds."""
    time, event = events["time"].to_numpy(), events["event"].to_numpy(zero_copy_only=False)
    until = time[event == "aggregated"].max(initial=0)
    begun, ended = time[event == "asked"], time[np.isin(event, ("uploaded", "gone"))]
    times, change = np.concatenate([begun, ended, [until]]), np.repeat([1, -1, 0], [len(begun), len(ended), 1])
    order = np.lexsort((-change, times))
    working = np.concatenate([[0], change[order].cumsum()])[:-1]
    spans = np.stack([np.concatenate([[0], times[order][:-1]]), times[order]], axis=1).astype(np.int64)
    waiting: npt.NDArray[np.bool] = (working == 0) & (spans[:, 1] > spans[:, 0]) & (spans[:, 1] <= until)
    return np.compress(waiting, spans, axis=0)


def schedule_figure(events: pa.Table, tasks: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Draw tasks, as `tasks_of` gives them, as bars, and server steps as lines."""
    clients = sorted({task["client"] for task in tasks})
    until = max([task["end"] for task in tasks], default=1)
    unit, unit_name = next((pair for pair in UNITS if until >= 2 * pair[0] * SECOND), UNITS[-1])
    figure, axes = new_axes(width=7, height=1.6 + 0.17 * len(clients))
    row_of = {client: row for row, client in enumerate(clients)}
    for label, start, end, color in PARTS:
        for used in (True, False):
            chosen = [task for task in tasks if task["used"] == used and start in task]
            starts = [task[start] / SECOND / unit for task in chosen]
            lengths = [
                task.get(end, task["end"]) / SECOND / unit - left for task, left in zip(chosen, starts, strict=True)
            ]
            places = [row_of[task["client"]] for task in chosen]
            if chosen:
                name = label if used else f"{label}, wasted"
                look: dict[str, Any] = {"height": 0.7, "color": color, "alpha": 1.0 if used else 0.35}
                axes.barh(places, lengths, left=starts, label=name, **look)
    times = np.unique(events["time"].filter(pc.equal(events["client"], SERVER)).to_numpy())
    times = times[times <= until]
    times = times[:: max(1, -(-len(times) // MOST_LINES))]
    spans = waiting_spans(events) / SECOND / unit
    spans = spans[spans[:, 0] < until / SECOND / unit]
    if len(spans):
        bars = [(start, end - start) for start, end in spans]
        axes.broken_barh(bars, (-0.5, len(clients)), color=GRID, zorder=0.4, label="no device is at work")
    axes.vlines(times / SECOND / unit, -0.5, len(clients) - 0.5, color=MUTED, linewidth=0.7, zorder=0.5)
    axes.set(xlabel=f"virtual {unit_name} (lines are server steps)", ylabel="client", title=title)
    axes.set_yticks(range(len(clients)), [str(client) for client in clients], fontsize=7)
    axes.grid(axis="y", color=GRID, linewidth=0.3)
    axes.invert_yaxis()
    legend_below(figure, axes, columns=3)
    return figure
