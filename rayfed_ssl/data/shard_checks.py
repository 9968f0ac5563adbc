"""Which of a shard's samples a client trains on, and whether they are enough."""

from collections.abc import Mapping

import numpy as np

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.image_store import Dataset
from rayfed_ssl.data.labels import label_subset
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.seeds import Purpose, derive_seed


def known_rows(config: Config, dataset: Dataset, shards: Mapping[int, np.ndarray]) -> Mapping[int, np.ndarray]:
    """Leave each client the samples whose labels it knows, where the run has few."""
    fraction = config.clients.labeled
    if fraction is None:
        return shards
    known = {}
    for client_id, rows in shards.items():
        seed = derive_seed(config.seed, Purpose.LABELS, participant=client_id)
        chosen = label_subset(dataset.train.labels[rows], fraction, config.clients.label_choice, seed)
        known[client_id] = rows[chosen]
        if len(chosen) < 2:
            raise ConfigError(
                f"clients.labeled={fraction:g} leaves client {client_id} {len(chosen)} of {len(rows)} samples, but it "
                "needs 2 to train: raise it"
            )
    return known


def check_shards(shards: Mapping[int, np.ndarray]) -> None:
    """Refuse a partition that leaves a client without a pair of samples to contrast."""
    small = {client_id: len(rows) for client_id, rows in shards.items() if len(rows) < 2}
    if small:
        listed = ", ".join(f"client {client_id} has {count}" for client_id, count in small.items())
        raise ConfigError(
            f"every client needs at least 2 samples, but {listed}: lower clients.number, raise partition.alpha or take "
            "another seed"
        )
