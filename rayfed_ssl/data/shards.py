"""A participant's samples: rows of an image set that all participants of a node share in memory."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl.data.label_subset import Choice, label_subset
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.seeds import Purpose, derive_seed
from rayfed_ssl.trees import to_torch


@dataclass(frozen=True)
class Shard:
    """Samples of one participant; method code reads them by `batch`, which can reach the shard's own rows only.

    Attributes:
        images: uint8 [M, C, H, W]; on the CPU the whole memory-mapped set, shared by all shards, never copied.
        rows: Which of the M images belong to this shard, int64 [N].
        labels: Classes of the shard's samples, int64 [N], or None where nobody may see them.
    """

    images: Tensor
    rows: Tensor
    labels: Tensor | None = None

    @classmethod
    def of(
        cls, images: np.ndarray, rows: np.ndarray, device: torch.device | str, labels: np.ndarray | None = None
    ) -> "Shard":
        """Select rows of an image set; on a GPU the selected pixels move there, once and as uint8."""
        pixels, index = to_torch(images), torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        if torch.device(device).type != "cpu":
            pixels, index = pixels[index].to(device), torch.arange(len(rows), device=device)
        chosen = None if labels is None else torch.from_numpy(np.asarray(labels)[rows].astype(np.int64)).to(device)
        return cls(pixels, index, chosen)

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.rows)

    def batch(self, index: Tensor) -> Tensor:
        """Gather samples by their position in the shard, uint8 [len(index), C, H, W]."""
        return self.images.index_select(0, self.rows[index])


def labeled_rows(
    labels: np.ndarray, shards: Mapping[int, np.ndarray], fraction: float, choice: Choice, run_seed: int
) -> dict[int, np.ndarray]:
    """Leave each client that fraction of its rows whose labels it has, as `label_subset` chooses them."""
    labeled = {}
    for client_id, rows in shards.items():
        seed = derive_seed(run_seed, Purpose.LABELS, participant=client_id)
        labeled[client_id] = rows[label_subset(labels[rows], fraction, choice, seed)]
        if (count := len(labeled[client_id])) < 2:
            raise ConfigError(
                f"clients.labeled={fraction:g} leaves client {client_id} {count} of {len(rows)} samples, but it needs 2 to "
                "train: raise it"
            )
    return labeled


def check_shards(shards: Mapping[int, np.ndarray]) -> None:
    """Refuse a partition that leaves a client without a pair of samples to contrast."""
    small = {client_id: len(rows) for client_id, rows in shards.items() if len(rows) < 2}
    if small:
        listed = ", ".join(f"client {client_id} has {count}" for client_id, count in small.items())
        raise ConfigError(
            f"every client needs at least 2 samples, but {listed}: lower clients.number, raise partition.alpha or take "
            "another seed"
        )
