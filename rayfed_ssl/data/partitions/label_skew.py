"""Partitions whose clients differ in their classes."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from rayfed_ssl.data.partitions.rows import (
    MAX_DRAWS,
    MinSamples,
    Shards,
    check_clients,
    cut,
    deal,
    rows_by_class,
    sorted_shards,
    stream,
    too_skewed,
)

Alpha = Annotated[
    PositiveFloat,
    Field(description="Concentration; 100 is nearly IID, 0.01 gives most classes to one client each."),
]
MinShare = Annotated[
    NonNegativeFloat,
    Field(description="Proportions are drawn again until each client's sum to min_share / K; the authors use 0.5."),
]
PerClient = Annotated[PositiveInt, Field(description="Pieces of the samples sorted by class that each client gets.")]
Classes = Annotated[PositiveInt, Field(description="Classes per client.")]

_MAX_SCALED = 10
_MAX_SCALINGS = 10_000


def dirichlet(labels: np.ndarray, num_clients: int, alpha: Alpha, seed: int, *, min_share: MinShare = 0.5) -> Shards:
    """Divide each class by proportions drawn from Dir(alpha, ..., alpha) over the clients (FLESD's sampling.py).

    All proportions d [C, K] are drawn again until every client k has sum_c d[c, k] > min_share / K. That sum is C / K
    on average, so the rule only keeps a client from being left with next to nothing: shards differ a lot in size.
    """
    check_clients(labels, num_clients)
    rng = stream("dirichlet", seed)
    classes = rows_by_class(labels, "dirichlet")
    sizes = np.array([len(rows) for rows in classes])
    for _ in range(MAX_DRAWS):
        proportions = rng.dirichlet(np.full(num_clients, alpha), len(classes))
        counts = (sizes[:, None] * proportions).astype(np.int64)
        # FLESD has only the first condition; the second follows from it unless the dataset is tiny.
        if proportions.sum(0).min() > min_share / num_clients and counts.sum(0).min() > 0:
            break
    else:
        raise ValueError(
            f"none of {MAX_DRAWS} Dirichlet draws gave each of {num_clients} clients a share above {min_share}/"
            f"{num_clients} of a class (alpha {alpha}, {len(classes)} classes): raise partition.alpha, "
            "or lower clients.number or partition.min_share"
        )
    return deal(rng, classes, counts)


def dirichlet_min_samples(
    labels: np.ndarray, num_clients: int, alpha: Alpha, seed: int, *, min_samples: MinSamples = 10
) -> Shards:
    """Divide each class by proportions from Dir(alpha, ..., alpha), none of it to clients that have N / K samples.

    FedMA (2020), NIID-Bench (2022) and EasyFL (2022, the code of FedU and FedEMA). Classes are divided one after the
    other: proportions of clients that hold N / K samples or more become 0, the others are scaled to sum to 1, and the
    class is cut at the truncated cumulative sums. All of it is drawn again until every client has `min_samples`.
    """
    check_clients(labels, num_clients, min_samples)
    rng = stream("dirichlet_min_samples", seed)
    classes = rows_by_class(labels, "dirichlet_min_samples")
    for _ in range(MAX_DRAWS):
        counts = _capped_counts(rng, [len(rows) for rows in classes], num_clients, alpha)
        if counts.sum(0).min() >= min_samples:
            return deal(rng, classes, counts)
    raise too_skewed(num_clients, alpha, min_samples)


def _capped_counts(rng: np.random.Generator, class_sizes: Sequence[int], num_clients: int, alpha: float) -> np.ndarray:
    """Draw the samples of each class and client, int64 [C, K]; zeros where a small alpha underflows."""
    counts = np.zeros((len(class_sizes), num_clients), np.int64)
    for number, size in enumerate(class_sizes):
        proportions = rng.dirichlet(np.full(num_clients, alpha)) * (counts.sum(0) < sum(class_sizes) / num_clients)
        if not proportions.sum():
            return np.zeros_like(counts)
        counts[number] = cut(size, proportions)
    return counts


def dirichlet_balanced(labels: np.ndarray, num_clients: int, alpha: Alpha, seed: int) -> Shards:
    """Divide classes by proportions from Dir(alpha, ..., alpha) that are scaled so that clients have equal sizes.

    Orchestra (2022), sampler of its authors' code. The draws [C, K] are scaled by Sinkhorn's iteration: each class then
    sums to its number of samples and each client to N / K. Rounding to whole samples keeps both sums, so that no sample
    is left out and sizes differ by at most one; the authors truncate, and drop up to C samples a client.
    """
    check_clients(labels, num_clients)
    rng = stream("dirichlet_balanced", seed)
    classes = rows_by_class(labels, "dirichlet_balanced")
    class_sizes = np.array([len(rows) for rows in classes])
    client_sizes = len(labels) // num_clients + (np.arange(num_clients) < len(labels) % num_clients)
    for _ in range(_MAX_SCALED):
        shares = balance(rng.dirichlet(np.full(num_clients, alpha), len(classes)), class_sizes, client_sizes)
        if shares is not None:
            return deal(rng, classes, _rounded(shares, class_sizes, client_sizes))
    raise ValueError(
        f"none of {_MAX_SCALED} Dirichlet draws could be scaled to equal sizes of {num_clients} clients (alpha {alpha}): "
        "raise partition.alpha"
    )


def balance(proportions: np.ndarray, class_sizes: np.ndarray, client_sizes: np.ndarray) -> np.ndarray | None:
    """Scale rows and columns in turn until they have the given sums (Sinkhorn and Knopp, 1967).

    Args:
        proportions: Draws, [C, K]; below 1e-30 they count as 1e-30: a matrix with zeros may have no solution.
        class_sizes: Sums of the rows, [C].
        client_sizes: Sums of the columns, [K], the same in total.

    Returns:
        Shares in samples, [C, K], rows exact and columns within half a sample; None where that takes too long.
    """
    shares: np.ndarray = np.maximum(proportions, 1e-30)
    for _ in range(_MAX_SCALINGS):
        shares = shares * (client_sizes / shares.sum(0))
        shares = shares * (class_sizes / shares.sum(1))[:, None]
        if np.abs(shares.sum(0) - client_sizes).max() < 0.5:
            return shares
    return None


def _rounded(shares: np.ndarray, class_sizes: np.ndarray, client_sizes: np.ndarray) -> np.ndarray:
    """Round shares [C, K] to int64 with these sums: down, then one up each by largest remainders, then where sums lack."""
    counts: np.ndarray = np.floor(shares).astype(np.int64)
    of_class, of_client = class_sizes - counts.sum(1), client_sizes - counts.sum(0)
    order = np.argsort(counts - shares, axis=None, kind="stable")
    for most in (1, class_sizes.max()):
        for label, client in zip(*np.unravel_index(order, shares.shape), strict=True):
            more = min(of_class[label], of_client[client], most)
            counts[label, client] += more
            of_class[label] -= more
            of_client[client] -= more
    return counts


def shards(labels: np.ndarray, num_clients: int, seed: int, *, shards_per_client: PerClient = 2) -> Shards:
    """Sort samples by class, divide them into K * shards_per_client pieces of equal size, and give each client its number.

    McMahan et al. (2017), with 100 clients and 2 pieces each. Sizes of pieces differ by at most one, and no sample is left
    out. Samples of one class keep their order.
    """
    check_clients(labels, num_clients, shards_per_client)
    by_class = np.concatenate(rows_by_class(labels, "shards"))
    pieces = np.array_split(by_class, num_clients * shards_per_client)
    drawn = stream("shards", seed).permutation(len(pieces)).reshape(num_clients, shards_per_client)
    return sorted_shards([np.concatenate([pieces[number] for number in own]) for own in drawn])


def classes_per_client(labels: np.ndarray, num_clients: int, classes: Classes, seed: int) -> Shards:
    """Give each client samples of exactly `classes` classes, held as evenly as can be (FedCA, 2020: 2 of 10, 20 of 100).

    A class held by several clients is divided among them equally. Every class is held by someone if
    num_clients * classes is at least the number of classes; the samples of classes that nobody holds are dropped.
    """
    check_clients(labels, num_clients)
    by_class = rows_by_class(labels, "classes_per_client")
    if not 1 <= classes <= len(by_class):
        raise ValueError(
            f"each client is to hold {classes} classes, but there are {len(by_class)}: lower partition.classes"
        )
    rng = stream("classes_per_client", seed)
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
                f"class {labels[rows[0]]} has {len(rows)} samples for {len(clients)} clients: lower "
                "partition.classes or clients.number"
            )
        for client, piece in zip(clients, np.array_split(rng.permutation(rows), max(len(clients), 1)), strict=False):
            pieces[client].append(piece)
    return sorted_shards([np.concatenate(piece) for piece in pieces])
