"""Figures that need the images: the partition, t-SNE or UMAP of test features, and their similarities.

They are computed on the CPU in float32 with one thread, so that the same run gives the same figure on machines of one kind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from rayfed_ssl.analysis.embedding import image_features, tsne, umap
from rayfed_ssl.data.partitions import count_samples, random_rows
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.environment import compute_threads
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.export.encoders import SavedEncoder
from rayfed_ssl.reports.html.figure import HEIGHT, SERIES, Plot, clean, new_axes
from rayfed_ssl.reports.html.heatmaps import heatmap
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageTable
from rayfed_ssl.reports.labels import Label, label_points
from rayfed_ssl.reports.partition_figure import partition_figure, public_rows
from rayfed_ssl.seeds import Purpose, derive_seed

EMBEDDINGS: dict[str, tuple[str, Callable[[np.ndarray, int], np.ndarray]]] = {
    "tsne": ("t-SNE", tsne),
    "umap": ("UMAP", umap),
}
"""Title and function of each way to place features on a plane."""

MAX_SAMPLES = 1000
"""Test samples whose features are embedded."""

MAX_IN_HEATMAP = 160
"""Test samples in the heatmap of similarities."""


@dataclass(frozen=True, eq=False)
class SampleFeatures:
    """Features of test samples, float32 [N, d], sorted by class, with the seed of their embedding and their rows."""

    encoder: str
    values: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    seed: int
    rows: np.ndarray


def check_embedding(name: str) -> None:
    """Raise ConfigError for an embedding that is unknown or not installed."""
    if name not in EMBEDDINGS:
        raise ConfigError(f"--embedding is tsne or umap, got {name!r}")
    if name == "umap" and find_spec("umap") is None:
        raise ConfigError("--embedding umap needs umap-learn, which is not installed: pip install 'rayfed-ssl[umap]'")


def open_federation(run: ReportedRun) -> Federation:
    """Open the run's data without downloading; raises ConfigError where they are missing or have changed."""
    config = run.record.config("engine.executor=local", "engine.device=cpu", "engine.precision=fp32")
    config = config.model_copy(update={"data": config.data.model_copy(update={"download": False})})
    federation = Federation.open(config)
    fingerprint = federation.dataset.fingerprint
    if fingerprint != run.summary.fingerprint:
        raise ConfigError(
            f"the data of {federation.dataset.name} changed since the run (fingerprint {fingerprint[:12]})"
        )
    return federation


def partition_plot(federation: Federation) -> Plot:
    """Draw which client holds how many samples of which class."""
    train, public = federation.dataset.train, public_rows(federation)
    classes = tuple(clean(name) for name in train.classes)
    shards = dict(sorted(federation.shards.items()))
    counts = count_samples(train.labels, shards.values(), len(classes))
    rows = [
        [f"client {client}", len(shard), *row.tolist()]
        for (client, shard), row in zip(shards.items(), counts, strict=True)
    ]
    return Plot(
        "partition",
        "Samples by client and class",
        f"Bubble chart: samples of {len(classes)} classes at {len(rows)} clients; areas are numbers of samples.",
        lambda: partition_figure(train.labels, federation.shards, classes, public=public),
        PageTable.of("Training samples by client and class", ["client", "samples", *classes], rows),
        "The area of a circle is the number of samples; the public set, where it was a client's shard, is hollow. "
        f"Skew: {federation.skew.text}.",
    )


def sample_features(federation: Federation, saved: SavedEncoder) -> SampleFeatures | None:
    """Compute an encoder's features of test samples; None without labels."""
    test, seed = federation.dataset.test, derive_seed(federation.config.seed, Purpose.EVALUATION)
    labeled = np.flatnonzero(test.labels >= 0)
    if not len(labeled):
        return None
    if len(labeled) > MAX_SAMPLES:
        labeled = labeled[random_rows(len(labeled), MAX_SAMPLES, seed)]
    rows = labeled[np.argsort(test.labels[labeled], kind="stable")]
    with compute_threads(1):
        values = image_features(federation, saved.encoder, test.images[rows])
    if not np.isfinite(values).all():
        raise ConfigError(f"features of encoder {saved.name} are not finite: it diverged")
    return SampleFeatures(saved.name, values, test.labels[rows], tuple(test.classes), seed, rows)


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Scale rows [N, d] to length 1, so that their products are cosines."""
    lengths: np.ndarray = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.maximum(lengths, 1e-12))


def embedding_plot(features: SampleFeatures, embedding: str) -> Plot | None:
    """Draw test features on a plane, colored by class; None below five samples."""
    if len(features.values) < 5:
        return None
    present = np.unique(features.labels)
    title, place = EMBEDDINGS[embedding]

    def draw() -> Figure:
        points = place(features.values, features.seed)
        columns = 3 if len(present) > 6 else 2
        figure, axes = new_axes(height=HEIGHT + 0.4 + 0.2 * -(-min(len(present), 30) // columns))
        for index, label in enumerate(present):
            x, y = points[features.labels == label].T
            color, marker = SERIES[index % len(SERIES)][0], "os^DvPX<>*"[index % 10]
            name = clean(features.classes[label])[:18]
            axes.scatter(x, y, s=13, color=color, marker=marker, linewidths=0, label=name)
        axes.set(xticks=[], yticks=[])
        axes.margins(0.08)
        axes.spines[:].set_visible(False)
        if len(present) <= 30:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns, markerscale=1.6)
            middles = [np.median(points[features.labels == label], axis=0) for label in present]
            names = [clean(features.classes[label])[:18] for label in present]
            with matplotlib.rc_context({"font.weight": "bold"}):
                label_points(axes, [Label(name, x, y) for name, (x, y) in zip(names, middles, strict=True)])
        return figure

    counts = [[features.classes[label], int((features.labels == label).sum())] for label in present]
    return Plot(
        embedding,
        f"{title} of test features",
        f"Scatter chart: {title} of {len(features.values)} test samples' features, {len(present)} classes.",
        draw,
        PageTable.of("Test samples in the picture", ["class", "samples"], counts),
        f"Encoder {features.encoder}, {len(features.values)} test samples; names stand beside the medians of their classes. "
        "Distances between far groups mean nothing.",
    )


def similarity_plot(features: SampleFeatures) -> Plot:
    """Draw cosines between test features, sorted by class, with means of each pair of classes as a table."""
    unit = unit_rows(features.values)
    present, labels = np.unique(features.labels), features.labels
    means = np.stack([unit[labels == label].mean(axis=0) for label in present])
    between = means @ means.T
    sizes = np.array([(labels == label).sum() for label in present])
    pairs = np.maximum(sizes * (sizes - 1), 1)
    between[np.diag_indices(len(present))] = (np.diag(between) * sizes**2 - sizes) / pairs  # no sample with itself
    each = max(MAX_IN_HEATMAP // len(present), 1)
    rows = np.concatenate([np.flatnonzero(labels == label)[:each] for label in present])
    cosines = np.round(unit[rows] @ unit[rows].T, 4)
    ticks = [
        (float(np.flatnonzero(labels[rows] == label).mean()), features.classes[label][:14])
        for label in present[:: -(-len(present) // 20)]
    ]
    names = [features.classes[label] for label in present]
    within = float(np.diag(between).mean())
    others = float(between[~np.eye(len(present), dtype=bool)].mean()) if len(present) > 1 else float("nan")
    table = [[name, *row.tolist()] for name, row in zip(names, between, strict=True)]
    return Plot(
        "similarity",
        "Similarity of test features",
        f"Heatmap: cosines of {len(rows)} test samples' features, sorted by class; blocks on the diagonal are classes.",
        lambda: heatmap(cosines, label="cosine", low=None, high=1.0, ticks=ticks),
        PageTable.of("Mean cosine of each pair of classes", ["class", *names], table) if len(names) <= 30 else None,
        f"Encoder {features.encoder}. Mean cosine within a class {within:.3f}, between classes {others:.3f}.",
    )
