"""The protocols' kinds: what each measures of an encoder, with its settings as fields."""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from rayfed_ssl.data.datasets import DATASETS, open_dataset
from rayfed_ssl.data.image_store import Dataset, ImageSet
from rayfed_ssl.data.labels import Choice, label_subset
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.evaluation.fine_tuning import FineTuning
from rayfed_ssl.evaluation.knn import knn_accuracy
from rayfed_ssl.evaluation.linear_probe import LinearProbe, ProbeResult
from rayfed_ssl.evaluation.subject import Subject, scores
from rayfed_ssl.seeds import Purpose, derive_seed
from rayfed_ssl.training.task import Task

ProtocolT = TypeVar("ProtocolT", bound="Protocol")

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True)
class Protocol(ABC):
    """A named way to measure an encoder.

    Attributes:
        name: Its name in `PROTOCOLS` and of its score; with "_best" that of the best epoch.
        description: One line for listings.
        source: The paper, and whether its code or its text says so.
    """

    name: str
    description: str
    source: str

    @abstractmethod
    def measure(self, subject: Subject) -> Mapping[str, float]:
        """Compute accuracies in [0, 1] by score name.

        Raises:
            ValueError: The encoder diverged, or the data do not do for this protocol.
        """

    def suits(self, subject: Subject) -> bool:
        """Tell whether there is something to measure: labels, unless the protocol brings its own."""
        return subject.is_labeled

    def check(self, task: Task, train: ImageSet, seed: int) -> None:  # noqa: B027 - most can work with any data
        """Refuse data that this protocol cannot work with, before a run begins.

        Raises:
            ValueError: The message says why.
        """

    def settings(self) -> dict[str, Any]:
        """Give all settings as plain data."""
        return {name: getattr(owner, name) for name, owner in _owners(self)}

    def changed(self: ProtocolT, changes: Mapping[str, Any]) -> ProtocolT:
        """Change settings by name.

        Raises:
            ConfigError: There is no such setting, or it cannot have this value.
        """
        owners = dict(_owners(self))
        inner: dict[str, dict[str, Any]] = {}
        direct: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in owners:
                raise ConfigError(f"protocol {self.name} has no setting {name!r}{nearest(name, owners)}")
            place = next((f.name for f in dataclasses.fields(self) if getattr(self, f.name) is owners[name]), None)
            target = direct if owners[name] is self or place is None else inner.setdefault(place, {})
            target[name] = self._valid(owners[name], name, value)
        try:
            parts = {place: replace(getattr(self, place), **fields) for place, fields in inner.items()}
            return replace(self, **direct, **parts)
        except ValueError as error:
            raise ConfigError(f"protocol {self.name}: {error}") from None

    def _valid(self, owner: Any, name: str, value: Any) -> Any:
        kind: Any = next(field.type for field in dataclasses.fields(owner) if field.name == name)
        try:
            # The strict types of the configuration, which come from JSON: lists stand for tuples, no boolean for a number.
            return TypeAdapter(kind, config=STRICT).validate_json(json.dumps(value, default=str))
        except ValidationError as error:
            why = error.errors()[0]["msg"].lower()
            raise ConfigError(f"protocol {self.name}: {name}: {why}, got {value!r}") from None


def _owners(protocol: Protocol) -> Iterator[tuple[str, Any]]:
    """List every setting's name with the dataclass that holds it: the protocol, or a part of it."""
    for field in dataclasses.fields(protocol):
        part = getattr(protocol, field.name)
        if dataclasses.is_dataclass(part):
            yield from ((inner.name, part) for inner in dataclasses.fields(part))
        elif field.name not in ("name", "description", "source"):
            yield field.name, protocol


@dataclass(frozen=True, kw_only=True)
class Neighbors(Protocol):
    """Weighted vote of the nearest training samples.

    Attributes:
        neighbors: k.
        temperature: Of the vote's weights exp(cosine / temperature).
    """

    neighbors: int = 200
    temperature: float = 0.1

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
class Linear(Protocol):
    """Softmax regression on the frozen encoder's features of all labeled training samples.

    Attributes:
        probe: Optimizer and schedule.
        augment: Whether every epoch draws a crop and a flip of each image; else features are computed once.
    """

    probe: LinearProbe
    augment: bool = False

    def measure(self, subject: Subject) -> Mapping[str, float]:
        """Train the classifier and test it after every epoch."""
        result = self.fit(subject)
        return scores(self.name, result.last, result.best)

    def fit(self, subject: Subject) -> ProbeResult:
        """Train the classifier."""
        train, test = subject.labels
        common: dict[str, Any] = {"num_classes": subject.train.num_classes, "generator": subject.cpu_generator()}
        if not self.augment:
            return self.probe.fit(subject.train_features, train, subject.test_features, test, **common)
        return self.probe.fit_augmented(
            subject.encoder,
            subject.train.images,
            train,
            subject.test_features,
            test,
            view=subject.cropper(),
            device=subject.task.device,
            precision=subject.task.precision,
            **common,
        )


@dataclass(frozen=True, kw_only=True)
class SemiSupervised(Protocol):
    """Fine-tuning on the share of the training samples whose labels are known.

    Attributes:
        tuning: How encoder and classifier are trained.
        fraction: That share.
        subset: Equally many labels of each class ("balanced"), or any ("random").
    """

    tuning: FineTuning
    fraction: float
    subset: Choice

    def measure(self, subject: Subject) -> Mapping[str, float]:
        """Fine-tune, testing after every epoch."""
        rows = self.rows(subject.train, subject.seed)
        return scores(self.name, *self.tuning.fit(subject, torch.from_numpy(rows)))

    def check(self, task: Task, train: ImageSet, seed: int) -> None:
        """Refuse a share with fewer labels than classes."""
        self.rows(train, seed)

    def rows(self, train: ImageSet, seed: int) -> Any:
        """Choose the samples whose labels are known.

        Raises:
            ValueError: They are fewer than the classes.
        """
        rows = label_subset(train.labels, self.fraction, self.subset, derive_seed(seed, Purpose.EVALUATION))
        if len(rows) < train.num_classes:
            raise ValueError(
                f"{self.name} takes {100 * self.fraction:g} % of {len(train)} labels, which are {len(rows)} for "
                f"{train.num_classes} classes: raise fraction or the number of training samples"
            )
        return rows


@dataclass(frozen=True, kw_only=True)
class Transfer(Protocol):
    """Fine-tuning on another dataset, fitted to the size and channels of the images that the encoder learned from.

    Attributes:
        tuning: How encoder and classifier are trained.
        dataset: A name of `rayfed-ssl list datasets`, with a path after a colon where it needs one: "parquet:PATH".
        train_limit: Train on this many of its samples, a random subset.
        test_limit: Test on this many of its samples, a random subset.
    """

    tuning: FineTuning
    dataset: str | None = None
    train_limit: int | None = None
    test_limit: int | None = None

    def measure(self, subject: Subject) -> Mapping[str, float]:
        """Fine-tune on the other dataset's training samples, and test on its test samples after every epoch."""
        target = self.open(subject.task)
        other = subject.on(target.train, target.test)
        rows = torch.from_numpy((target.train.labels >= 0).nonzero()[0])
        return scores(self.name, *self.tuning.fit(other, rows))

    def suits(self, subject: Subject) -> bool:
        """Always: the labels are the other dataset's."""
        return True

    def check(self, task: Task, train: ImageSet, seed: int) -> None:
        """Open the other dataset, decoding it if no run has done so yet."""
        self.open(task)

    def open(self, task: Task) -> Dataset:
        """Open the other dataset in the size and with the channels that the encoder is used to.

        Raises:
            ValueError: There is none, or it cannot be opened.
        """
        if self.dataset is None:
            raise ValueError(
                f"{self.name} needs a dataset to transfer to: set dataset, for example dataset=cifar10 or "
                "dataset=parquet:PATH"
            )
        name, _, path = self.dataset.partition(":")
        if name not in DATASETS:
            raise ValueError(f"{self.name}: unknown dataset {name!r}{nearest(name, DATASETS)}")
        opened: Callable[..., Dataset] = open_dataset
        return opened(
            name,
            path=Path(path) if path else None,
            size=task.size,
            channels=task.channels,
            train_limit=self.train_limit,
            test_limit=self.test_limit,
        )
