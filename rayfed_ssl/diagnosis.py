"""Diagnostics while a run goes on: of each encoder that is scored, and of a round's clients beside each other.

Nothing here is seen by a method or changes a state: models are copies in evaluation mode, and every draw has a seed of its
own. No label is read. The images are test images, which no client holds; what clients compare by is what they have sent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl.compression import Packed, unpack
from rayfed_ssl.config import Config
from rayfed_ssl.data.partition import random_rows
from rayfed_ssl.data.store import Dataset
from rayfed_ssl.data.views import normalise
from rayfed_ssl.evaluation.diagnostics import (
    Drift,
    alignment,
    angles,
    centred_gram,
    cka,
    effective_rank,
    feature_std,
    relation_distance,
    uniformity,
)
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.parts import MEMORY, part_of
from rayfed_ssl.seeds import Purpose, derive_seed, generator
from rayfed_ssl.task import Task
from rayfed_ssl.trees import Weights, is_node

ENCODER_SAMPLES = 512
"""Test images on which one encoder is looked at, at most."""

CLIENT_SAMPLES = 256
"""Test images, or public samples, on which clients are compared, at most."""

COMPARED_CLIENTS = 8
"""Clients of a round that are compared, at most."""


@dataclass(frozen=True)
class Shown:
    """What a download or an upload tells about a model.

    Attributes:
        weights: Its weights, as far as they were sent.
        representations: What it makes of the public samples, [P, D].
        relation: Its relation matrix, packed.
    """

    weights: Weights | None = None
    representations: Tensor | None = None
    relation: Tensor | None = None


def shown(message: Any, num_public: int) -> Shown:
    """Find in a download or an upload what tells about a model, by the kinds that its fields declare.

    Representations count only where there is a row for each public sample: those of clients' own samples, which FedCA and
    FCL send, cannot be compared across clients.
    """
    found: dict[str, Any] = {}
    for field in fields(message):
        kind, value = field.metadata.get("kind"), getattr(message, field.name)
        if kind is None and is_node(value):  # a method that holds another wraps what the other sends
            inner = shown(value, num_public)
            found |= {f.name: getattr(inner, f.name) for f in fields(inner) if getattr(inner, f.name) is not None}
        elif kind == "weights" and value is not None:
            found["weights"] = value
        elif kind == "representations" and isinstance(value, Packed) and len(value.values) == num_public:
            found["representations"] = unpack(value)
        elif kind == "relation matrix" and isinstance(value, Tensor):
            found["relation"] = value
    return Shown(**found)


def sample_images(config: Config, dataset: Dataset, most: int) -> np.ndarray:
    """Choose the same test images in all rounds and processes, uint8 [N, C, H, W]."""
    rows = random_rows(len(dataset.test), most, derive_seed(config.seed, Purpose.DIAGNOSTICS))
    return dataset.test.images[rows]


def encoder_diagnostics(encoder: Encoder, config: Config, task: Task, dataset: Dataset) -> Metrics:
    """Look at one encoder's features of test images, and at those of two seeded views of them.

    Returns:
        "diag_feature_std", "diag_effective_rank" and "diag_uniformity" of plain images, "diag_alignment" of the two views;
        nothing without test images.

    Raises:
        ValueError: Features are not finite.
    """
    images = sample_images(config, dataset, ENCODER_SAMPLES)
    if not len(images):
        return {}
    model = task.model(encoder.weights, encoder.architecture).encoder
    features = partial(extract_features, model, images, device=task.device, precision=task.precision)
    random = generator(task.device, derive_seed(config.seed, Purpose.DIAGNOSTICS))
    views = [
        features(transform=partial(task.augment, recipe=recipe, generator=random))
        for recipe in (task.views.first, task.views.second)
    ]
    plain = features(transform=partial(normalise, recipe=task.views.first))
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

    Args:
        round: From 1.
        download: Gives what a client received at the start of the round.
        uploads: In ascending client id; each is asked for twice at most.
        config: The run's seed.
        task: Models, number format and device.
        dataset: Its test images.
        num_public: P.

    Returns:
        As far as uploads allow, each as mean, "_min" and "_max": "diag_update_norm" over clients, "diag_update_cosine" over
        clients' mean cosines with the others, "diag_cka", "diag_angle" (medians) and "diag_relation_distance" over pairs;
        and "diag_angle_lower" and "diag_angle_upper", means of the quartiles over pairs.
    """
    chosen = _chosen(tuple(uploads), derive_seed(config.seed, Purpose.DIAGNOSTICS, round=round))
    images = sample_images(config, dataset, CLIENT_SAMPLES)
    public = torch.from_numpy(random_rows(num_public, CLIENT_SAMPLES, derive_seed(config.seed, Purpose.DIAGNOSTICS)))
    drift, norms = {name: Drift() for name in {task.architecture(i) for i in chosen}}, []
    features: list[Tensor] = []
    relations: list[Tensor] = []
    for client_id in chosen:
        sent, architecture = shown(uploads[client_id], num_public), task.architecture(client_id)
        update = _update(sent, shown(download(client_id), num_public))
        if update is not None:
            norms.append(drift[architecture].add(update))
        rows = _features(sent, architecture, images, public, task)
        if rows is not None and bool(rows.isfinite().all()):
            features.append(rows)
        if sent.relation is not None:
            relations.append(sent.relation.clone())
    cosines: list[float] = []
    if len(drift) == 1 and len(norms) > 1:  # updates of different architectures have no angle between them
        updates = (_update(shown(uploads[i], num_public), shown(download(i), num_public)) for i in chosen)
        (only,) = drift.values()
        cosines = [only.cosine(update) for update in updates if update is not None]
    distances = [relation_distance(one, other) for one, other in combinations(relations, 2)]
    return (
        _spread("diag_update_norm", norms)
        | _spread("diag_update_cosine", cosines)
        | _compare(features)
        | _spread("diag_relation_distance", distances)
    )


def _chosen(client_ids: Sequence[int], seed: int) -> tuple[int, ...]:
    """Choose whom to compare where a round has many clients."""
    if len(client_ids) <= COMPARED_CLIENTS:
        return tuple(client_ids)
    return tuple(client_ids[row] for row in random_rows(len(client_ids), COMPARED_CLIENTS, seed))


def _update(sent: Shown, received: Shown) -> Weights | None:
    """w_k - w over trained parameters: neither running statistics nor an objective's memory."""
    if sent.weights is None or received.weights is None:
        return None
    trained = {
        name: value.double() - received.weights[name].double()
        for name, value in sent.weights.items()
        if name in received.weights and value.is_floating_point() and part_of(name) not in MEMORY | {"batch_norm"}
    }
    return trained or None


def _features(sent: Shown, architecture: str, images: np.ndarray, public: Tensor, task: Task) -> Tensor | None:
    """Compute what the sent encoder makes of the images, or take what it was told to make of public samples."""
    if sent.weights is not None and len(images) and holds(sent.weights, "encoder", architecture, task):
        model = task.model(sent.weights, architecture).encoder
        transform = partial(normalise, recipe=task.views.first)
        return extract_features(model, images, transform, device=task.device, precision=task.precision)
    return None if sent.representations is None else sent.representations[public]


def holds(weights: Weights, part: str, architecture: str, task: Task) -> bool:
    """Whether a whole encoder, or projector, is there, running statistics included."""
    return all(f"{part}.{name}" in weights for name in task.blank(architecture).part(part).state_dict())


def _compare(features: Sequence[Tensor]) -> Metrics:
    """CKA, and angles where all widths are equal, over pairs of models; nothing of fewer than two."""
    grams = [centred_gram(rows) for rows in features]
    metrics = _spread("diag_cka", [cka(one, other) for one, other in combinations(grams, 2)])
    if len(features) < 2 or len({rows.shape[1] for rows in features}) > 1:
        return metrics
    found = [angles(one, other) for one, other in combinations(features, 2)]
    return (
        metrics
        | _spread("diag_angle", [quartiles.median for quartiles in found])
        | {"diag_angle_lower": fmean(quartiles.lower for quartiles in found)}
        | {"diag_angle_upper": fmean(quartiles.upper for quartiles in found)}
    )


def _spread(name: str, values: Sequence[float]) -> Metrics:
    """Mean, minimum and maximum of values, or nothing of none."""
    if not values:
        return {}
    return {name: fmean(values), f"{name}_min": min(values), f"{name}_max": max(values)}
