"""The protocols' kinds: what each measures of an encoder, with its settings as fields."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.data.datasets import open_dataset
from rayfed_ssl.data.image_store import Dataset, ImageSet
from rayfed_ssl.data.label_subset import Choice, label_subset
from rayfed_ssl.evaluation.evaluation_input import Subject, probe_view, scores
from rayfed_ssl.evaluation.fine_tuning import FineTuning
from rayfed_ssl.evaluation.knn import knn_accuracy
from rayfed_ssl.evaluation.linear_probe import LinearProbe
from rayfed_ssl.randomness.seeds import Purpose, derive_seed, generator
from rayfed_ssl.training.task import Task
from rayfed_ssl.validation import Validated

PSEUDO_R2 = "_pseudo_r2"
"""Ending of a linear probe's share of the training labels' entropy that it explains, 1 - loss / entropy (McFadden 1974).

At or below 0 the classifier knows no more than the classes' frequencies.
"""


@dataclass(frozen=True, kw_only=True)
class Protocol(Validated, ABC):
    """A named way to measure an encoder.

    Attributes:
        name: Its name in `PROTOCOLS` and of its score; with "_best" that of the best epoch.
        description: One line for listings.
        source: The paper, and whether its code or its text says so.
    """

    name: str
    description: str = ""
    source: str = ""

    @abstractmethod
    def measure(self, subject: Subject) -> Mapping[str, float]:
        """Compute accuracies in [0, 1] by score name; ValueError if the encoder diverged or the data do not fit."""

    def suits(self, subject: Subject) -> bool:
        """Whether there are labels to measure with."""
        return subject.is_labeled

    def check(self, task: Task, train: ImageSet, seed: int) -> None:
        """Raise ValueError, before a run begins, for data that this protocol cannot work with."""

    def settings(self) -> dict[str, Any]:
        """Give all settings."""
        return {name: value for name, value in vars(self).items() if name not in Protocol.__dataclass_fields__}


@dataclass(frozen=True, kw_only=True)
class Vote(Validated):
    """Weighted vote of the nearest training samples; defaults are EasyFL's."""

    neighbors: PositiveInt = 200
    """k."""
    temperature: PositiveFloat = 0.1
    """Of the vote's weights exp(cosine / temperature)."""


@dataclass(frozen=True, kw_only=True)
class Neighbors(Vote, Protocol):
    """Vote of the nearest training samples."""

    def measure(self, subject: Subject) -> Mapping[str, float]:
        """Compute the accuracy as "knn"; there are no epochs, so there is no best one."""
        train, test = subject.labels
        accuracy = knn_accuracy(
            subject.train_features,
            train,
            subject.test_features,
            test,
            num_classes=subject.train.num_classes,
            neighbors=self.neighbors,
            temperature=self.temperature,
        )
        return {self.name: accuracy}


@dataclass(frozen=True, kw_only=True)
class Linear(LinearProbe, Protocol):
    """Softmax regression on the frozen encoder's features of all labeled training samples.

    `augment` draws a crop and a flip of each image in every epoch; else features are computed once.
    """

    augment: bool = False

    def measure(self, subject: Subject) -> Mapping[str, float]:
        """Train the classifier and test it after every epoch; its fit to the training set is the score with `PSEUDO_R2`."""
        random = generator(derive_seed(subject.seed, Purpose.EVALUATION))

        def cropped_features() -> Tensor:
            return subject.extract(
                subject.encoder, subject.train.images, partial(probe_view, subject.task, random=random)
            )

        train, test = subject.labels
        result = self.fit(
            cropped_features() if self.augment else subject.train_features,
            train,
            subject.test_features,
            test,
            num_classes=subject.train.num_classes,
            generator=random,
            fresh=cropped_features if self.augment else None,
        )
        shares = torch.bincount(train).double() / len(train)
        explained = 1 - result.loss / float(torch.special.entr(shares).sum())
        return {**scores(self.name, result.last, result.best), self.name + PSEUDO_R2: explained}


@dataclass(frozen=True, kw_only=True)
class SemiSupervised(FineTuning, Protocol):
    """Fine-tuning on the share of the training samples whose labels are known.

    `subset` takes equally many labels of each class ("balanced"), or any ("random").
    """

    fraction: Annotated[float, Field(gt=0, le=1)]
    subset: Choice

    def measure(self, subject: Subject) -> Mapping[str, float]:
        """Fine-tune, testing after every epoch."""
        rows = self.rows(subject.train, subject.seed)
        return scores(self.name, *self.fit(subject, torch.from_numpy(rows)))

    def check(self, task: Task, train: ImageSet, seed: int) -> None:
        """Refuse a share with fewer labels than classes."""
        self.rows(train, seed)

    def rows(self, train: ImageSet, seed: int) -> Any:
        """Choose the samples whose labels are known."""
        rows = label_subset(train.labels, self.fraction, self.subset, derive_seed(seed, Purpose.EVALUATION))
        if len(rows) < train.num_classes:
            raise ValueError(
                f"{self.name} takes {100 * self.fraction:g} % of {len(train)} labels, which are {len(rows)} for "
                f"{train.num_classes} classes: raise fraction or the number of training samples"
            )
        return rows


@dataclass(frozen=True, kw_only=True)
class Transfer(FineTuning, Protocol):
    """Fine-tuning on another dataset, fitted to the size and channels of the images that the encoder learned from.

    `dataset` is a name of `rayfed-ssl list datasets`, with a path after a colon where it needs one: "parquet:PATH". The
    limits take random subsets of its samples.
    """

    dataset: str | None = None
    train_limit: PositiveInt | None = None
    test_limit: PositiveInt | None = None

    def measure(self, subject: Subject) -> Mapping[str, float]:
        """Fine-tune on the other dataset's training samples, and test on its test samples after every epoch."""
        target = self.open(subject.task)
        other = replace(subject, train=target.train, test=target.test)
        rows = torch.from_numpy((target.train.labels >= 0).nonzero()[0])
        return scores(self.name, *self.fit(other, rows))

    def suits(self, subject: Subject) -> bool:
        """Always: the labels are the other dataset's."""
        return True

    def check(self, task: Task, train: ImageSet, seed: int) -> None:
        """Open the other dataset, decoding it if no run has done so yet."""
        self.open(task)

    def open(self, task: Task) -> Dataset:
        """Open the other dataset in the size and with the channels that the encoder is used to."""
        if self.dataset is None:
            raise ValueError(
                f"{self.name} needs a dataset to transfer to: set dataset, for example dataset=cifar10 or "
                "dataset=parquet:PATH"
            )
        name, _, path = self.dataset.partition(":")
        return open_dataset(
            name,
            path=Path(path) if path else None,
            size=task.size,
            channels=task.channels,
            train_limit=self.train_limit,
            test_limit=self.test_limit,
        )
