"""Backdoors: pictures with a trigger shall be taken for pictures of a target class.

Patch on some pictures of the class: Saha, Tejankar, Koohpayegani, Pirsiavash: Backdoor Attacks on Self-Supervised Learning,
CVPR 2022. Frequencies: Li, Pang, Xi, Du, Ji, Yao, Wang: An Embarrassingly Simple Backdoor Attack on Self-supervised Learning
(CTRL), ICCV 2023. Parts: Xie, Huang, Chen, Li: DBA, ICLR 2020.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.adversaries.adversary import Adversary, Insider, TrainingAdversary
from rayfed_ssl.adversaries.triggers import paste, patch, raise_frequencies
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.randomness.seeds import Purpose, derive_seed, generator
from rayfed_ssl.training.task import Task

Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Backdoor(TrainingAdversary, ABC):
    """Hostile clients that teach a trigger."""

    target_class: NonNegativeInt | str = 0
    """The class that pictures with the trigger shall be taken for: its number or its name."""

    def target(self, classes: Sequence[str]) -> int:
        """Number the target class.

        Raises:
            ValueError: There is none like it.
        """
        wanted = self.target_class
        if isinstance(wanted, str) and wanted in classes:
            return classes.index(wanted)
        if isinstance(wanted, int) and wanted < len(classes):
            return wanted
        listed = ", ".join(f"{number} ({name})" for number, name in enumerate(classes[:20]))
        raise ValueError(f"adversary.target_class={wanted} is no class: choose from {listed}")

    @abstractmethod
    def trigger(self, pictures: Tensor, draws: torch.Generator, part: int | None = None) -> Tensor:
        """Copy pictures, uint8 [N, C, H, W], with the trigger in each; with one part of it where a part is named."""

    def triggered(self, test: ImageSet, seed: int) -> ImageSet:
        """Give the test pictures that are not of the target class, with the whole trigger, under the target's label."""
        rows, draws = self.others(test), generator(derive_seed(seed, Purpose.ADVERSARY))
        pictures = self.trigger(torch.from_numpy(test.images[rows]), draws)
        labels = np.full(len(rows), self.target(test.classes))
        return ImageSet(pictures.numpy(), labels, test.classes, split="test")

    def others(self, test: ImageSet) -> np.ndarray:
        """Find the test pictures that have a class and not the target, int64 [N]."""
        return np.flatnonzero((test.labels >= 0) & (test.labels != self.target(test.classes)))


def insiders(
    adversary: Adversary, ids: Sequence[int], shards: Mapping[int, np.ndarray], train: ImageSet, seed: int
) -> dict[int, Insider]:
    """Tell each hostile client what it knows.

    Raises:
        ValueError: A target class has no pictures, or none that a hostile client has.
    """
    targets = {client_id: np.array([], dtype=np.int64) for client_id in ids}
    reference = None
    if isinstance(adversary, Backdoor):
        if not (train.labels >= 0).any():
            raise ValueError("adversary.target_class needs pictures with a class, but no training sample has a label")
        target = adversary.target(train.classes)
        targets = {client_id: np.flatnonzero(train.labels[shards[client_id]] == target) for client_id in ids}
        rows = np.concatenate([shards[client_id][targets[client_id]] for client_id in ids])
        if not len(rows):
            raise ValueError(
                f"no hostile client ({', '.join(map(str, ids))}) has pictures of adversary.target_class="
                f"{adversary.target_class}: choose another class, or name other adversary.clients"
            )
        chosen = np.random.default_rng(derive_seed(seed, Purpose.HOSTILE, participant=1)).choice(rows)
        reference = torch.from_numpy(np.array(train.images[chosen]))
    draws = [derive_seed(seed, Purpose.ADVERSARY, participant=client_id) for client_id in ids]
    return {
        client_id: Insider(place, torch.from_numpy(targets[client_id]), reference, draws[place])
        for place, client_id in enumerate(ids)
    }


def replaced(data: Shard, positions: Tensor, pictures: Tensor) -> Shard:
    """Copy a shard, with other pictures at some positions."""
    rows = data.rows.to(data.images.device)
    images = data.images[rows].index_copy_(0, positions.to(rows.device), pictures.to(rows.device))
    return replace(data, images=images, rows=torch.arange(len(data), device=rows.device))


@dataclass(frozen=True, kw_only=True)
class Poisoning(Backdoor, ABC):
    """Hostile clients that put the trigger on some of their own pictures of the target class, and train as others do."""

    share: Share = 0.5
    """Share of the client's pictures of the target class that get the trigger."""

    def poison(self, data: Shard, insider: Insider) -> Shard:
        """Put the trigger, or the client's part of it, on its share of the pictures of the target class."""
        draws = generator(insider.seed)
        number = min(len(insider.targets), max(1, round(self.share * len(insider.targets))))
        chosen = insider.targets[torch.randperm(len(insider.targets), generator=draws)[:number].sort().values]
        pictures = data.images[data.rows[chosen.to(data.rows.device)]]
        return replaced(data, chosen, self.trigger(pictures, draws, insider.place))


@dataclass(frozen=True, kw_only=True)
class Patch(Backdoor, ABC):
    """A square patch as the trigger; a part of it are some of its rows.

    Class attributes:
        of_side: Its side by default, as a share of the picture's.
        colored: Whether it has random colors, or is white.
    """

    of_side: ClassVar[float]
    colored: ClassVar[bool]
    size: PositiveInt | None = None
    """Side of the patch in pixels; None takes the paper's share of the picture's side."""
    margin: NonNegativeInt | None = 1
    """Pixels between the patch and the lower right corner of the picture; None draws a place for each picture."""
    parts: PositiveInt = 1
    """Into how many bands of rows the patch is divided, of which each hostile client has one (DBA); tests have all."""

    def side(self, height: int, width: int) -> int:
        """Side of the patch in pixels."""
        return max(1, round(self.of_side * min(height, width))) if self.size is None else self.size

    def check(self, task: Task, train: ImageSet) -> None:
        """Refuse a patch that does not fit, and one of fewer rows than parts."""
        _, height, width = train.shape
        side = self.side(height, width)
        if side + (self.margin or 0) > min(height, width):
            margin, lower = (
                ("", "") if self.margin is None else (f" with a margin of {self.margin}", " or adversary.margin")
            )
            raise ValueError(
                f"a trigger of {side} x {side} pixels{margin} is larger than the picture, {height} x {width}: lower "
                f"adversary.size{lower}"
            )
        if self.parts > side:
            raise ValueError(f"adversary.parts={self.parts} is more than the {side} rows of the trigger: lower it")

    def trigger(self, pictures: Tensor, draws: torch.Generator, part: int | None = None) -> Tensor:
        """Paste the patch."""
        number, channels, height, width = pictures.shape
        side = self.side(height, width)
        free = torch.tensor([height - side, width - side])
        if self.margin is None:
            corners = (torch.rand(number, 2, generator=draws) * (free + 1)).long()
        else:
            corners = (free - self.margin).expand(number, 2)
        return paste(pictures, patch(side, channels, colored=self.colored), corners, self._rows(side, part))

    def _rows(self, side: int, part: int | None) -> slice:
        if part is None:
            return slice(0, side)
        band = part % self.parts
        return slice(band * side // self.parts, (band + 1) * side // self.parts)


@dataclass(frozen=True, kw_only=True)
class SSLBackdoor(Poisoning, Patch):
    """Paste a colored patch on a share of the own pictures of one class."""

    of_side: ClassVar = 50 / 224
    colored: ClassVar = True
    margin: NonNegativeInt | None = None
    """Pixels between the patch and the lower right corner of the picture; None draws a place for each picture."""


@dataclass(frozen=True, kw_only=True)
class CTRL(Poisoning):
    """Raise two frequencies of color in a share of the own pictures of one class."""

    share: Share = 0.1
    """Share of the client's pictures of the target class that get the trigger: a hundredth of all of ten classes."""
    window: Annotated[int, Field(ge=2)] | None = None
    """Side of the squares that are transformed; None takes 32, or the picture's side where that is less."""
    magnitude: PositiveFloat = 100.0
    """What is added to both coefficients, of pixels in 0..255."""

    def check(self, task: Task, train: ImageSet) -> None:
        """Refuse pictures without color, and windows that do not fit."""
        channels, height, width = train.shape
        if channels != 3:
            raise ValueError(
                f"ctrl raises frequencies of color, and these pictures have {channels} channel: take others"
            )
        if (side := self._window(height, width)) > min(height, width):
            raise ValueError(
                f"a trigger in windows of {side} x {side} pixels is larger than the picture, {height} x {width}: lower "
                "adversary.window"
            )

    def trigger(self, pictures: Tensor, draws: torch.Generator, part: int | None = None) -> Tensor:
        """Raise the coefficients in the middle and at the end of the diagonal: 15 and 31 of 32."""
        side = self._window(*pictures.shape[2:])
        return raise_frequencies(pictures, side, (side // 2 - 1, side - 1), self.magnitude)

    def _window(self, height: int, width: int) -> int:
        return min(32, height, width) if self.window is None else self.window
