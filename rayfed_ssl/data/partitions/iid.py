"""Partitions without label skew of their own."""

from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat

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
    Field(description="The column of the data (parquet, hub) whose values divide the samples: integers or strings."),
]


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


def by_column(labels: np.ndarray, num_clients: int, seed: int, groups: np.ndarray, *, column: Column) -> Shards:
    """Give each client the samples of one value of a column, or of as many values as the others, give or take one.

    With as many values as clients, client k has the k-th in ascending order. With more, values are dealt at random.
    """
    values = np.unique(groups)
    if len(values) < num_clients:
        raise ValueError(
            f"partition.column={column} has {len(values)} values for clients.number={num_clients}: set "
            f"clients.number={len(values)} or lower"
        )
    if len(values) > num_clients:
        values = stream("column", seed).permutation(values)
    return sorted_shards([np.flatnonzero(np.isin(groups, part)) for part in np.array_split(values, num_clients)])
