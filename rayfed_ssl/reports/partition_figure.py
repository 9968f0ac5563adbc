"""Figure of a partition: clients by classes, each circle's area by the number of samples (FLESD, 2022, Fig. 2)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from rayfed_ssl.data.partitions import count_samples, with_unlabeled
from rayfed_ssl.data.public_data import PublicClient, parse_public
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.reports.style import BLUE, ORANGE, new_axes

LARGEST = 0.9
"""Diameter of the largest circle, in cells."""


def partition_figure(
    labels: np.ndarray,
    shards: Mapping[int, np.ndarray],
    classes: Sequence[str],
    *,
    title: str = "",
    public: np.ndarray | None = None,
) -> Figure:
    """Draw which client holds how many samples of which class, and the public rows of the training set above the clients.

    The area of each circle is proportional to its count. Circles of public samples are hollow. Samples without a label
    have a column of their own.
    """
    rows = {f"{client_id}": shards[client_id] for client_id in sorted(shards)}
    if public is not None:
        rows = {"public": public, **rows}
    labels, classes = with_unlabeled(labels, classes)
    counts = count_samples(labels, rows.values(), len(classes))
    cell = min(0.5, 14 / max(counts.shape))
    figure, axes = new_axes(width=max(cell * len(classes) + 1.8, 4), height=cell * len(rows) + 1.4)
    diameters = LARGEST * np.sqrt(counts / counts.max())
    row, column = np.nonzero(counts)
    hollow = (row == 0) & (public is not None)
    for chosen, face, edge in ((hollow, "none", ORANGE), (~hollow, BLUE, "none")):
        sizes = diameters[row[chosen], column[chosen]]
        places = np.column_stack([column[chosen], row[chosen]])
        style = {"facecolors": face, "edgecolors": edge, "offset_transform": axes.transData}
        axes.add_collection(EllipseCollection(sizes, sizes, np.zeros(len(sizes)), units="xy", offsets=places, **style))
    axes.set(xlim=(-0.5, len(classes) - 0.5), ylim=(len(rows) - 0.5, -0.5), aspect="equal")
    axes.set(xlabel=f"class (largest circle: {counts.max():,} samples)", ylabel="client (samples)", title=title)
    # Beyond some 30 names they overlap: every fifth or tenth then.
    for axis, names in ((axes.xaxis, classes), (axes.yaxis, [f"{name} ({len(r):,})" for name, r in rows.items()])):
        step = 1 if len(names) <= 30 else 5 if len(names) <= 60 else 10
        axis.set_ticks(range(0, len(names), step), names[::step])
    axes.tick_params(axis="x", labelrotation=90 if max(map(len, classes)) > 2 else 0)
    return figure


def public_rows(federation: Federation) -> np.ndarray | None:
    """Find the rows of the training set that are public, where they are one client's shard."""
    config = federation.config
    if federation.public is None or config.public is None or not isinstance(parse_public(config.public), PublicClient):
        return None
    return federation.public.rows
