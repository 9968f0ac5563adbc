"""Samples of a client that it does not train on.

By those of `hold_out` an audit can tell what an upload says of the others; those of `set_apart` score each client.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rayfed_ssl.data.partitions import stratified_split
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.randomness.seeds import Purpose, derive_seed


@dataclass(frozen=True)
class HeldOut:
    """What coins decided of one client's samples; rows are sorted and count in the training set, int64.

    Attributes:
        rows: Samples that the client does not train on.
        canaries: Samples of which a fair coin decided, trained on or not.
    """

    rows: np.ndarray
    canaries: np.ndarray


def hold_out(
    shards: Mapping[int, np.ndarray], fraction: float | None, canaries: int, run_seed: int
) -> tuple[dict[int, np.ndarray], dict[int, HeldOut]]:
    """Flip a coin for each sample of each client: canaries stay out with probability 1/2, others with `fraction`.

    Returns:
        The rows that clients train on, and what was held out.

    Raises:
        ConfigError: A client has fewer samples than canaries.
    """
    trained, held_out = {}, {}
    smallest = min(shards, key=lambda client_id: len(shards[client_id]))
    if canaries > len(shards[smallest]):
        raise ConfigError(
            f"privacy.canaries={canaries} exceeds client {smallest}'s {len(shards[smallest])} samples, the fewest of a "
            "client: set fewer canaries"
        )
    for client_id, rows in shards.items():
        rng = np.random.default_rng(derive_seed(run_seed, Purpose.HELD_OUT, participant=client_id))
        is_canary = np.zeros(len(rows), dtype=bool)
        is_canary[rng.permutation(len(rows))[:canaries]] = True
        out = rng.random(len(rows)) < np.where(is_canary, 0.5, fraction or 0.0)
        if (left := int((~out).sum())) < 2:
            raise ConfigError(
                f"privacy.held_out and privacy.canaries leave client {client_id} {left} of {len(rows)} samples, but it "
                "needs 2 to train: lower them"
            )
        trained[client_id] = rows[~out]
        held_out[client_id] = HeldOut(np.sort(rows[out]), np.sort(rows[is_canary]))
    return trained, held_out


LEAST_TEST = 2
"""Samples of a test part: of a single one a score is 0 or 1."""


def set_apart(
    labels: np.ndarray, shards: Mapping[int, np.ndarray], fraction: float, run_seed: int
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Set that fraction of each client's labeled samples apart, rounded up, with the proportions of its classes.

    What a client sets apart follows from its own samples and the seed alone. Where it would be fewer than `LEAST_TEST`, the
    client trains on all of its samples and has no test part.

    Returns:
        The rows that clients train on, and those of their test parts, sorted, int64.

    Raises:
        ConfigError: A client would keep too few to train on, or no client has a test part.
    """
    trained, tested = dict(shards), dict[int, np.ndarray]()
    for client_id, rows in shards.items():
        labeled = np.flatnonzero(labels[rows] >= 0)
        if (number := math.ceil(fraction * len(labeled) - 1e-9)) < LEAST_TEST:
            continue
        if len(rows) - number < 2 or number == len(labeled):
            raise ConfigError(
                f"clients.test_fraction={fraction:g} takes {number} of client {client_id}'s {len(rows)} samples, but it "
                "needs 2 to train: lower it"
            )
        seed = derive_seed(run_seed, Purpose.OWN_TEST, participant=client_id)
        tested[client_id] = rows[labeled[stratified_split(labels[rows[labeled]], fraction, seed)[1]]]
        trained[client_id] = np.setdiff1d(rows, tested[client_id])
    if not tested:
        raise ConfigError(
            f"clients.test_fraction={fraction:g} gives no client {LEAST_TEST} labeled samples to test on: raise it, lower "
            "clients.number or take data with classes"
        )
    return trained, tested
