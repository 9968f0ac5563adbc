"""Heatmaps of pairs, and the rest of RUN/diagnostics.json."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rayfed_ssl.analysis.diagnosis import Diagnostics, PairMatrix
from rayfed_ssl.reports.figures import BLUE
from rayfed_ssl.reports.html.bars import grouped_bars
from rayfed_ssl.reports.html.figure import INK, WIDTH, Plot, clean, legend_below, new_axes
from rayfed_ssl.reports.html.tables import PageCell, PageTable

COLORS = "cividis"
"""A scale that looks the same to color-blind readers, and grows lighter all the way."""


def heatmap(
    values: np.ndarray, *, label: str, low: float | None, high: float | None, ticks: Sequence[tuple[float, str]]
) -> Figure:
    """Draw a matrix [n, n]; NaN stays empty. The color scale is from low to high; None takes the values' own ends."""
    figure, axes = new_axes(height=WIDTH - 0.6)
    image: Any = axes.imshow(values, cmap=COLORS, vmin=low, vmax=high, interpolation="none")
    positions, names = [position for position, _ in ticks], [clean(name) for _, name in ticks]
    axes.set_xticks(positions, names, rotation=90 if max(map(len, names), default=0) > 2 else 0)
    axes.set_yticks(positions, names)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label=clean(label), shrink=0.85)
    for row, column in np.argwhere(np.isfinite(values)) if len(values) <= 8 else ():
        value = values[row, column]
        color = "#fefefe" if image.norm(value) < 0.5 else "#010101"
        axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=8, color=color)
    return figure


def matrix_plots(diagnostics: Diagnostics) -> list[Plot]:
    """Draw each matrix (CKA, angles, distances of R as in FedFoA's Figure 6)."""
    return [_matrix_plot(name, matrix) for name, matrix in diagnostics.matrices.items()]


def _matrix_plot(name: str, matrix: PairMatrix) -> Plot:
    values = np.array([[np.nan if v is None else v for v in row] for row in matrix.values], dtype=float)
    encoders, (low, high) = matrix.encoders, matrix.range
    label = f"{matrix.title} ({matrix.unit})" if matrix.unit else matrix.title
    ticks = [(float(i), encoders[i]) for i in range(0, len(encoders), max(len(encoders) // 20, 1))]
    rows = [[encoder, *row] for encoder, row in zip(encoders, matrix.values, strict=True)]
    return Plot(
        f"matrix-{name}",
        f"{matrix.title[0].upper()}{matrix.title[1:]} of encoders",
        f"Heatmap: {label} of each pair of {len(encoders)} encoders. The numbers are in the table below.",
        lambda: heatmap(values, label=label, low=low, high=high, ticks=ticks),
        PageTable.of(label, ["encoder", *encoders], rows),
    )


def angle_plot(diagnostics: Diagnostics) -> Plot | None:
    """Draw quartiles of the angles of each pair of encoders (FedCA's Figure 4); None where there are none."""
    pairs = diagnostics.angles[:30]
    if not pairs:
        return None
    names = ["–".join(pair.encoders) for pair in pairs]

    def draw() -> Figure:
        figure, axes = new_axes(height=1.1 + 0.3 * len(pairs))
        for row, pair in enumerate(pairs):
            bar: dict[str, Any] = {"color": BLUE, "linewidth": 7, "solid_capstyle": "butt", "alpha": 0.45}
            axes.plot([pair.lower, pair.upper], [row, row], **bar)
            axes.plot([pair.median], [row], color=INK, marker="|", markersize=13, markeredgewidth=2)
        axes.set_yticks(range(len(pairs)), [clean(name) for name in names])
        axes.invert_yaxis()
        axes.set(xlabel="angle between features of one image (degrees)")
        return figure

    rows = [
        [name, *(PageCell.number(angle, "°") for angle in (pair.lower, pair.median, pair.upper))]
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


def negatives_plot(diagnostics: Diagnostics) -> Plot | None:
    """Draw the share of false negatives of each client (FCL, Eq. 4-5); None where it was not measured."""
    shares = diagnostics.false_negatives
    if shares is None:
        return None
    series = {"own negatives": shares.local, "own and others' negatives (FCL, Eq. 4)": shares.fused}
    if shares.remote is not None:
        series["others' negatives (FCL, Eq. 5)"] = shares.remote
    clients = [f"client {client}" for client in shares.clients]

    def draw() -> Figure:
        figure, axes = new_axes(height=min(1.6 + 0.4 * len(clients), 9))
        grouped_bars(axes, clients, {name: [100 * value for value in values] for name, values in series.items()})
        axes.set(xlabel="false negatives (%)")
        legend_below(figure, axes)
        return figure

    rows = [
        [client, *(PageCell.number(100 * value, "%") for value in row)]
        for client, *row in zip(clients, *series.values(), strict=True)
    ]
    return Plot(
        "false-negatives",
        "False negatives by client",
        f"Bar chart: share of negatives of the sample's own class for {len(rows)} clients.",
        draw,
        PageTable.of("Share of false negatives", ["client", *series], rows),
        "From the labels of the partition, which no client sees.",
    )


def encoder_table(diagnostics: Diagnostics) -> PageTable:
    """Show the diagnostics of each encoder."""
    names = list(dict.fromkeys(name for values in diagnostics.encoders.values() for name in values))
    rows = [[encoder, *map(values.get, names)] for encoder, values in diagnostics.encoders.items()]
    return PageTable.of("Encoders without labels", ["encoder", *(name.replace("_", " ") for name in names)], rows)
