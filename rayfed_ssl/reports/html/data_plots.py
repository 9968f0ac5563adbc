"""Figures that need the images: the partition and features of test samples.

They are computed on the CPU in float32 with one thread, so that the same run gives the same figure on machines of one kind.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from rayfed_ssl.adversaries.backdoors import Backdoor
from rayfed_ssl.analysis.embedding import image_features, tsne
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.partitions import count_samples, random_rows, with_unlabeled
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.randomness.seeds import Purpose, derive_seed
from rayfed_ssl.reports.figures import MOST_ROWS, partition_figure, public_rows
from rayfed_ssl.reports.html.charts import MOST_PICTURES, Plot, pictures_plot
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.style import COLORS, HEIGHT, MARKERS, PAPER, clean, legend_below, new_axes
from rayfed_ssl.reports.table import Table
from rayfed_ssl.storage.encoder_file import Export

MAX_SAMPLES = 1000
"""Test samples whose features are embedded."""


@dataclass(frozen=True, eq=False)
class SampleFeatures:
    """Features of test samples, float32 [N, d], sorted by class, with the seed of their embedding."""

    encoder: str
    values: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    seed: int


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
    labels, classes = with_unlabeled(train.labels, [clean(name) for name in train.classes])
    shards = dict(sorted(federation.shards.items()))
    counts = count_samples(labels, shards.values(), len(classes)).tolist()
    name = federation.client_name
    is_few = len(shards) <= MOST_ROWS
    rows = [[clean(name(c)), len(shards[c]), *row * is_few] for c, row in zip(shards, counts, strict=True)]
    note = "The area of a circle is the number of samples; the public set, where it was a client's shard, is hollow."
    note = note if is_few else "Above, the samples of each client; colors are shares of these."
    return Plot(
        "partition",
        "Samples by client and class",
        f"Chart: samples of {len(classes)} classes at {len(rows)} clients. The numbers are in the table below.",
        partition_figure(
            labels, federation.shards, classes, public=public_rows(federation), names=federation.client_names
        ),
        Table.of(
            "Training samples by client and class", ["client", "samples", *classes[: len(classes) * is_few]], rows
        ),
        f"{note} Skew: {federation.skew.text}.",
    )


def triggered_plot(federation: Federation) -> Plot | None:
    """Draw test pictures as they are and with a backdoor's trigger; None for a run without one."""
    if not isinstance(backdoor := federation.config.adversary, Backdoor):
        return None
    test = federation.dataset.test
    rows = backdoor.others(test)[:MOST_PICTURES]
    if not len(rows):
        return None
    few = ImageSet(test.images[rows], test.labels[rows], test.classes, split="test")
    shown = {"original": few.images, "with trigger": backdoor.triggered(few, federation.config.seed).images}
    what = "test pictures, and below each with the trigger."
    target = clean(test.classes[backdoor.target(test.classes)])
    note = f"The attack succeeds where pictures with the trigger are taken for class {target}."
    return pictures_plot("trigger", "Test pictures with the trigger", what, shown, note)


def sample_features(federation: Federation, saved: Export) -> SampleFeatures | None:
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
    return SampleFeatures(saved.info.encoder, values, test.labels[rows], tuple(test.classes), seed)


def _move_apart(figure: Figure, texts: list[Text]) -> None:
    """Move texts up until none overlaps another, the lowest first."""
    figure.draw_without_rendering()
    placed = list[Bbox]()
    for text in sorted(texts, key=lambda text: text.get_position()[1]):
        box = text.get_window_extent()
        while others := [other for other in placed if box.overlaps(other)]:
            box = box.translated(0, max(other.y1 for other in others) - box.y0 + 1)
        placed.append(box)
        middle = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        x, y = figure.axes[0].transData.inverted().transform(middle)
        text.set_position((float(x), float(y)))


def embedding_plot(features: SampleFeatures) -> Plot:
    """Draw test features on a plane by t-SNE, colored by class."""
    present, counts = np.unique(features.labels, return_counts=True)
    names = [clean(features.classes[label])[:18] for label in present]
    points = tsne(features.values, features.seed)
    figure, axes = new_axes(height=HEIGHT + 0.4 + 0.07 * min(len(present), 30))
    texts = list[Text]()
    for index, (label, name) in enumerate(zip(present, names, strict=True)):
        of_class = points[features.labels == label]
        marker, color = MARKERS[index % len(MARKERS)], COLORS[index % len(COLORS)]
        axes.scatter(of_class[:, 0], of_class[:, 1], s=13, linewidths=0, color=color, marker=marker, label=name)
        if len(present) <= 30:
            box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
            x, y = np.median(of_class, axis=0)
            texts.append(axes.text(x, y, name, ha="center", va="center", size=8, weight="bold", bbox=box))
    axes.set(xticks=[], yticks=[])
    axes.margins(0.08)
    axes.spines[:].set_visible(False)
    if len(present) <= 30:
        legend_below(figure, axes, columns=3, markerscale=1.6)
    _move_apart(figure, texts)
    return Plot(
        "tsne",
        "t-SNE of test features",
        f"Scatter chart: t-SNE of {len(features.values)} test samples' features, {len(present)} classes.",
        figure,
        Table.of("Test samples in the picture", ["class", "samples"], zip(names, counts.tolist(), strict=True)),
        f"Encoder {features.encoder}, {len(features.values)} test samples; names stand at their classes' medians, or above. "
        "Distances between far groups mean nothing.",
    )
