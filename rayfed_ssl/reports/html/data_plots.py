"""Figures that need the images: samples with views, the partition, features of test samples and their neighbors.

They are computed on the CPU in float32 with one thread, so that the same run gives the same figure on machines of one kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import avg_pool2d

from rayfed_ssl.analysis.embedding import image_features, tsne, umap
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.partitions import count_samples, random_rows
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.environment import compute_threads
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.export.encoders import SavedEncoder
from rayfed_ssl.method import Encoder
from rayfed_ssl.reports.html.charts import Plot, heatmap
from rayfed_ssl.reports.html.page import PageTable
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.partition_figure import partition_figure, public_rows
from rayfed_ssl.reports.style import COLORS, HEIGHT, MARKERS, PAPER, WIDTH, clean, legend_below, new_axes
from rayfed_ssl.seeds import Purpose, derive_seed, generator

EMBEDDINGS = {"tsne": ("t-SNE", tsne), "umap": ("UMAP", umap)}
"""Title and function of each way to place features on a plane."""

MAX_SAMPLES = 1000
"""Test samples whose features are embedded."""

MAX_IN_HEATMAP = 160
"""Test samples in the heatmap of similarities."""

SAMPLES = 8
"""Training samples that are shown, of as many classes."""

QUERIES, NEIGHBORS = 6, 5
"""Test samples, and the nearest training samples of each."""

BANK = 1000
"""Training samples among which neighbors are searched."""

LONGEST_SIDE = 64
"""Pixels of a picture's longer side that are shown at most."""


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
    train = federation.dataset.train
    classes = tuple(clean(name) for name in train.classes)
    shards = dict(sorted(federation.shards.items()))
    counts = count_samples(train.labels, shards.values(), len(classes)).tolist()
    rows = [[f"client {client}", len(shards[client]), *row] for client, row in zip(shards, counts, strict=True)]
    return Plot(
        "partition",
        "Samples by client and class",
        f"Bubble chart: samples of {len(classes)} classes at {len(rows)} clients; areas are numbers of samples.",
        partition_figure(train.labels, federation.shards, classes, public=public_rows(federation)),
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
    chosen = labeled[random_rows(len(labeled), MAX_SAMPLES, seed)]
    rows = chosen[np.argsort(test.labels[chosen], kind="stable")]
    with compute_threads(1):
        values = image_features(federation, saved.encoder, test.images[rows])
    if not np.isfinite(values).all():
        raise ConfigError(f"features of encoder {saved.info.encoder} are not finite: it diverged")
    return SampleFeatures(saved.info.encoder, values, test.labels[rows], tuple(test.classes), seed, rows)


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Scale rows [N, d] to length 1, so that their products are cosines."""
    lengths: np.ndarray = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.maximum(lengths, 1e-12))


def embedding_plot(features: SampleFeatures, embedding: str) -> Plot:
    """Draw test features on a plane, colored by class."""
    present, counts = np.unique(features.labels, return_counts=True)
    names = [clean(features.classes[label])[:18] for label in present]
    title, place = EMBEDDINGS[embedding]
    points = place(features.values, features.seed)
    figure, axes = new_axes(height=HEIGHT + 0.4 + 0.07 * min(len(present), 30))
    for index, (label, name) in enumerate(zip(present, names, strict=True)):
        own = points[features.labels == label]
        marker, color = MARKERS[index % len(MARKERS)], COLORS[index % len(COLORS)]
        axes.scatter(own[:, 0], own[:, 1], s=13, linewidths=0, color=color, marker=marker, label=name)
        if len(present) <= 30:
            middle, box = np.median(own, axis=0), {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
            axes.annotate(name, middle, ha="center", va="center", fontsize=8, weight="bold", bbox=box)
    axes.set(xticks=[], yticks=[])
    axes.margins(0.08)
    axes.spines[:].set_visible(False)
    if len(present) <= 30:
        legend_below(figure, axes, columns=3, markerscale=1.6)
    return Plot(
        embedding,
        f"{title} of test features",
        f"Scatter chart: {title} of {len(features.values)} test samples' features, {len(present)} classes.",
        figure,
        PageTable.of("Test samples in the picture", ["class", "samples"], zip(names, counts.tolist(), strict=True)),
        f"Encoder {features.encoder}, {len(features.values)} test samples; names stand at the medians of their classes. "
        "Distances between far groups mean nothing.",
    )


def similarity_plot(features: SampleFeatures) -> Plot:
    """Draw cosines between test features, sorted by class, with means of each pair of classes as a table."""
    unit, labels = unit_rows(features.values), features.labels
    present, sizes = np.unique(labels, return_counts=True)
    means = np.stack([unit[labels == label].mean(axis=0) for label in present])
    between = means @ means.T
    pairs = np.maximum(sizes * (sizes - 1), 1)
    between[np.diag_indices(len(present))] = (np.diag(between) * sizes**2 - sizes) / pairs  # no sample with itself
    each = max(MAX_IN_HEATMAP // len(present), 1)
    rows = np.concatenate([np.flatnonzero(labels == label)[:each] for label in present])
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
        heatmap(np.round(unit[rows] @ unit[rows].T, 4), label="cosine", low=None, high=1.0, ticks=ticks),
        PageTable.of("Mean cosine of each pair of classes", ["class", *names], table) if len(names) <= 30 else None,
        f"Encoder {features.encoder}. Mean cosine within a class {within:.3f}, between classes {others:.3f}.",
    )


def views_plot(federation: Federation) -> Plot:
    """Draw a training sample of each of several classes, and two views of it as training makes them."""
    train, task = federation.dataset.train, federation.task
    labels, first = np.unique(train.labels, return_index=True)
    chosen = first[labels >= 0][:SAMPLES]
    rows = chosen if len(chosen) > 1 else np.arange(min(SAMPLES, len(train)))
    images = torch.as_tensor(train.images[rows])
    draws = generator(derive_seed(federation.config.seed, Purpose.EVALUATION))
    zeros, ones = (0.0,) * images.shape[1], (1.0,) * images.shape[1]
    recipes = [replace(recipe, mean=zeros, std=ones) for recipe in (task.views.first, task.views.second)]
    with compute_threads(1):
        views = [task.augment(images, recipe, draws) for recipe in recipes]
    return Plot(
        "views",
        "Training samples and two views of each",
        f"Pictures: {len(rows)} training samples, and below each two random views of it.",
        _draw_pictures([images / 255, *views], ["sample", "view", "view"], [_class_name(train, row) for row in rows]),
        note="Views are drawn for this picture as training draws them, before they are normalized.",
    )


def neighbors_plot(federation: Federation, encoder: Encoder, features: SampleFeatures) -> Plot:
    """Draw test samples beside the training samples with the highest cosines of the encoder's features."""
    train, test = federation.dataset.train, federation.dataset.test
    bank = random_rows(len(train), BANK, features.seed)
    with compute_threads(1):
        keys = image_features(federation, encoder, train.images[bank])
    queries = np.unique(features.labels, return_index=True)[1][:QUERIES]
    cosines = unit_rows(features.values[queries]) @ unit_rows(keys).T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBORS]
    nearest, numbers = bank[order], [str(number) for number in range(1, order.shape[1] + 1)]
    rows = [
        torch.as_tensor(np.concatenate([test.images[features.rows[query]][None], train.images[own]])) / 255
        for query, own in zip(queries, nearest, strict=True)
    ]
    classes = [clean(features.classes[features.labels[query]]) for query in queries]
    table = [
        [name, *(f"{_class_name(train, row)} ({cosine:.2f})" for row, cosine in zip(own, of[places], strict=True))]
        for name, own, of, places in zip(classes, nearest, cosines, order, strict=True)
    ]
    known = train.labels[nearest]
    hits = np.mean(known == features.labels[queries][:, None])
    return Plot(
        "neighbors",
        "Nearest training samples of test samples",
        f"Pictures: {len(rows)} test samples, and beside each its {len(numbers)} nearest training samples.",
        _draw_pictures(rows, classes, ["test", *numbers]),
        PageTable.of("Classes of the neighbors, and cosines of features", ["test sample", *numbers], table),
        f"Encoder {features.encoder}: the highest cosines of features among {len(bank):,} training samples."
        + f" {100 * hits:.0f}% of these neighbors have the test sample's class." * bool((known >= 0).any()),
    )


def _class_name(images: ImageSet, row: int) -> str:
    label = int(images.labels[row])
    return clean(images.classes[label])[:12] if label >= 0 else "no label"


def _pixels(images: Tensor) -> np.ndarray:
    """Turn images [N, C, H, W] in [0, 1] into opaque pictures uint8 [N, H, W, 4]."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    pixels = np.repeat(pixels, 3, axis=3) if pixels.shape[3] == 1 else pixels
    return np.concatenate([pixels, np.full((*pixels.shape[:3], 1), 255, np.uint8)], axis=3)


def _draw_pictures(images: Sequence[Tensor], names: Sequence[str], heads: Sequence[str]) -> Figure:
    """Draw images [N, C, H, W] of each row as one picture, with gaps that show the page."""
    step = -(-max(max(row.shape[2:]) for row in images) // LONGEST_SIDE)
    rows = [_pixels(avg_pool2d(row, step)) for row in images]
    height, width = (max(row.shape[side] for row in rows) for side in (1, 2))
    gap = max(width // 10, 1)
    columns = max(map(len, rows))
    canvas = np.zeros((len(rows) * (height + gap) - gap, columns * (width + gap) - gap, 4), np.uint8)
    for i, row in enumerate(rows):
        for j, picture in enumerate(row):
            top, left = i * (height + gap), j * (width + gap)
            canvas[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    figure = Figure(figsize=(WIDTH, 0.5 + WIDTH * 0.82 * canvas.shape[0] / canvas.shape[1]), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(canvas, interpolation="none")
    slanted: Any = {"rotation": 30, "ha": "left"} if max(map(len, heads)) > 5 else {}
    axes.set_xticks([j * (width + gap) + width / 2 for j in range(columns)], heads, fontsize=8, **slanted)
    axes.set_yticks([i * (height + gap) + height / 2 for i in range(len(rows))], names, fontsize=8)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure
