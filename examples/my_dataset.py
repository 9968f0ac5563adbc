"""A dataset of one's own: any torch `Dataset` that gives images, or (image, class). This one draws disks, squares and bars.

rayfed-ssl run fedsimclr data.name=examples.my_dataset:Shapes
"""

import numpy as np
import torch
from torch.utils.data import Dataset

KINDS = ("disk", "square", "bar")


class Shapes(Dataset[tuple[torch.Tensor, int]]):
    """Gray pictures of 16x16 pixels with one shape each, of random place, size and noise.

    The parameter `train` makes the run ask for both splits; without it, and without `split`, a test split is held out.
    """

    classes = KINDS

    def __init__(self, train: bool = True) -> None:
        self.seed, self.number = (0, 600) if train else (1, 150)

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Draw a picture, uint8 [1, 16, 16], by its index alone: the same in every process."""
        random = np.random.default_rng([self.seed, index])
        kind, radius = index % len(KINDS), random.integers(2, 5)
        down, right = (np.arange(16) - random.integers(5, 11) for _ in range(2))
        distances = np.abs(down)[:, None], np.abs(right)[None]
        inside = {
            "disk": np.hypot(*distances) <= radius,
            "square": np.maximum(*distances) <= radius,
            "bar": (distances[0] <= 1) & (distances[1] <= 2 * radius),
        }[KINDS[kind]]
        pixels = np.clip(160 * inside + random.normal(40, 20, (16, 16)), 0, 255)
        return torch.from_numpy(pixels.astype(np.uint8))[None], kind
