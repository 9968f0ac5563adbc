"""Whose samples a run trains on: the data, divided among clients, the public set, and what is held out.

Every process opens its own; pixels are memory-mapped. The same arguments give the same rows in any process.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import fmean
from typing import Self

import numpy as np
import torch

from rayfed_ssl.config.choices import OBJECTIVE
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.datasets import open_dataset
from rayfed_ssl.data.held_out import LEAST_TEST, HeldOut, hold_out, set_apart
from rayfed_ssl.data.image_store import Dataset
from rayfed_ssl.data.partitions import Skew, measure_skew, partition
from rayfed_ssl.data.public_data import PublicSet, parse_public, refuse_own, split_public
from rayfed_ssl.data.shards import check_shards, labeled_rows
from rayfed_ssl.engine.ledger import LedgerEntry
from rayfed_ssl.engine.scoring import held_out_notes, labeled
from rayfed_ssl.engine.task_builder import views_of
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.knn import capped
from rayfed_ssl.machine.processor import check_process
from rayfed_ssl.randomness.seeds import Purpose, derive_seed
from rayfed_ssl.training.batching import num_batches
from rayfed_ssl.training.context import cohort_size


@dataclass(eq=False, repr=False)
class Population:
    """Clients and their samples.

    Attributes:
        config: The configuration, with the views named, and the epochs that `training.total_steps` come to.
        dataset: All samples.
        shards: Rows of the training set by client id; a client whose shard became public is not in it.
        public: Samples that everybody holds, or None.
        held_out: What each client does not train on (`privacy.held_out`, `privacy.canaries`), by client id.
        own_tests: Rows of the test part of each client that has one (`clients.test_fraction`).
    """

    config: Config
    dataset: Dataset
    shards: Mapping[int, np.ndarray]
    public: PublicSet | None = None
    held_out: Mapping[int, HeldOut] = field(default_factory=dict)
    own_tests: Mapping[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, shards = self.config, self.shards
        check_shards(shards)
        training = config.training.model_copy(update={"views": views_of(config, self.dataset)})
        if training.total_steps is not None:
            rounds = config.rounds * cohort_size(config.clients.fraction, len(shards)) / len(shards)
            training = training.lasting(math.ceil(training.total_steps / (rounds * _steps_per_epoch(config, shards))))
        self.config = config.model_copy(update={"training": training})

    @classmethod
    def open(
        cls,
        config: Config,
        on_progress: Callable[[str, int, int, int], None] | None = None,
        on_planned: Callable[[Self], None] | None = None,
    ) -> Self:
        """Open the data, decoding it first if needed; before that, `on_planned` gets the federation with blank images.

        Raises:
            ConfigError: The data, the partition or the method's demands do not fit together.
        """
        check_process(config.engine.cpu)
        planned = None if on_planned is None else lambda blank: on_planned(cls._divide(config, blank, on_progress))
        try:
            dataset = open_dataset(
                config.data.name, on_progress=on_progress, on_planned=planned, **config.data_settings
            )
            return cls._divide(config, dataset, on_progress)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @classmethod
    def _divide(
        cls, config: Config, dataset: Dataset, on_progress: Callable[[str, int, int, int], None] | None
    ) -> Self:
        """Set the public samples apart, and divide the others among the clients."""
        if (limit := config.data.test_limit) is not None and limit < (classes := dataset.train.num_classes):
            raise ConfigError(
                f"data.test_limit={limit} is less than the {classes} classes, so that accuracies would say nothing: set "
                f"{classes} or more"
            )
        fields = config.partition.model_dump(exclude={"name"})
        seed = derive_seed(config.seed, Purpose.PARTITION)
        spec = None if config.public is None else parse_public(config.public)
        if config.data.validation is not None:
            refuse_own(spec, config.data.name, config.data.path)
        public, shards = split_public(
            spec,
            dataset.train,
            partial(partition, config.partition.name, num_clients=config.clients.number, seed=seed, **fields),
            seed=derive_seed(config.seed, Purpose.PUBLIC),
            open_other=partial(open_dataset, download=config.data.download, on_progress=on_progress),
        )
        clients, privacy, held_out = config.clients, config.privacy, dict[int, HeldOut]()
        labels, own_tests = dataset.train.labels, dict[int, np.ndarray]()
        if clients.test_fraction is not None:
            shards, own_tests = set_apart(labels, shards, clients.test_fraction, config.seed)
        if privacy.held_out or privacy.canaries:
            shards, held_out = hold_out(shards, privacy.held_out, privacy.canaries, config.seed)
        if clients.labeled is not None:
            shards = labeled_rows(labels, shards, clients.labeled, clients.label_choice, config.seed)
        if config.objective.needs_labels:
            _check_labels(config, labels[np.concatenate([*shards.values()])])
        return cls(config, dataset, shards, public, held_out, own_tests)

    @property
    def client_ids(self) -> tuple[int, ...]:
        """Ids of the clients that train."""
        return tuple(sorted(self.shards))

    @cached_property
    def skew(self) -> Skew:
        """How the clients' samples differ in number and classes, by labels that no method sees."""
        train = self.dataset.train
        return measure_skew(train.labels, self.shards.values(), train.num_classes)

    @property
    def share(self) -> float:
        """Share of the clients that takes part in a round."""
        return cohort_size(self.config.clients.fraction, len(self.shards)) / len(self.shards)

    @property
    def steps(self) -> int:
        """Steps of local training that a client takes over all rounds, on average."""
        config = self.config
        return round(config.rounds * self.share * config.epochs * _steps_per_epoch(config, self.shards))

    @cached_property
    def _public_images(self) -> np.ndarray | None:
        """The public samples alone, copied out of the set that holds private ones."""
        if self.public is None:
            return None
        images, rows = self.public.images.images, self.public.rows
        return images if len(rows) == len(images) else images[rows]

    @property
    def num_public(self) -> int:
        """Count the public samples."""
        return 0 if self.public is None else len(self.public.rows)

    @property
    def num_left_out(self) -> int:
        """Count the training samples that neither a client nor the public set has."""
        public = self.num_public if self.public is not None and self.public.images is self.dataset.train else 0
        own = sum(map(len, (*self.shards.values(), *self.own_tests.values())))
        return len(self.dataset.train) - public - self.num_held_out - own

    @property
    def num_held_out(self) -> int:
        """Count the samples that clients keep from training."""
        return sum(len(held.rows) for held in self.held_out.values())

    @cached_property
    def scored_clients(self) -> tuple[int, ...]:
        """Ids of the clients with scores of their own: they have a test part, and train on two classes or more."""
        labels = self.dataset.train.labels
        classes = {client_id: np.unique(labels[self.shards[client_id]]) for client_id in self.own_tests}
        return tuple(client_id for client_id, each in sorted(classes.items()) if (each >= 0).sum() > 1)

    def own_scores_notes(self) -> tuple[str, ...]:
        """Say on how many samples clients have scores of their own, and which clients have none, and why."""
        if not self.own_tests:
            return ()
        sizes = [len(self.own_tests[client_id]) for client_id in self.scored_clients]
        notes = [f"{len(sizes)} of {len(self.shards)} clients are scored on test parts of their own"]
        notes[0] += f", of {min(sizes)} to {max(sizes)} samples" if sizes else ""
        small = sorted(self.shards.keys() - self.own_tests.keys())
        single = sorted(self.own_tests.keys() - {*self.scored_clients})
        too_few = f"fewer than {LEAST_TEST} labeled samples would be set apart, so all are trained on"
        for why, clients in ((too_few, small), ("it trains on samples of one class", single)):
            if clients:
                named = ", ".join([*map(self.client_name, clients[:3]), *["..."] * (len(clients) > 3)])
                notes.append(f"without scores of their own: {len(clients)} ({named}): {why}")
        return tuple(notes)

    @cached_property
    def client_values(self) -> Mapping[int, np.ndarray]:
        """Numbers of the values that clients have of the column that divides the samples; empty without one."""
        groups = self.dataset.train.groups
        return {} if groups is None else {client: np.unique(groups[rows]) for client, rows in self.shards.items()}

    @property
    def client_names(self) -> Mapping[int, str]:
        """Names of clients by id: the value of such a column, or how many values there are."""
        names = self.dataset.train.group_names
        return {
            client_id: names[values[0]] if len(values) == 1 else f"{len(values):,} values"
            for client_id, values in self.client_values.items()
        }

    def client_name(self, client_id: int) -> str:
        """Name a client for messages and tables."""
        return f"client {client_id}" + (f" {self.client_names[client_id]}" if self.client_names else "")

    def column_notes(self) -> tuple[str, ...]:
        """Say where clients get several values of a column."""
        several = sum(map(len, self.client_values.values()))
        if all(len(values) < 2 for values in self.client_values.values()):
            return ()
        return (
            f"{several:,} values of partition.column={self.config.data_settings['group']} are dealt at random to "
            f"{self.config.clients.number:,} clients: set clients.number={several} for a client each",
        )

    def public_entries(self) -> tuple[LedgerEntry, ...]:
        """What clients receive before round 1: the public samples, once (FLESD, section 6)."""
        if self.public is None:
            return ()
        size = self.num_public * int(np.prod(self.public.images.shape))
        return tuple(
            LedgerEntry(0, client_id, "down", "public images", "public", size) for client_id in self.client_ids
        )

    def _data_notes(self) -> tuple[str, ...]:
        bad = self.dataset.skipped
        named = "; ".join(bad[:3] + ("...",) * (len(bad) > 3))
        notes = [f"unreadable pictures left out: {len(bad)} ({named})"] if bad else []
        labels, asked = labeled(self.config, self.dataset).labels, self.config.evaluation.knn.neighbors
        if len(np.unique(labels)) < 2:
            notes.append("the training set has fewer than two labeled classes, so no accuracy can be measured on it")
        elif (k := capped(asked, torch.tensor(labels))) < asked:
            notes.append(f"kNN takes the {k} nearest samples instead of {asked}, as the smallest class has no more")
        if self.dataset.shared:
            notes.append(
                f"{self.dataset.shared:,} pictures of the test split are training samples too: scores are too high"
            )
        if self.held_out:
            notes.append(f"{self.num_held_out:,} samples of clients are held out of training, for `rayfed-ssl audit`")
        if self.config.clients.labeled is not None and self.config.model.is_random:
            notes.append("clients fine-tune random weights: set model.start=RUN to fine-tune an encoder")
        if (last := self.config.training.schedule_rounds or self.config.rounds) < self.config.rounds:
            notes.append(f"rounds after {last} repeat the learning rates of round {last} (training.schedule_rounds)")
        notes += [*self.own_scores_notes(), *self.column_notes()]
        return (*self.dataset.notes, *notes, *held_out_notes(self.config, len(self.dataset.test)))


def _check_labels(config: Config, labels: np.ndarray) -> None:
    """Refuse samples without a class, for an objective that needs one of each."""
    if unlabeled := int((labels < 0).sum()):
        some = "" if unlabeled == len(labels) else "clients.labeled=1, which leaves them out, or "
        raise ConfigError(
            f"objective={OBJECTIVE.name_of(config.objective)} needs a class for every sample, but {unlabeled:,} of "
            f"{len(labels):,} have none: take {some}an objective without labels such as objective=simclr"
        )
    if len(np.unique(labels)) < 2:
        raise ConfigError(
            f"objective={OBJECTIVE.name_of(config.objective)} needs two classes or more, but all {len(labels):,} samples "
            "are of one: name data with classes, or take an objective without labels such as objective=simclr"
        )


def _steps_per_epoch(config: Config, shards: Mapping[int, np.ndarray]) -> float:
    """Average the batches that the clients' samples make."""
    batch, drop_last = config.training.batch, config.training.drop_last
    return fmean(num_batches(len(rows), batch, drop_last=drop_last) for rows in shards.values())
