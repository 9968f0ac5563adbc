"""Figures that need the pictures: the partition, t-SNE or UMAP of test features, and their similarities.

They are computed on the CPU in float32 with one thread, so that the same run gives the same figure on any machine of a kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.data.partitions import random_rows
from rayfed_ssl.data.public_data import PublicClient, parse_public
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.environment import compute_threads
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.method import Encoder
from rayfed_ssl.records.run_record import encoders_of
from rayfed_ssl.reports.embedding import tsne
from rayfed_ssl.reports.html.curves import HEIGHT, WIDTH
from rayfed_ssl.reports.html.figure import SERIES, Plot, clean
from rayfed_ssl.reports.html.matrices import heatmap
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageCell, PageTable
from rayfed_ssl.reports.partition_figure import count_samples, partition_figure
from rayfed_ssl.seeds import Purpose, derive_seed
from rayfed_ssl.storage import checkpoints

Embedding = Literal["tsne", "umap"]

TITLES: Mapping[Embedding, str] = {"tsne": "t-SNE", "umap": "UMAP"}

MAX_SAMPLES = 1000
"""Test samples whose features are embedded."""

MAX_IN_HEATMAP = 160
"""Test samples in the heatmap of similarities."""


@dataclass(frozen=True, eq=False)
class SampleFeatures:
    """Features of test samples, sorted by class.

    Attributes:
        encoder: The encoder's name.
        values: float32 [N, d].
        labels: int64 [N], ascending.
        classes: Names of the classes.
        seed: Of the embedding, derived from the run's.
    """

    encoder: str
    values: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    seed: int


def embedding_named(name: str) -> Embedding:
    """Find an embedding, which must be installed.

    Raises:
        ConfigError: It is unknown, or not installed.
    """
    if name == "tsne":
        return "tsne"
    if name != "umap":
        raise ConfigError(f"--embedding is tsne or umap, got {name!r}")
    if find_spec("umap") is None:
        raise ConfigError("--embedding umap needs umap-learn, which is not installed: pip install 'rayfed-ssl[umap]'")
    return "umap"


def open_federation(run: ReportedRun) -> Federation:
    """Open the run's data and check that they are still those that it ran on; nothing is downloaded.

    Raises:
        ConfigError: They are not here, or no longer the same.
    """
    config = run.record.config("engine.executor=local", "engine.device=cpu", "engine.precision=fp32")
    config = config.model_copy(update={"data": config.data.model_copy(update={"download": False})})
    federation = Federation.open(config)
    began, now = run.record.summary["data"]["fingerprint"], federation.dataset.fingerprint
    if began != now:
        raise ConfigError(f"the data of {federation.dataset.name} changed since the run (fingerprint {now[:12]})")
    return federation


def partition_plot(federation: Federation) -> Plot:
    """Draw which client holds how many samples of which class."""
    config, train = federation.config, federation.dataset.train
    spec = None if config.public is None else parse_public(config.public)
    public = federation.public.rows if federation.public is not None and isinstance(spec, PublicClient) else None
    classes = tuple(clean(name) for name in train.classes)
    counts = count_samples(train.labels, federation.shards, len(classes))
    rows = [
        [PageCell(f"client {client}"), len(shard), *row.tolist()]
        for (client, shard), row in zip(sorted(federation.shards.items()), counts, strict=True)
    ]
    return Plot(
        "partition",
        "Who holds which classes",
        f"Bubble chart: samples of {len(classes)} classes at {len(rows)} clients; areas are numbers of samples.",
        lambda: partition_figure(train.labels, federation.shards, classes, public=public),
        PageTable.of("Training samples by client and class", ["client", "samples", *classes], rows),
        "The area of a circle is the number of samples; the public set, where it was a client's shard, is hollow.",
    )


def test_features(run: ReportedRun, federation: Federation) -> SampleFeatures | None:
    """Compute test features of the global encoder, or of the first where there is none; None without labels.

    Raises:
        ConfigError: The run has no encoder yet.
        ValueError: The encoder's features are not finite.
    """
    test, config, task = federation.dataset.test, federation.config, federation.task
    labeled = np.flatnonzero(test.labels >= 0)
    if not len(labeled):
        return None
    seed = derive_seed(config.seed, Purpose.EVALUATION)
    if len(labeled) > MAX_SAMPLES:
        labeled = labeled[random_rows(len(labeled), MAX_SAMPLES, seed)]
    rows = labeled[np.argsort(test.labels[labeled], kind="stable")]
    name, encoder = _encoder(run, federation)
    with compute_threads(1):
        model = task.model(encoder.weights, encoder.architecture).encoder
        transform = partial(normalize, recipe=task.views.first)
        values = extract_features(
            model, test.images[rows], transform, device=task.device, precision=task.precision
        ).numpy()
    if not np.isfinite(values).all():
        raise ConfigError(f"features of encoder {name} are not finite: it diverged")
    return SampleFeatures(name, values, test.labels[rows], tuple(test.classes), seed)


def _encoder(run: ReportedRun, federation: Federation) -> tuple[str, Encoder]:
    folder = run.directory / "encoders"
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if files:
        chosen = next((file for file in files if file.stem == "global"), files[0])
        encoder: Encoder = checkpoints.read_file(chosen)
        return chosen.stem, encoder
    state = checkpoints.latest(run.record.checkpoints)
    return next(iter(encoders_of(federation, state, run.record.checkpoints).items()))


def embed(features: SampleFeatures, embedding: Embedding) -> np.ndarray:
    """Place features on a plane, [N, 2]; seeded, and with one thread, as sums over threads may differ in their last bits."""
    if embedding == "tsne":
        return tsne(features.values, features.seed)
    from umap import UMAP

    neighbors = min(15, len(features.values) - 1)
    with threadpool_limits(1):
        placed = UMAP(n_neighbors=neighbors, random_state=features.seed % 2**32, n_jobs=1)
        return np.asarray(placed.fit_transform(features.values))


def embedding_plot(features: SampleFeatures, embedding: Embedding) -> Plot | None:
    """Draw test features on a plane, colored by class; None below five samples."""
    if len(features.values) < 5:
        return None
    present = np.unique(features.labels)
    title = TITLES[embedding]

    def draw() -> Figure:
        places = embed(features, embedding)
        columns = 3 if len(present) > 6 else 2
        lines = -(-min(len(present), 30) // columns)
        figure = Figure(figsize=(WIDTH, HEIGHT + 0.4 + 0.2 * lines), layout="constrained")
        axes = figure.add_subplot()
        for index, label in enumerate(present):
            own = features.labels == label
            color, marker = SERIES[index % len(SERIES)][0], "os^DvPX<>*"[index % 10]
            axes.scatter(
                places[own, 0],
                places[own, 1],
                s=13,
                color=color,
                marker=marker,
                linewidths=0,
                label=clean(features.classes[label])[:18],
            )
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        if len(present) <= 30:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns, markerscale=1.6)
        return figure

    counts = [[PageCell(features.classes[label]), int((features.labels == label).sum())] for label in present]
    return Plot(
        embedding,
        f"{title} of test features",
        f"Scatter chart: {title} of {len(features.values)} test samples' features, {len(present)} classes.",
        draw,
        PageTable.of("Test samples in the picture", ["class", "samples"], counts),
        f"Encoder {features.encoder}, {len(features.values)} test samples; distances between far groups mean nothing.",
    )


def similarity_plot(features: SampleFeatures) -> Plot:
    """Draw cosines between test features, sorted by class, with means of each pair of classes as a table."""
    unit = features.values / np.maximum(np.linalg.norm(features.values, axis=1, keepdims=True), 1e-12)
    present, labels = np.unique(features.labels), features.labels
    means = np.stack([unit[labels == label].mean(axis=0) for label in present])
    between = means @ means.T
    sizes = np.array([(labels == label).sum() for label in present])
    pairs = np.maximum(sizes * (sizes - 1), 1)
    between[np.diag_indices(len(present))] = (np.diag(between) * sizes**2 - sizes) / pairs  # no sample with itself
    each = max(MAX_IN_HEATMAP // len(present), 1)
    chosen = np.concatenate([np.flatnonzero(labels == label)[:each] for label in present])
    cosines = np.round(unit[chosen] @ unit[chosen].T, 4)
    shown = present if len(present) <= 20 else present[:: -(-len(present) // 20)]
    ticks = [(float(np.flatnonzero(labels[chosen] == label).mean()), features.classes[label][:14]) for label in shown]
    names = [features.classes[label] for label in present]
    rows = [[name, *(float(v) for v in row)] for name, row in zip(names, between, strict=True)]
    within = float(np.diag(between).mean())
    others = float(between[~np.eye(len(present), dtype=bool)].mean()) if len(present) > 1 else float("nan")
    return Plot(
        "similarity",
        "Similarity of test features",
        f"Heatmap: cosines of {len(chosen)} test samples' features, sorted by class; blocks on the diagonal are classes.",
        lambda: heatmap(cosines, label="cosine", low=None, high=1.0, ticks=ticks),
        PageTable.of("Mean cosine of each pair of classes", ["class", *names], rows) if len(names) <= 30 else None,
        f"Encoder {features.encoder}. Mean cosine within a class {within:.3f}, between classes {others:.3f}.",
    )
