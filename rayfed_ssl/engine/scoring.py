"""Scores of an encoder under the protocols that a configuration asks for."""

from collections.abc import Iterable, Mapping

import numpy as np
from torch import nn

from rayfed_ssl.adversaries.backdoors import Backdoor
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.image_store import Dataset, ImageSet
from rayfed_ssl.data.partitions import random_rows
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.evaluation_input import Subject
from rayfed_ssl.evaluation.fine_tuning import accuracy_of
from rayfed_ssl.evaluation.protocols import Linear, Neighbors, Protocol, Transfer
from rayfed_ssl.evaluation.registry import ATTACK_SUCCESS, ATTACK_SUCCESS_KNN
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.randomness.seeds import Purpose, derive_seed
from rayfed_ssl.training.task import Task


def score(encoder: Encoder, config: Config, task: Task, dataset: Dataset, final: bool) -> Metrics:
    """Score an encoder with the training set's labels and the test set, as accuracies in [0, 1].

    "knn"; "supervised" where the objective trains a classifier; if `final`, "linear" (last epoch), "linear_best" and the
    protocols by name. With `evaluation.probe="every"` "linear" in any round. Without labels only protocols that bring their
    own. With a backdoor, beside "knn" and "linear" the share of pictures with the trigger that the same vote and the same
    probe, which learn from pictures without it, take for the target class: "attack_success_knn" and "attack_success".
    """
    subject = subject_of(encoder, config, task, dataset)
    settings = config.evaluation
    monitor = Neighbors(name="knn", **vars(settings.knn))
    metrics = dict(monitor.measure(subject)) if subject.is_labeled else {}
    attacked = _triggered(subject, config) if metrics else None
    if attacked is not None:
        metrics[ATTACK_SUCCESS_KNN] = monitor.measure(attacked)["knn"]
    if metrics and task.objective.classifies and any(name.startswith("projector.") for name in subject.weights):
        model = subject.model()
        metrics["supervised"] = accuracy_of(subject, nn.Sequential(model.encoder, model.projector))
    due: list[Protocol] = []
    if final or settings.probe == "every":
        due.append(Linear(name="linear", **vars(settings.linear), augment=settings.augment))
    if final:
        due.extend(settings.chosen)
    for protocol in due:
        if protocol.suits(subject):
            metrics |= measure(protocol, subject)
            if attacked is not None and protocol.name == "linear":
                metrics[ATTACK_SUCCESS] = measure(protocol, attacked)["linear"]
    return metrics


def _triggered(subject: Subject, config: Config) -> Subject | None:
    """Put the trigger on test pictures of other classes, all labeled as the target: an accuracy on them is its success."""
    if not isinstance(backdoor := config.adversary, Backdoor):
        return None
    test = backdoor.triggered(subject.test, config.seed)
    return subject.tested_on(test) if len(test) else None


def held_out_notes(config: Config, number: int) -> tuple[str, ...]:
    """Name the data of accuracies that are not of the test set; `number` is how many samples were held out."""
    share = config.data.validation
    if share is None:
        return ()
    held_out = f"{number:,} held-out training samples (data.validation={share:g})"
    transfers = [protocol.name for protocol in config.evaluation.chosen if isinstance(protocol, Transfer)]
    return (
        f"accuracies are of {held_out}, not of the test set",
        *(f"accuracies of {name} are of the test set of the dataset that it transfers to" for name in transfers),
    )


def measure(protocol: Protocol, subject: Subject) -> Mapping[str, float]:
    """Run a protocol; its ValueErrors begin with its name."""
    try:
        return protocol.measure(subject)
    except ValueError as error:
        raise ValueError(f"{protocol.name}: {error}") from error


def subject_of(encoder: Encoder, config: Config, task: Task, dataset: Dataset) -> Subject:
    """Combine an encoder and its data."""
    train = labeled(config, dataset)
    return Subject(encoder.architecture, encoder.weights, task, train, dataset.test, config.seed)


def check_protocols(protocols: Iterable[Protocol], config: Config, task: Task, dataset: Dataset) -> None:
    """Raise ConfigError, before a run begins, for protocols whose data would not do at its end."""
    train = labeled(config, dataset)
    for protocol in protocols:
        try:
            protocol.check(task, train, config.seed)
        except ValueError as error:
            raise ConfigError(str(error)) from error


def labeled(config: Config, dataset: Dataset) -> ImageSet:
    """Select the training samples of probe and monitor: labeled ones, `evaluation.train_limit` at most."""
    train, limit = dataset.train, config.evaluation.train_limit
    rows = np.flatnonzero(train.labels >= 0)
    if limit is not None and limit < len(rows):
        rows = rows[random_rows(len(rows), limit, derive_seed(config.seed, Purpose.EVALUATION))]
    if len(rows) == len(train):
        return train
    return ImageSet(train.images[rows], train.labels[rows], train.classes)
