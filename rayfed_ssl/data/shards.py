"""A participant's samples: rows of an image set that all participants of a node share in memory."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl.data.label_subset import Choice, label_subset
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.randomness.draws import draw, move
from rayfed_ssl.randomness.seeds import Purpose, derive_seed
from rayfed_ssl.trees import to_torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shard:
    """Samples of one participant; method code reads them by `batches`, which can reach the shard's own rows only.

    Attributes:
        images: uint8 [M, C, H, W]; on the CPU the whole memory-mapped set, shared by all shards, never copied.
        rows: Which of the M images belong to this shard, int64 [N]; where the images are.
        labels: Classes of the shard's samples, int64 [N], on `device`, or None where nobody may see them.
        device: Where batches are wanted; images may be on the CPU all the same.
    """

    images: Tensor
    rows: Tensor
    labels: Tensor | None = None
    device: torch.device = CPU

    @classmethod
    def of(
        cls,
        images: np.ndarray,
        rows: np.ndarray,
        device: torch.device | str,
        labels: np.ndarray | None = None,
        *,
        resident: bool = True,
    ) -> "Shard":
        """Select rows of an image set.

        Args:
            images: uint8 [M, C, H, W].
            rows: int64 [N].
            device: Where batches are wanted.
            labels: Classes of all M images, or None.
            resident: Whether a GPU gets the selected pixels once, as uint8; else each batch is copied to it.
        """
        pixels, index = to_torch(images), torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        device = torch.device(device)
        if device.type != "cpu" and resident:
            pixels, index = move(pixels[index], device), torch.arange(len(rows), device=device)
        chosen = None if labels is None else move(torch.from_numpy(np.asarray(labels)[rows].astype(np.int64)), device)
        return cls(pixels, index, chosen, device)

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.rows)

    @property
    def is_resident(self) -> bool:
        """Whether the pixels are where batches are wanted; batches of other shards are found by the host."""
        return self.images.device.type == self.device.type  # "cuda" and "cuda:0" are not equal

    def batch(self, index: Tensor) -> Tensor:
        """Gather samples by their position in the shard, uint8 [len(index), C, H, W] on the shard's device."""
        if index.device != self.rows.device:
            index = move(index, self.rows.device) if index.device == CPU else index.cpu()
        images = self.images.index_select(0, self.rows[index])
        return images if self.is_resident else move(images, self.device)

    def batches(self, positions: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Gather batches; all positions move to the device in one transfer.

        Args:
            positions: Of each batch's samples in the shard, int64 [B] on the CPU.

        Yields:
            A batch's positions, on the device, and its images, uint8 [B, C, H, W].
        """
        on_device = move(torch.cat(list(positions)), self.device).split([len(index) for index in positions])
        for index, on_device_index in zip(positions, on_device, strict=True):
            yield on_device_index, self.batch(on_device_index if self.is_resident else index)

    def draw_samples(self, number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw random samples, all of them if there are fewer: positions and images, as `batches` gives them."""
        if self.is_resident:
            on_device = index = draw(torch.randperm, len(self), generator=generator, device=self.device)[:number]
        else:
            index = torch.randperm(len(self), generator=generator)[:number]
            on_device = move(index, self.device)
        return on_device, self.batch(index)

    def select(self, index: Tensor) -> "Shard":
        """Leave the samples at some positions, int64 on the CPU."""
        labels = None if self.labels is None else self.labels[move(index, self.labels.device)]
        return replace(self, rows=self.rows[move(index, self.rows.device)], labels=labels)


class ResidentShards:
    """Shards whose pixels stay on a GPU while they fit; the least recently used go first.

    Args:
        limit: Gives the bytes of pixels that stay, asked once a GPU is in use; a larger shard is read from the CPU batch by
            batch.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._ask = limit
        self._held: OrderedDict[Hashable, Shard] = OrderedDict()

    @cached_property
    def limit(self) -> int:
        """Bytes of pixels that stay."""
        return self._ask()

    def shard(
        self,
        name: Hashable,
        images: np.ndarray,
        rows: np.ndarray,
        device: torch.device,
        labels: np.ndarray | None = None,
        beside: Hashable = None,
    ) -> Shard:
        """Give the shard of a name, which means the same samples each time; other arguments as of `Shard.of`.

        `beside` names the shard that was asked for last, which is in use as well and so stays.
        """
        size = len(rows) * images[0].nbytes
        kept = self._held[beside].images.nbytes if beside in self._held else 0
        if device.type == "cpu" or kept + size > self.limit:
            return Shard.of(images, rows, device, labels, resident=False)
        if name not in self._held:
            while sum(held.images.nbytes for held in self._held.values()) + size > self.limit:
                self._held.popitem(last=False)
            self._held[name] = Shard.of(images, rows, device, labels)
        self._held.move_to_end(name)
        return self._held[name]


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
        parts = [f"client {client_id} has {count}" for client_id, count in small.items()]
        listed = ", ".join(parts[:3] + [f"{len(parts) - 3:,} more have too few"] * (len(parts) > 3))
        raise ConfigError(
            f"every client needs at least 2 samples, but {listed}: lower clients.number, raise partition.alpha, take "
            "another partition or another seed"
        )
