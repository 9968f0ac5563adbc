"""Scores of an encoder under the protocols that a configuration asks for."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from rayfed_ssl.config import Config
from rayfed_ssl.data.partition import random_rows
from rayfed_ssl.data.store import Dataset, ImageSet
from rayfed_ssl.data.views import PROBE_VIEW, augment, normalise
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.evaluation.knn import knn_accuracy
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.seeds import Purpose, derive_seed, generator
from rayfed_ssl.task import Task


def score(encoder: Encoder, config: Config, task: Task, dataset: Dataset, final: bool) -> Metrics:
    """Score an encoder with the training set's labels and the test set.

    Args:
        encoder: Architecture and weights.
        config: The protocols' settings.
        task: Models, number format and device.
        dataset: Training and test set.
        final: Whether to fit the linear probe besides the kNN monitor.

    Returns:
        Accuracies in [0, 1] as "knn" and, if `final`, "linear" (last epoch) and "linear_best"; nothing without labels.

    Raises:
        ValueError: Features are not finite.
    """
    train, test = labelled(config, dataset), dataset.test
    if len(np.unique(train.labels)) < 2 or not len(test):
        return {}
    model = task.model(encoder.weights, encoder.architecture).encoder
    transform = partial(normalise, recipe=task.views.first)
    features = partial(extract_features, model, transform=transform, device=task.device, precision=task.precision)
    train_features, test_features = features(train.images), features(test.images)
    train_labels, test_labels = torch.tensor(train.labels), torch.tensor(test.labels)
    knn, settings, classes = config.evaluation.knn, config.evaluation, train.num_classes
    accuracy = knn_accuracy(
        train_features,
        train_labels,
        test_features,
        test_labels,
        num_classes=classes,
        neighbours=knn.neighbours,
        temperature=knn.temperature,
    )
    if not final:
        return {"knn": accuracy}
    random = generator("cpu", derive_seed(config.seed, Purpose.EVALUATION))
    if settings.augment:
        view = replace(PROBE_VIEW, mean=task.views.first.mean, std=task.views.first.std)
        result = settings.linear.fit_augmented(
            model,
            train.images,
            train_labels,
            test_features,
            test_labels,
            num_classes=classes,
            generator=random,
            view=lambda images, g: augment(images, view, g, size=task.size),
            device=task.device,
            precision=task.precision,
        )
    else:
        result = settings.linear.fit(
            train_features, train_labels, test_features, test_labels, num_classes=classes, generator=random
        )
    return {"knn": accuracy, "linear": result.last, "linear_best": result.best}


def labelled(config: Config, dataset: Dataset) -> ImageSet:
    """Select the training samples that probe and monitor see: those with a label, `evaluation.train_limit` at most."""
    train, limit = dataset.train, config.evaluation.train_limit
    rows = np.flatnonzero(train.labels >= 0)
    if limit is not None and limit < len(rows):
        rows = rows[random_rows(len(rows), limit, derive_seed(config.seed, Purpose.EVALUATION))]
    if len(rows) == len(train):
        return train
    return ImageSet(train.images[rows], train.labels[rows], train.classes)
