"""Pictures of the data: training samples with two views of each, and test samples with their nearest training samples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import avg_pool2d

from rayfed_ssl.analysis.embedding import image_features
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.partitions import random_rows
from rayfed_ssl.data.view_recipes import ViewRecipe
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.environment import compute_threads
from rayfed_ssl.method import Encoder
from rayfed_ssl.reports.html.embedding_plots import SampleFeatures, unit_rows
from rayfed_ssl.reports.html.figure import WIDTH, Plot, clean
from rayfed_ssl.reports.html.tables import PageTable
from rayfed_ssl.seeds import Purpose, derive_seed, generator

SAMPLES = 8
"""Training samples that are shown, of as many classes."""

QUERIES, NEIGHBORS = 6, 5
"""Test samples, and the nearest training samples of each."""

BANK = 1000
"""Training samples among which neighbors are searched."""

LONGEST_SIDE = 64
"""Pixels of a picture's side; in larger ones n by n pixels are averaged."""


def views_plot(federation: Federation) -> Plot:
    """Draw a training sample of each of several classes, and two views of it as training makes them."""
    train, task = federation.dataset.train, federation.task
    rows = _one_of_each_class(train, SAMPLES)
    images = torch.as_tensor(train.images[rows])
    draws = generator(derive_seed(federation.config.seed, Purpose.EVALUATION))
    with compute_threads(1):
        views = [
            task.augment(images, _plain(recipe, images), draws) for recipe in (task.views.first, task.views.second)
        ]
    pictures = [images / 255, *views]
    names = [_name(train, row) for row in rows]
    return Plot(
        "views",
        "Training samples and two views of each",
        f"Pictures: {len(rows)} training samples, and below each two random views of it.",
        lambda: _draw(pictures, ["sample", "view", "view"], names),
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
        np.concatenate([test.images[features.rows[query]][None], train.images[own]])
        for query, own in zip(queries, nearest, strict=True)
    ]
    classes = [clean(features.classes[features.labels[query]]) for query in queries]
    table = [
        [name, *(f"{_name(train, row)} ({cosine:.2f})" for row, cosine in zip(own, of[places], strict=True))]
        for name, own, of, places in zip(classes, nearest, cosines, order, strict=True)
    ]
    known = train.labels[nearest]
    hits = np.mean(known == features.labels[queries][:, None])
    return Plot(
        "neighbors",
        "Nearest training samples of test samples",
        f"Pictures: {len(rows)} test samples, and beside each its {len(numbers)} nearest training samples.",
        lambda: _draw([torch.as_tensor(row) / 255 for row in rows], classes, ["test", *numbers]),
        PageTable.of("Classes of the neighbors, and cosines of features", ["test sample", *numbers], table),
        f"Encoder {features.encoder}: the highest cosines of features among {len(bank):,} training samples."
        + f" {100 * hits:.0f}% of these neighbors have the test sample's class." * bool((known >= 0).any()),
    )


def _one_of_each_class(images: ImageSet, number: int) -> np.ndarray:
    labels, first = np.unique(images.labels, return_index=True)
    chosen = first[labels >= 0][:number]
    return chosen if len(chosen) > 1 else np.arange(min(number, len(images)))


def _name(images: ImageSet, row: int) -> str:
    label = int(images.labels[row])
    return clean(images.classes[label])[:12] if label >= 0 else "no label"


def _plain(recipe: ViewRecipe, images: Tensor) -> ViewRecipe:
    """The recipe without its normalization."""
    return replace(recipe, mean=(0.0,) * images.shape[1], std=(1.0,) * images.shape[1])


def _pixels(images: Tensor) -> np.ndarray:
    """Turn images [N, C, H, W] in [0, 1] into opaque pictures uint8 [N, H, W, 4]."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    pixels = np.repeat(pixels, 3, axis=3) if pixels.shape[3] == 1 else pixels
    return np.concatenate([pixels, np.full((*pixels.shape[:3], 1), 255, np.uint8)], axis=3)


def _draw(images: Sequence[Tensor], names: Sequence[str], heads: Sequence[str]) -> Figure:
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
