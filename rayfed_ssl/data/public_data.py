"""The public set: pictures without labels that the server and every client may see.

Three ways to get one, written as text in a run's settings:

- `client:0` - that client's shard; the client does not train (FLESD, 2022: client 0 of the same Dirichlet split).
- `fraction:0.1` - a share of the training set, held out per class before it is divided among the clients.
  Labels make it as balanced as the training set, which pictures without labels need not be.
- `stl10:3200` - that many random pictures of another dataset, fitted to the run's size and channels (FedCA, 2020);
  `parquet:PATH:3200` and `folder:PATH:3200` for a dataset that needs a path.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rayfed_ssl.data.datasets import DATASETS
from rayfed_ssl.data.image_store import Dataset, ImageSet
from rayfed_ssl.data.partitions import Rows, Shards, stratified_split

_FORMS = "client:0, fraction:0.1 or a dataset and a count as stl10:3200"


@dataclass(frozen=True)
class PublicClient:
    """The shard of one client."""

    client_id: int


@dataclass(frozen=True)
class PublicFraction:
    """A share of the training set, between 0 and 1."""

    fraction: float


@dataclass(frozen=True)
class PublicDataset:
    """So many pictures of another dataset."""

    name: str
    count: int
    path: Path | None = None


PublicSpec = PublicClient | PublicFraction | PublicDataset


@dataclass(frozen=True)
class PublicSet:
    """Which pictures are public: sorted rows, int64 [P], of an image set."""

    images: ImageSet
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)


OpenDataset = Callable[..., Dataset]
"""`open_dataset`, with whatever the run fixes (cache, download) already bound."""


def parse_public(text: str) -> PublicSpec:
    """Read a public set's description."""
    kind, _, value = text.partition(":")
    if kind == "client" and value.isdecimal():
        return PublicClient(int(value))
    with suppress(ValueError):  # no number
        if kind == "fraction" and 0 < float(value) < 1:
            return PublicFraction(float(value))
    if kind in DATASETS:
        return _parse_dataset(text, kind, value)
    raise ValueError(f"cannot read the public set {text!r}: write {_FORMS} ({', '.join(DATASETS)})")


def refuse_own(spec: PublicSpec | None, name: str, path: Path | None) -> None:
    """Refuse public pictures from the run's own dataset: some that are held out may be among them."""
    if not isinstance(spec, PublicDataset) or spec.name.removesuffix("-unlabeled") != name.removesuffix("-unlabeled"):
        return
    if spec.path is None or path is None or spec.path.resolve() == path.resolve():
        raise ValueError(
            f"public {spec.name} would be drawn from the training samples, and so from those that data.validation holds "
            "out: take public=fraction:0.1, a client's shard or another dataset"
        )


def split_public(
    spec: PublicSpec | None,
    train: ImageSet,
    divide: Callable[..., Shards],
    *,
    seed: int,
    open_other: OpenDataset,
) -> tuple[PublicSet | None, dict[int, Rows]]:
    """Set the public pictures apart, and divide the rest by `divide`, which sees its labels and `groups` alone.

    Returns the public set, and each training client's rows of the training set by client id. Clients keep their ids: with
    `client:0` the ids start at 1. No public row is in a shard.
    """
    private = public = np.arange(len(train), dtype=np.int64)
    if isinstance(spec, PublicFraction):
        private, public = stratified_split(train.labels, spec.fraction, seed)
    grouped = {} if train.groups is None else {"groups": train.groups[private], "group_names": train.group_names}
    shards = {client_id: private[rows] for client_id, rows in enumerate(divide(train.labels[private], **grouped))}
    match spec:
        case None:
            return None, shards
        case PublicFraction():
            return PublicSet(train, public), shards
        case PublicClient(client_id):
            if client_id not in shards or len(shards) == 1:
                raise ValueError(f"public client:{client_id} needs that client and another, got {len(shards)} clients")
            return PublicSet(train, shards.pop(client_id)), shards
        case PublicDataset():
            return _open_public(spec, train, seed, open_other), shards


def check_public(num_public: int, queue: int, batch: int) -> int:
    """Find the largest usable queue of similarity distillation, a multiple of the batch (FLESD, authors' code).

    The first queue / batch iterations of an epoch only fill the queue, and an incomplete last batch is dropped, so an
    epoch takes a step only if num_public is at least queue + batch.
    """
    usable = min(queue, num_public - batch) // batch * batch
    if usable < batch:
        largest = min(queue, num_public // 2)
        smaller = f"set method.distil_batch to at most {largest}, or " if largest > 1 else ""
        raise ValueError(
            f"distillation needs a queue of at least one batch and another batch of public pictures, got {num_public} "
            f"public pictures, queue {queue} and batch {batch}: {smaller}set public to more pictures"
        )
    return usable


def batch_for(num_public: int, largest: int = 128, least: int = 8) -> int:
    """Halve FLESD's batch (section 5.1) until the public set has at least `least` batches, or the batch is 2."""
    batch = largest
    while batch > 2 and num_public < least * batch:
        batch //= 2
    return batch


def _parse_dataset(text: str, name: str, value: str) -> PublicDataset:
    path, _, count = value.rpartition(":")
    if not count.isdecimal() or int(count) < 1 or bool(path) != DATASETS[name].needs_path:
        form = f"{name}:PATH:3200" if DATASETS[name].needs_path else f"{name}:3200"
        raise ValueError(f"cannot read the public set {text!r}: write {form}, with a count of at least 1")
    return PublicDataset(name, int(count), Path(os.path.expanduser(path)) if path else None)


def _open_public(spec: PublicDataset, train: ImageSet, seed: int, open_other: OpenDataset) -> PublicSet:
    channels, height, width = train.shape
    if height != width:
        raise ValueError(f"public {spec.name} is fitted to squares, but the run has {width}x{height}: set data.size")
    other = open_other(
        spec.name, path=spec.path, size=height, channels=channels, train_limit=spec.count, seed=seed
    ).train
    if len(other) < spec.count:
        raise ValueError(f"public {spec.name} has only {len(other)} pictures, {spec.count} were asked for: lower it")
    return PublicSet(other, np.arange(len(other), dtype=np.int64))
