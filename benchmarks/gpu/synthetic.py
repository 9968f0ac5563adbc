"""Images in the shape of CIFAR-10, made from a seed: ten classes that an encoder can learn to tell apart."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.data.image_store import Block, write_store

SEED = 0
CLASSES = 10
PATTERNS = 4
"""Patterns of a class; an image shows one of them, shifted, mirrored, weaker or stronger, under noise."""

CHUNK = 5_000


def write(path: Path, num_train: int, num_test: int) -> None:
    """Write a store of 3 x 32 x 32 images for `data.name=store`."""
    generator = torch.Generator().manual_seed(SEED)
    patterns = torch.randn(CLASSES, PATTERNS, 3, 6, 6, generator=generator)
    classes = tuple(f"class {number}" for number in range(CLASSES))
    train, test = (_blocks(number, patterns, generator) for number in (num_train, num_test))
    write_store(path, name="synthetic", classes=classes, train=train, test=test)


def _blocks(number: int, patterns: Tensor, generator: torch.Generator) -> list[Block]:
    labels = torch.arange(number) % CLASSES
    return [
        Block(_images(part, patterns, generator).numpy(), part.numpy())
        for part in labels[torch.randperm(number, generator=generator)].split(CHUNK)
    ]


def _images(labels: Tensor, patterns: Tensor, generator: torch.Generator) -> Tensor:
    """Draw images of the given classes, uint8 [N, 3, 32, 32]."""

    def noise(side: int) -> Tensor:
        return torch.randn(num, 3, side, side, generator=generator)

    num = len(labels)
    chosen = patterns[labels, torch.randint(PATTERNS, (num,), generator=generator)]
    large = F.interpolate(chosen, size=(40, 40), mode="bilinear")
    top, left = torch.randint(0, 9, (2, num, 1), generator=generator)
    rows, columns = top + torch.arange(32), left + torch.arange(32)
    images = large.gather(2, rows[:, None, :, None].expand(-1, 3, -1, 40))
    images = images.gather(3, columns[:, None, None, :].expand(-1, 3, 32, -1))
    mirrored = torch.rand(num, 1, 1, 1, generator=generator) < 0.5
    images = torch.where(mirrored, images.flip(3), images)
    images = images * (0.5 + torch.rand(num, 1, 1, 1, generator=generator))
    images = images + 0.5 * F.interpolate(noise(4), size=(32, 32), mode="bilinear") + 0.2 * noise(32)
    return (128 + 48 * images).clamp(0, 255).to(torch.uint8)
