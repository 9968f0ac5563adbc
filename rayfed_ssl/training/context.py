"""What objectives may use of a run: the settings of local training, and how images and models are treated in it."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from rayfed_ssl.data.augmentation import augment, normalize
from rayfed_ssl.data.view_recipes import SmallCrops, ViewRecipe, Views
from rayfed_ssl.models import Model
from rayfed_ssl.models.precision import Precision, autocast


@torch.no_grad()
def update_momentum(slow: Model, fast: Model, zeta: float) -> None:
    """Update a target by an exponential moving average (EMA) of encoder and projector: mu <- zeta mu + (1 - zeta) theta.

    What both share, as they do what adapters leave frozen, stays as it is.
    """
    ours: list[Tensor] = [*slow.encoder.parameters(), *slow.projector.parameters()]
    theirs: list[Tensor] = [*fast.encoder.parameters(), *fast.projector.parameters()]
    moving = [(our, their) for our, their in zip(ours, theirs, strict=True) if our is not their]
    torch._foreach_lerp_([our for our, _ in moving], [their for _, their in moving], 1 - zeta)


def cohort_size(fraction: float, num_clients: int) -> int:
    """Count the clients that take part in a round: the nearest whole number, at least one."""
    return max(1, int(fraction * num_clients + 0.5))


@dataclass(frozen=True, kw_only=True)
class Context(ABC):
    """Settings of local training.

    Attributes:
        channels: C of the images.
        size: Side of the square views in pixels, at most that of the images.
        views: Recipes of a sample's two views.
        rounds: T, for schedules.
        fraction: C, the part of the clients that takes part in a round.
        num_clients: K.
        epochs: E_local.
        batch: Samples a step.
        drop_last: Whether an incomplete last batch is left out.
        device: Where models and batches live.
        precision: Number format and memory layout of the forward pass.
        wrong_positives: Whether second views are of other pictures, as hostile clients may draw them.
        small_crops: Views beside the two, with their size, or None.
    """

    channels: int
    size: int
    views: Views
    rounds: int
    fraction: float = 1.0
    num_clients: int = 1
    epochs: int
    batch: int
    drop_last: bool = False
    device: torch.device
    precision: Precision
    wrong_positives: bool = False
    small_crops: SmallCrops | None = None

    @abstractmethod
    def twin(self, model: Model) -> Model:
        """Copy a model's encoder and projector, in training mode and without gradients: a target to move slowly."""

    @property
    def cohort_size(self) -> int:
        """Number of clients that take part in a round."""
        return cohort_size(self.fraction, self.num_clients)

    def autocast(self) -> AbstractContextManager[None]:
        """Enter the number format of forward passes; losses are computed outside, in float32."""
        return autocast(self.precision, self.device)

    def augment(
        self, images: Tensor, recipe: ViewRecipe, generator: torch.Generator, size: int | None = None
    ) -> Tensor:
        """Draw one random view of each image: uint8 [B, C, H, W] to normalized float [B, C, size, size]."""
        return augment(images, recipe, generator, size=size or self.size)

    def two_views(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the first and the second view of each image, as `augment` does."""
        first, second = self.stacked_views(images, generator).chunk(2)
        return first, second

    def stacked_views(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw all first and then all second views, float [2 B, C, size, size]; in one pass if recipes are equal."""
        first, second = self.views.first, self.views.second
        if first == second:
            return self.augment(torch.cat([images, self.positives(images)]), first, generator)
        return torch.cat(
            [self.augment(images, first, generator), self.augment(self.positives(images), second, generator)]
        )

    def small_views(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw n small crops of each image, all first, then all second ones and so on: float [n B, C, s, s]; () without."""
        if (crops := self.small_crops) is None:
            return ()
        repeated = self.positives(images).repeat(crops.number, 1, 1, 1)
        return (self.augment(repeated, crops.recipe(self.views), generator, crops.size),)

    @property
    def small_area(self) -> float:
        """Pixels of a sample's small crops, in views of full size."""
        crops = self.small_crops
        return crops.number * ((crops.size or self.size) / self.size) ** 2 if crops else 0

    def positives(self, images: Tensor) -> Tensor:
        """Give the images that second views are of: the same, or each one's neighbor."""
        return images.roll(1, 0) if self.wrong_positives else images

    def plain(self, images: Tensor) -> Tensor:
        """Normalize images without augmentation, or their centers: uint8 [B, C, H, W] to float [B, C, size, size]."""
        return normalize(images, self.views.first, size=self.size)
