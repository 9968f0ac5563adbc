"""Partitions without label skew of their own."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from rayfed_ssl.data.partitions.rows import (
    MAX_DRAWS,
    MinSamples,
    Shards,
    check_clients,
    cut,
    sorted_shards,
    stratified_split,
    stream,
    too_skewed,
)

ClientShare = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="Part of the samples that the client holds, with the class proportions of all; nobody holds the others.",
    ),
]
SizeAlpha = Annotated[
    PositiveFloat, Field(description="Concentration; 100 is nearly IID, 0.01 gives most samples to few clients.")
]
Column = Annotated[
    str,
    Field(
        description="The column of the data (parquet, hub, folder) whose values divide the samples: integers or strings. A "
        "folder without metadata.csv has the column site: the directories above those of classes."
    ),
]
LeastSamples = Annotated[PositiveInt, Field(description="Values of fewer samples are left out.")]


def iid(labels: np.ndarray, num_clients: int, seed: int) -> Shards:
    """Divide all samples at random into shards whose sizes differ by at most one."""
    check_clients(labels, num_clients)
    return sorted_shards(np.array_split(stream("iid", seed).permutation(len(labels)), num_clients))


def pooled(labels: np.ndarray, seed: int = 0, *, fraction: ClientShare = 1.0) -> Shards:
    """Give everything to one client, or a stratified fraction."""
    check_clients(labels, 1)
    return (np.arange(len(labels), dtype=np.int64) if fraction == 1 else stratified_split(labels, fraction, seed)[1],)


def quantity_skew(
    labels: np.ndarray, num_clients: int, alpha: SizeAlpha, seed: int, *, min_samples: MinSamples = 10
) -> Shards:
    """Divide all samples at random into shards whose shares are one draw from Dir(alpha, ..., alpha) over the clients.

    NIID-Bench (2022), quantity skew; its beta is alpha, 0.5 there. The shares are drawn again until every client has
    `min_samples`.
    """
    check_clients(labels, num_clients, min_samples)
    rng = stream("quantity_skew", seed)
    for _ in range(MAX_DRAWS):
        counts = cut(len(labels), rng.dirichlet(np.full(num_clients, alpha)))
        if counts.min() >= min_samples:
            return sorted_shards(np.split(rng.permutation(len(labels)), counts.cumsum()[:-1]))
    raise too_skewed(num_clients, alpha, min_samples)


def by_column(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    groups: np.ndarray,
    group_names: Sequence[str] = (),
    *,
    column: Column,
    min_samples: LeastSamples = 1,
) -> Shards:
    """Give each client the samples of one value of a column, or of as many values as the others, give or take one.

    With as many values as clients, client k has the k-th in ascending order. With more, values are dealt at random. Values
    of fewer than `min_samples` are left out.
    """
    numbers, counts = np.unique(groups, return_counts=True)
    _check_column(column, counts, len(labels))
    values = numbers[counts >= min_samples]
    if len(values) < num_clients:
        least = f" of {min_samples} samples or more" if min_samples > 1 else ""
        remedy = f"set clients.number={len(values)} or lower" if len(values) else "lower partition.min_samples"
        raise ValueError(
            f"partition.column={column} has {len(values)} values{least} for clients.number={num_clients}: {remedy}"
        )
    single = numbers[(counts == 1) & (min_samples == 1)]
    if len(values) == num_clients and len(single):
        named = ", ".join(repr(group_names[number]) if group_names else str(number) for number in single[:3])
        raise ValueError(
            f"partition.column={column} has a single sample of {named}{', ...' * (len(single) > 3)}, and a client needs 2: "
            f"set partition.min_samples=2 and clients.number={len(values) - len(single)}, which leave {len(single)} out, or "
            "lower clients.number alone, which deals several values to a client"
        )
    if len(values) > num_clients:
        values = stream("column", seed).permutation(values)
    client_of = np.full(numbers.max() + 1, num_clients)  # the last are left out
    for client, part in enumerate(np.array_split(values, num_clients)):
        client_of[part] = client
    clients = client_of[groups]
    ends = np.bincount(clients, minlength=num_clients + 1).cumsum()
    return sorted_shards(np.split(np.argsort(clients, kind="stable"), ends)[:num_clients])


def _check_column(column: str, counts: np.ndarray, num_samples: int) -> None:
    """Refuse a column that divides nothing, or tells samples apart."""
    if len(counts) == 1:
        raise ValueError(
            f"partition.column={column} has one value in all {num_samples} samples: name a column that divides them, or set "
            "partition=iid"
        )
    if len(counts) == num_samples:
        raise ValueError(
            f"partition.column={column} has another value in each of {num_samples} samples: name a column whose values have "
            "several, as sites or writers"
        )
