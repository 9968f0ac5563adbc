"""Heatmaps: similarities of test features, and what RUN/diagnostics.json holds of pairs of encoders."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rayfed_ssl.reports.figures import BLUE
from rayfed_ssl.reports.html.bars import FILLS
from rayfed_ssl.reports.html.curves import HEIGHT, WIDTH, legend_below, new_axes
from rayfed_ssl.reports.html.figure import INK, MUTED, PAPER, Plot, clean
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageCell, PageTable

COLORS = "cividis"
"""A scale that looks the same to color-blind readers, and grows lighter all the way."""


def heatmap(
    values: np.ndarray, *, label: str, low: float | None, high: float | None, ticks: Sequence[tuple[float, str]]
) -> Figure:
    """Draw a matrix [n, n]; NaN stays empty.

    Args:
        values: The matrix.
        label: Of the color scale.
        low: Value of the darkest color; None takes the smallest.
        high: Value of the lightest color; None takes the largest.
        ticks: Places and names along both axes.
    """
    figure, axes = new_axes(height=WIDTH - 0.6)
    image = axes.imshow(values, cmap=COLORS, vmin=low, vmax=high, interpolation="none")
    places, names = [place for place, _ in ticks], [clean(name) for _, name in ticks]
    axes.set_xticks(places, names, rotation=90 if max(map(len, names), default=0) > 2 else 0)
    axes.set_yticks(places, names)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label=clean(label), shrink=0.85)
    if len(values) <= 8:
        _write_values(axes, values, image)
    return figure


def _write_values(axes: Any, values: np.ndarray, image: Any) -> None:
    for row, column in np.argwhere(np.isfinite(values)):
        value = values[row, column]
        dark = image.norm(value) < 0.5
        axes.text(
            column, row, f"{value:.3g}", ha="center", va="center", fontsize=8, color="#fefefe" if dark else "#010101"
        )


_SAYS = {
    "cka": "Linear CKA of encoders",
    "angle": "Angle between encoders' representations",
    "relation_distance": "Distance of relation matrices",
}


def matrix_plots(run: ReportedRun) -> list[Plot]:
    """Draw each matrix of RUN/diagnostics.json (CKA, angles, distances of R as in FedFoA's Figure 6)."""
    found = (run.diagnostics or {}).get("matrices", {})
    return [_matrix_plot(name, matrix) for name, matrix in found.items()]


def _matrix_plot(name: str, matrix: dict[str, Any]) -> Plot:
    values = np.array([[np.nan if v is None else v for v in row] for row in matrix["values"]], dtype=float)
    encoders: list[str] = list(matrix["encoders"])
    low, high = matrix.get("range") or (None, None)
    unit = matrix.get("unit") or ""
    title = _SAYS.get(name, matrix.get("title") or name)
    label = f"{matrix.get('title') or name}{f' ({unit})' if unit else ''}"
    step = max(len(encoders) // 20, 1)
    ticks = [(float(i), encoders[i]) for i in range(0, len(encoders), step)]
    rows = [[encoder, *row] for encoder, row in zip(encoders, values.tolist(), strict=True)]
    return Plot(
        f"matrix-{name}",
        title,
        f"Heatmap: {label} of each pair of {len(encoders)} encoders. The numbers are in the table below.",
        lambda: heatmap(values, label=label, low=low, high=high, ticks=ticks),
        PageTable.of(label, ["encoder", *encoders], rows),
    )


def angle_plot(run: ReportedRun) -> Plot | None:
    """Draw quartiles of the angles of each pair of encoders (FedCA's Figure 4); None where there are none."""
    pairs = [p for p in (run.diagnostics or {}).get("angles") or [] if p.get("median") is not None][:30]
    if not pairs:
        return None
    names = ["–".join(pair["encoders"]) for pair in pairs]

    def draw() -> Figure:
        figure, axes = new_axes(height=1.1 + 0.3 * len(pairs))
        for row, pair in enumerate(pairs):
            axes.plot(
                [pair["lower"], pair["upper"]], [row, row], color=BLUE, linewidth=7, solid_capstyle="butt", alpha=0.45
            )
            axes.plot([pair["median"]], [row], color=INK, marker="|", markersize=13, markeredgewidth=2)
        axes.set_yticks(range(len(pairs)), [clean(name) for name in names])
        axes.invert_yaxis()
        axes.set(xlabel="angle between features of one image (degrees)")
        return figure

    rows = [
        [name, *(PageCell.number(pair[key], "°") for key in ("lower", "median", "upper"))]
        for name, pair in zip(names, pairs, strict=True)
    ]
    return Plot(
        "angles",
        "Angles between local models' representations",
        f"Range chart: quartiles of angles for {len(pairs)} pairs of encoders.",
        draw,
        PageTable.of("Quartiles of angles by pair", ["pair", "lower quartile", "median", "upper quartile"], rows),
        "Bar: from the lower to the upper quartile over test images; line: median (FedCA, Figure 4).",
    )


_NEGATIVES = {
    "local": "own negatives",
    "fused": "own and others' negatives (FCL, Eq. 4)",
    "remote": "others' negatives (FCL, Eq. 5)",
}


def negatives_plot(run: ReportedRun) -> Plot | None:
    """Draw the share of false negatives of each client (FCL, Eq. 4-5); None where it was not measured."""
    found = (run.diagnostics or {}).get("false_negatives")
    kinds = [kind for kind in _NEGATIVES if found and found.get(kind)]
    if not found or not kinds:
        return None

    def draw() -> Figure:
        figure, axes = new_axes(height=HEIGHT)
        thickness = 0.8 / len(kinds)
        for index, kind in enumerate(kinds):
            places = [row + (index - (len(kinds) - 1) / 2) * thickness for row in range(len(found["clients"]))]
            color, hatch = FILLS[index]
            values = [100 * value for value in found[kind]]
            axes.bar(places, values, thickness, color=color, hatch=hatch, edgecolor=PAPER, label=_NEGATIVES[kind])
        axes.set_xticks(range(len(found["clients"])), [str(client) for client in found["clients"]])
        axes.set(xlabel="client", ylabel="false negatives (%)")
        axes.grid(visible=False, axis="x")
        axes.axhline(0, color=MUTED, linewidth=0.8)
        legend_below(figure, axes)
        return figure

    rows = [
        [PageCell(f"client {client}"), *(PageCell.number(100 * found[kind][row], "%") for kind in kinds)]
        for row, client in enumerate(found["clients"])
    ]
    return Plot(
        "false-negatives",
        "False negatives by client",
        f"Bar chart: share of negatives of the sample's own class for {len(rows)} clients.",
        draw,
        PageTable.of("Share of false negatives", ["client", *(_NEGATIVES[kind] for kind in kinds)], rows),
        "From the labels of the partition, which no client is shown.",
    )


def encoder_table(run: ReportedRun) -> PageTable | None:
    """Show the diagnostics of each encoder; None where there are none."""
    encoders: dict[str, dict[str, Any]] = (run.diagnostics or {}).get("encoders") or {}
    names = list(dict.fromkeys(name for values in encoders.values() for name in values))
    if not names:
        return None
    rows = [[encoder, *(values.get(name) for name in names)] for encoder, values in encoders.items()]
    return PageTable.of("Encoders without labels", ["encoder", *(name.replace("_", " ") for name in names)], rows)
