"""Partitions: how a training set's samples are divided among clients.

Every partition is a pure function of the labels, int64 [N] with -1 for none, of the number of clients K and of a seed.
It returns one shard per client, in ascending client id: the rows of its samples, sorted, int64. No sample is in two
shards. The types of its other parameters say their ranges and what they mean. docs/partitions.md compares them.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import numpy as np

from rayfed_ssl.data.partitions.iid import by_column, iid, pooled, quantity_skew
from rayfed_ssl.data.partitions.index_file import from_file
from rayfed_ssl.data.partitions.label_skew import (
    classes_per_client,
    dirichlet,
    dirichlet_balanced,
    dirichlet_min_samples,
    shards,
)
from rayfed_ssl.data.partitions.rows import Rows, Shards, random_rows, sorted_shards, stratified_split, stream
from rayfed_ssl.data.partitions.skew import Skew, count_samples, measure_skew, with_unlabeled
from rayfed_ssl.foreign import plugins

__all__ = [
    "GIVEN",
    "PARTITIONS",
    "Rows",
    "Shards",
    "Skew",
    "by_column",
    "classes_per_client",
    "count_samples",
    "dirichlet",
    "dirichlet_balanced",
    "dirichlet_min_samples",
    "from_file",
    "iid",
    "measure_skew",
    "partition",
    "pooled",
    "quantity_skew",
    "random_rows",
    "shards",
    "stratified_split",
    "with_unlabeled",
]

PARTITIONS: dict[str, Callable[..., Sequence[np.ndarray]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "classes_per_client": classes_per_client,
    "dirichlet_balanced": dirichlet_balanced,
    "dirichlet_min_samples": dirichlet_min_samples,
    "shards": shards,
    "quantity_skew": quantity_skew,
    "file": from_file,
    "column": by_column,
    "pooled": pooled,
}
"""Partitions by name."""

GIVEN = ("labels", "num_clients", "seed", "generator", "groups", "group_names")
"""Parameters that a partition gets from the run; all others are its fields."""


def check_partition(name: str, function: Any) -> Mapping[str, Parameter]:
    """Give a partition's parameters; raises ConfigError for what is none, before it is called."""
    return plugins.parameters("partition", name, function, ["labels"])


def partition(
    name: str,
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    *,
    groups: np.ndarray | None = None,
    group_names: Sequence[str] = (),
    **fields: Any,
) -> Shards:
    """Divide samples with a partition by name; it gets those of the parameters in `GIVEN` that it has.

    `groups` are what samples belong to, int64 [N], where a column of the data was asked for, and `group_names` its values.
    Its own fields, as alpha of dirichlet, come by keyword. An error says which rows are out of range or in two shards.
    """
    function = plugins.find("partition", name, PARTITIONS)
    parameters = check_partition(name, function)
    given = {"labels": labels, "num_clients": num_clients, "seed": seed, "generator": stream(name, seed)}
    given |= {"groups": groups, "group_names": group_names}
    with plugins.named_errors("partition", name, PARTITIONS):
        shards = function(**{key: value for key, value in given.items() if key in parameters}, **fields)
    try:
        shards = [np.asarray(shard) for shard in shards]
        if odd := [shard for shard in shards if shard.size and (shard.ndim != 1 or shard.dtype.kind not in "iu")]:
            raise ValueError(f"got {odd[0].dtype} of shape {list(odd[0].shape)}")
        shards = [shard.astype(np.int64) for shard in shards]
    except (TypeError, ValueError) as error:
        raise ValueError(f"partition {name} must give a list of row numbers for each client: {error}") from error
    if name not in PARTITIONS and len(shards) != num_clients:
        raise ValueError(
            f"partition {name} must give a list of rows for each of the {num_clients} clients, got {len(shards)} lists"
        )
    rows = np.concatenate(shards or [np.empty(0, np.int64)])
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(labels):
        raise ValueError(
            f"partition {name} must give rows from 0 to {len(labels) - 1}, got {rows.min()} to {rows.max()}"
        )
    if len(np.unique(rows)) < len(rows):
        raise ValueError(
            f"partition {name} gives {len(rows) - len(np.unique(rows))} rows more than once: give each to one"
        )
    return sorted_shards(shards)
