"""Diagnostics during a run: of each encoder that is scored, and of a round's clients compared with each other.

No method sees them, no state changes, no label is read, and every draw has a seed of its own. Images are test images.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl.aggregation.compression import Packed, unpack
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.image_store import Dataset
from rayfed_ssl.data.partitions import random_rows
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.evaluation.representation_metrics import (
    Drift,
    alignment,
    angles,
    centered_gram,
    cka,
    effective_rank,
    feature_std,
    nearest,
    neighbors_in_common,
    relation_distance,
    uniformity,
)
from rayfed_ssl.method import Encoder, Metrics, sent_fields
from rayfed_ssl.randomness.seeds import Purpose, derive_seed, generator
from rayfed_ssl.training.state_parts import is_state, part_of
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights

ENCODER_SAMPLES = 512  # test images on which one encoder is measured, at most
CLIENT_SAMPLES = 256  # test images, or public samples, on which clients are compared, at most
COMPARED_CLIENTS = 8  # clients of a round that are compared, at most
_SPREADS = tuple(
    f"diag_{name}" for name in ("update_norm", "update_cosine", "cka", "neighbors", "angle", "relation_distance")
)

DIAGNOSTICS = (
    *("diag_feature_std", "diag_effective_rank", "diag_alignment", "diag_uniformity"),
    *(f"{name}{ending}" for name in _SPREADS for ending in ("", "_min", "_max")),
    *("diag_angle_lower", "diag_angle_upper"),
)
"""Names of what `encoder_diagnostics` and `client_diagnostics` give."""


@dataclass(frozen=True)
class ModelContent:
    """What a download or an upload holds of a model.

    Attributes:
        weights: Possibly a part of them.
        representations: Of the public samples, [P, D].
        relation: Packed relation matrix.
    """

    weights: Weights | None = None
    representations: Tensor | None = None
    relation: Tensor | None = None


def model_content(message: Any, num_public: int) -> ModelContent:
    """Read what a download or an upload holds of a model, by the kinds that its fields declare.

    Representations count only with one row for each public sample: those of clients' own samples (FedCA, FCL) cannot be
    compared across clients.
    """
    content: dict[str, Any] = {}
    for _, declared, value in sent_fields(message):
        kind = declared.kind
        if kind == "weights":
            content["weights"] = value
        elif kind == "representations" and isinstance(value, Packed) and len(value.values) == num_public:
            content["representations"] = unpack(value)
        elif kind == "relation matrix" and isinstance(value, Tensor):
            content["relation"] = value
    return ModelContent(**content)


def sample_images(config: Config, dataset: Dataset, most: int) -> np.ndarray:
    """Choose the same test images in all rounds and processes, uint8 [N, C, H, W]."""
    rows = random_rows(len(dataset.test), most, derive_seed(config.seed, Purpose.DIAGNOSTICS))
    return dataset.test.images[rows]


def encoder_diagnostics(encoder: Encoder, config: Config, task: Task, dataset: Dataset) -> Metrics:
    """Measure an encoder's features of test images, and for "diag_alignment" of two seeded views; {} without test images.

    Raises:
        ValueError: Features are not finite.
    """
    images = sample_images(config, dataset, ENCODER_SAMPLES)
    if not len(images):
        return {}
    model = task.model(encoder.weights, encoder.architecture).encoder
    features = partial(extract_features, model, images, device=task.device, precision=task.precision)
    random = generator(derive_seed(config.seed, Purpose.DIAGNOSTICS))
    views = [
        features(transform=partial(task.augment, recipe=recipe, generator=random))
        for recipe in (task.views.first, task.views.second)
    ]
    plain = features(transform=task.plain)
    if not all(bool(rows.isfinite().all()) for rows in (plain, *views)):
        raise ValueError("its features are not finite: the encoder diverged, lower its learning rate")
    return {
        "diag_feature_std": feature_std(plain),
        "diag_effective_rank": effective_rank(plain),
        "diag_alignment": alignment(*views),
        "diag_uniformity": uniformity(plain),
    }


def client_diagnostics(
    round: int,
    download: Callable[[int], Any],
    uploads: Mapping[int, Any],
    config: Config,
    task: Task,
    dataset: Dataset,
    num_public: int,
) -> Metrics:
    """Compare the models of a round's clients by what they sent; the weights of one upload are held at a time.

    As far as uploads allow, each as mean, "_min" and "_max": "diag_update_norm" over clients, "diag_update_cosine" over
    clients' mean cosines with the others, "diag_cka", "diag_neighbors", "diag_angle" (medians) and
    "diag_relation_distance" over pairs; and the mean quartiles "diag_angle_lower" and "diag_angle_upper".
    """
    chosen = tuple(uploads)
    if len(chosen) > COMPARED_CLIENTS:
        seed = derive_seed(config.seed, Purpose.DIAGNOSTICS, round=round)
        chosen = tuple(chosen[row] for row in random_rows(len(chosen), COMPARED_CLIENTS, seed))
    comparison = Comparison(config, task, dataset, num_public)

    def contents(client_id: int) -> tuple[ModelContent, ModelContent]:
        return model_content(uploads[client_id], num_public), model_content(download(client_id), num_public)

    for client_id in chosen:
        comparison.add(task.architecture(client_id), *contents(client_id))
    cosines: list[float] = []
    if comparison.has_cosines:
        for client_id in chosen:
            cosines += comparison.cosine(*contents(client_id))
    return comparison.metrics() | _spread("diag_update_cosine", cosines)


class Comparison:
    """Accumulates a round's comparison of clients: it keeps features and relation matrices, but no weights."""

    def __init__(self, config: Config, task: Task, dataset: Dataset, num_public: int) -> None:
        self._task = task
        self._images = sample_images(config, dataset, CLIENT_SAMPLES)
        rows = random_rows(num_public, CLIENT_SAMPLES, derive_seed(config.seed, Purpose.DIAGNOSTICS))
        self._public = torch.from_numpy(rows)
        self._drifts: dict[str, Drift] = {}
        self._norms: list[float] = []
        self._features: list[Tensor] = []
        self._relations: list[Tensor] = []

    def add(self, architecture: str, sent: ModelContent, received: ModelContent) -> None:
        """Look at one client's upload and at what it had received."""
        update = update_of(sent, received)
        if update is not None:
            self._norms.append(self._drifts.setdefault(architecture, Drift()).add(update))
        rows = self._representations(architecture, sent)
        if rows is not None and bool(rows.isfinite().all()):
            self._features.append(rows)
        if sent.relation is not None:
            self._relations.append(sent.relation.clone())

    @property
    def has_cosines(self) -> bool:
        """Whether several updates were added, all of one architecture: others have no angle between them."""
        return len(self._drifts) == 1 and len(self._norms) > 1

    def cosine(self, sent: ModelContent, received: ModelContent) -> list[float]:
        """Mean cosine of an update that was added with the others; [] for a client without an update."""
        update, (drift,) = update_of(sent, received), self._drifts.values()
        return [] if update is None else [drift.cosine(update)]

    def metrics(self) -> Metrics:
        """Sum up everything but the cosines."""
        distances = [relation_distance(first, second) for first, second in combinations(self._relations, 2)]
        return (
            _spread("diag_update_norm", self._norms)
            | compare_features(self._features)
            | _spread("diag_relation_distance", distances)
        )

    def _representations(self, architecture: str, sent: ModelContent) -> Tensor | None:
        """Representations by the sent encoder, or the sent ones of public samples."""
        task = self._task
        if sent.weights is not None and len(self._images) and holds(sent.weights, "encoder", architecture, task):
            model = task.model(sent.weights, architecture).encoder
            return extract_features(model, self._images, task.plain, device=task.device, precision=task.precision)
        return None if sent.representations is None else sent.representations[self._public]


def update_of(sent: ModelContent, received: ModelContent) -> Weights | None:
    """w_k - w over trained parameters: neither running statistics nor an objective's memory."""
    if sent.weights is None or received.weights is None:
        return None
    trained = {
        name: value.double() - received.weights[name].double()
        for name, value in sent.weights.items()
        if name in received.weights
        and value.is_floating_point()
        and part_of(name) != "batch_norm"
        and not is_state(part_of(name))
    }
    return trained or None


def holds(weights: Weights, part: str, architecture: str, task: Task) -> bool:
    """Whether a whole encoder, or projector, is there, running statistics included."""
    return all(f"{part}.{name}" in weights for name in task.blank(architecture).part(part).state_dict())


def compare_features(features: Sequence[Tensor]) -> Metrics:
    """CKA, neighbors in common, and angles where all widths are equal, over pairs of models; nothing of fewer than two."""
    grams, neighbors = [centered_gram(rows) for rows in features], [nearest(rows) for rows in features]
    metrics = _spread("diag_cka", [cka(first, second) for first, second in combinations(grams, 2)])
    metrics |= _spread("diag_neighbors", [neighbors_in_common(*pair) for pair in combinations(neighbors, 2)])
    if len(features) < 2 or len({rows.shape[1] for rows in features}) > 1:
        return metrics
    pairs = [angles(first, second) for first, second in combinations(features, 2)]
    outer = {f"diag_angle_{name}": fmean(getattr(angle, name) for angle in pairs) for name in ("lower", "upper")}
    return metrics | _spread("diag_angle", [angle.median for angle in pairs]) | outer


def _spread(name: str, values: Sequence[float]) -> Metrics:
    """Mean, minimum and maximum of values, or nothing of none."""
    if not values:
        return {}
    return {name: fmean(values), f"{name}_min": min(values), f"{name}_max": max(values)}
