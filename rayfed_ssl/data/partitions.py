"""Partitions: how a training set's samples are divided among clients.

Every partition is a pure function of the labels and a seed. It returns one shard per client, in ascending client id:
the rows of its samples, sorted, int64. No sample is in two shards.

- `iid`: equal random shares, all samples.
- `dirichlet`: FLESD (2022), as in the authors' sampling.py. Its counts are truncated, so a few samples are dropped.
- `classes_per_client`: FedCA (2020), 2 classes per client on CIFAR-10 and 20 on CIFAR-100 with 5 clients.
- `pooled`: one client with everything, the centralized upper bound.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from rayfed_ssl import plugins

Rows = npt.NDArray[np.int64]
Shards = tuple[Rows, ...]

_MAX_DRAWS = 10_000


def iid(labels: np.ndarray, num_clients: int, seed: int) -> Shards:
    """Divide all samples at random into shards whose sizes differ by at most one."""
    _check_clients(labels, num_clients)
    return _sorted_shards(np.array_split(_rng("iid", seed).permutation(len(labels)), num_clients))


def dirichlet(
    labels: np.ndarray, num_clients: int, alpha: PositiveFloat, seed: int, *, min_share: NonNegativeFloat = 0.5
) -> Shards:
    """Divide each class by proportions drawn from Dir(alpha, ..., alpha) over the clients.

    All proportions d [C, K] are drawn again until every client k has sum_c d[c, k] > min_share / K. That sum is C / K
    on average, so the rule only keeps a client from being left with next to nothing: shards differ a lot in size.

    Args:
        labels: Classes, int64 [N], none of them -1.
        num_clients: K.
        alpha: Concentration; 100 is nearly IID, 0.01 gives most classes to one client each.
        seed: Draws the proportions and the samples of each client.
        min_share: Proportions are drawn again until each client's sum to min_share / K; the authors use 0.5.
    """
    _check_clients(labels, num_clients)
    rng = _rng("dirichlet", seed)
    classes = _rows_by_class(labels, "dirichlet")
    sizes = np.array([len(rows) for rows in classes])
    for _ in range(_MAX_DRAWS):
        proportions = rng.dirichlet(np.full(num_clients, alpha), len(classes))
        counts = (sizes[:, None] * proportions).astype(np.int64)
        # FLESD has only the first condition; the second follows from it unless the dataset is tiny.
        if proportions.sum(0).min() > min_share / num_clients and counts.sum(0).min() > 0:
            break
    else:
        raise ValueError(
            f"none of {_MAX_DRAWS} Dirichlet draws gave each of {num_clients} clients a share above {min_share}/"
            f"{num_clients} of a class (alpha {alpha}, {len(classes)} classes): raise alpha, or lower num_clients or "
            "min_share"
        )
    pieces = [np.split(rng.permutation(rows), row.cumsum())[:-1] for rows, row in zip(classes, counts, strict=True)]
    return _sorted_shards([np.concatenate(shard) for shard in zip(*pieces, strict=True)])


def classes_per_client(labels: np.ndarray, num_clients: int, classes: PositiveInt, seed: int) -> Shards:
    """Give each client samples of exactly `classes` classes, held as evenly as can be.

    A class held by several clients is divided among them equally. Every class is held by someone if
    num_clients * classes is at least the number of classes; the samples of classes that nobody holds are dropped.

    Args:
        labels: Classes, int64 [N], none of them -1.
        num_clients: K.
        classes: Classes per client.
        seed: Draws the classes and the samples of each client.
    """
    _check_clients(labels, num_clients)
    by_class = _rows_by_class(labels, "classes_per_client")
    if not 1 <= classes <= len(by_class):
        raise ValueError(f"each client is to hold {classes} classes, but there are {len(by_class)}: lower classes")
    rng = _rng("classes_per_client", seed)
    holders: list[list[int]] = [[] for _ in by_class]
    for client in range(num_clients):
        # The least held classes first, ties at random: holder counts never differ by more than one.
        order = np.lexsort((rng.random(len(by_class)), np.array([len(clients) for clients in holders])))
        for number in order[:classes]:
            holders[number].append(client)
    pieces: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for rows, clients in zip(by_class, holders, strict=True):
        if len(rows) < len(clients):
            raise ValueError(
                f"class {labels[rows[0]]} has {len(rows)} samples for {len(clients)} clients: lower classes"
            )
        for client, piece in zip(clients, np.array_split(rng.permutation(rows), max(len(clients), 1)), strict=False):
            pieces[client].append(piece)
    return _sorted_shards([np.concatenate(piece) for piece in pieces])


def pooled(labels: np.ndarray) -> Shards:
    """Give everything to one client."""
    _check_clients(labels, 1)
    return (np.arange(len(labels), dtype=np.int64),)


PARTITIONS: dict[str, Callable[..., Sequence[np.ndarray]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "classes_per_client": classes_per_client,
    "pooled": pooled,
}

GIVEN = ("labels", "num_clients", "seed", "generator")
"""Parameters that a partition gets from the run; all others are its fields."""


def partition(name: str, labels: np.ndarray, num_clients: int, seed: int, **fields: Any) -> Shards:
    """Divide samples with a partition by name; it gets those of the parameters in `GIVEN` that it has.

    Its own fields, as alpha of dirichlet, come by keyword. An error says which rows are out of range or in two shards.
    """
    function = plugins.find("partition", name, PARTITIONS)
    given = {"labels": labels, "num_clients": num_clients, "seed": seed, "generator": _rng(name, seed)}
    parameters = inspect.signature(function).parameters
    shards = function(**{key: value for key, value in given.items() if key in parameters}, **fields)
    try:
        shards = [np.asarray(shard, np.int64) for shard in shards]
    except (TypeError, ValueError) as error:
        raise ValueError(f"partition {name} must give a list of row numbers for each client: {error}") from error
    rows = np.concatenate(shards or [np.empty(0, np.int64)])
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(labels):
        raise ValueError(
            f"partition {name} must give rows from 0 to {len(labels) - 1}, got {rows.min()} to {rows.max()}"
        )
    if len(np.unique(rows)) < len(rows):
        raise ValueError(f"partition {name} gives {len(rows) - len(np.unique(rows))} rows to more than one client")
    return _sorted_shards(shards)


def count_samples(labels: np.ndarray, shards: Iterable[Rows], num_classes: int) -> np.ndarray:
    """Count each shard's samples of each class, int64 [K, C]; label -1 is not counted."""
    counts = [np.bincount(labels[rows][labels[rows] >= 0], minlength=num_classes) for rows in shards]
    return np.stack(counts).astype(np.int64)


def random_rows(num_samples: int, count: int | None, seed: int) -> Rows:
    """Choose `count` of the rows at random, sorted; all of them for None or where there are no more."""
    if count is None or count >= num_samples:
        return np.arange(num_samples, dtype=np.int64)
    return np.sort(_rng("random_rows", seed).choice(num_samples, count, replace=False)).astype(np.int64)


def stratified_split(labels: np.ndarray, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Hold out ceil(fraction * N) samples with the class proportions of all; -1 counts as a class.

    Returns the remaining and the held-out rows, each sorted and neither empty.
    """
    total = math.ceil(fraction * len(labels) - 1e-9) if 0 < fraction < 1 else 0
    if not 0 < total < len(labels):
        raise ValueError(f"cannot hold out a fraction {fraction} of {len(labels)} samples: both parts need a sample")
    rng = _rng("stratified_split", seed)
    classes, sizes = np.unique(labels, return_counts=True)
    quotas = sizes * (total / len(labels))
    counts = np.floor(quotas).astype(np.int64)
    # Largest remainders, so that the counts add up to the total.
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    held = [rng.permutation(np.flatnonzero(labels == label))[:n] for label, n in zip(classes, counts, strict=True)]
    rows = np.sort(np.concatenate(held)).astype(np.int64)
    return np.setdiff1d(np.arange(len(labels), dtype=np.int64), rows), rows


def _rng(purpose: str, seed: int) -> np.random.Generator:
    """Give each purpose its own stream, so that one seed can serve several draws."""
    return np.random.default_rng(np.random.SeedSequence([seed, *purpose.encode()]))


def _check_clients(labels: np.ndarray, num_clients: int) -> None:
    if not 1 <= num_clients <= len(labels):
        raise ValueError(f"cannot divide {len(labels)} samples among {num_clients} clients: each needs at least one")


def _rows_by_class(labels: np.ndarray, name: str) -> list[np.ndarray]:
    if unlabeled := int((labels < 0).sum()):
        raise ValueError(f"partition {name} needs classes, but {unlabeled} samples have no label: use iid")
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _sorted_shards(shards: Sequence[np.ndarray]) -> Shards:
    return tuple(np.sort(shard).astype(np.int64) for shard in shards)
