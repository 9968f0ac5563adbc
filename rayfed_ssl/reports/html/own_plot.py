"""The picture of clients' scores on samples of their own."""

from collections.abc import Mapping

from rayfed_ssl.evaluation.registry import OWN, OWN_ENCODERS, OWN_SAMPLES
from rayfed_ssl.records.own_scores import OwnScores
from rayfed_ssl.reports.html.charts import Plot
from rayfed_ssl.reports.own_scores import own_name, own_note
from rayfed_ssl.reports.style import HEIGHT, clean, legend_below, mark_style, new_axes
from rayfed_ssl.reports.table import Cell, Table

MOST_NAMES = 30
"""Clients that are named below the axis; of more, every so many."""


def own_plot(scores: OwnScores, names: Mapping[int, str]) -> Plot | None:
    """Draw a dot for each client and encoder, clients in ascending order of what they have after the run."""
    if not scores:
        return None
    first = own_name(scores, "linear")
    order = sorted(scores, key=lambda client: (scores[client].get(first, 0.0), client))
    labels = [clean(f"{client} {names.get(client, '')}".strip())[:40] for client in order]
    longest = max(map(len, labels))
    figure, axes = new_axes(height=HEIGHT + 0.07 * longest * (longest > 2))
    few = len(order) <= MOST_NAMES
    for index, encoder in enumerate(OWN_ENCODERS):
        name = f"{OWN}{encoder}_linear"
        if points := {x: 100 * scores[client][name] for x, client in enumerate(order) if name in scores[client]}:
            shift = 0.15 * (index - 1.5) * few  # or equal scores hide each other
            style = mark_style(index) | {"linestyle": "", "markersize": 5 if few else 2, "label": encoder}
            axes.plot([x + shift for x in points], list(points.values()), **style)
    step = max(1, -(-len(order) // MOST_NAMES))
    axes.set_xticks(range(0, len(order), step), labels[::step], rotation=90 if longest > 2 else 0)
    axes.set(xlabel="client", ylabel="linear probe (%)")
    legend_below(figure, axes)
    shown = [f"{OWN}{encoder}_linear" for encoder in OWN_ENCODERS]
    rows = [
        [labels[x], int(scores[client][OWN_SAMPLES]), *(Cell.of(scores[client].get(name), "percent") for name in shown)]
        for x, client in enumerate(order)
    ]
    title = "Each client on samples of its own"
    table = Table.of(f"{title}: linear probe", ["client", "samples", *OWN_ENCODERS], rows)
    alt = f"Dots: linear probe of {len(order)} clients by encoder. The numbers are in the table below."
    return Plot("own-scores", title, alt, figure, table, f"{own_note(scores)}.")
