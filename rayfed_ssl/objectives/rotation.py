"""Rotation: tell by how many quarter turns an image was rotated.

Gidaris, Singh, Komodakis: Unsupervised Representation Learning by Predicting Image Rotations, ICLR 2018 (RotNet). "Code"
below is the authors'. FedCA's FedPR and FCL's FedRot are FedAvg with this objective. FedCA rotates "samples by random
multiples of 90 degrees", `turns="one"`; FCL cites RotNet, which shows all four.

Symbols: y quarter turns in 0..3; B samples a step; S side of the images.

Deviations:
- None of the three papers says what precedes the rotation. As in the code, images are shifted by up to 4 of 32 pixels and
  mirrored: colors and sizes stay, for small boxes often show nothing that has an upright position. Other sizes are
  shifted by an eighth of the side (the code crops 224 of 256 pixels), and images are mirrored as often as in the run's
  views: digits never. `augmentation="views"` takes the run's first view instead, for comparisons on equal views, "none" the
  image as it is (Orchestra's code, akhilmathurs/orchestra).
- One linear layer on the encoder's features tells the turns; RotNet's last block belongs to its classifier. In Orchestra's
  code it stands on a projector (`projector="orchestra"`).
- Turns are anticlockwise.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.data.augmentation import rotate_quarter_turns
from rayfed_ssl.data.view_recipes import OwnView, ViewRecipe
from rayfed_ssl.models import Model
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, PerSample, StepOutput
from rayfed_ssl.training.state_parts import Rule


def four_rotations(images: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate images [B, C, S, S] by 0, 1, 2 and 3 quarter turns (RotNet, Eq. 2).

    Returns:
        All upright images, then all turned once, and so on, [4 B, C, S, S]; and their turns y, int64 [4 B].
    """
    turns = torch.arange(4, device=images.device).repeat_interleave(len(images))
    return torch.cat([images.rot90(quarter, (2, 3)) for quarter in range(4)]), turns


def shifted_and_mirrored(views: ViewRecipe, size: int) -> ViewRecipe:
    """Make RotNet's recipe: images padded with black by an eighth of the side and cut out anywhere (code)."""
    return ViewRecipe(
        crop_padding=max(1, size // 8), crop_fill="constant", flip=views.flip, mean=views.mean, std=views.std
    )


@dataclass(frozen=True, kw_only=True)
class Rotation(PerSample):
    """Prediction of quarter turns."""

    parts: ClassVar[Mapping[str, Rule]] = {}
    fixed_head: ClassVar[bool] = True
    compares_views: ClassVar[bool] = False
    augmentation: Literal["rotnet", "views", "none"] = "rotnet"
    """What precedes the rotation: shift and mirror ("rotnet"), the run's first view ("views") or nothing ("none")."""
    turns: Literal["all", "one"] = "all"
    """Whether a step shows "all" four rotations of each image (RotNet) or "one" at random (FedCA)."""
    projector: Literal["linear", "orchestra"] = "linear"
    """What precedes the layer that tells rotations: nothing ("linear") or 512-512 with batch-norm after both layers
    ("orchestra").
    """

    @property
    def head(self) -> Head:
        """One linear layer from features, or what a projector makes of them, to the scores of four rotations."""
        return Head("linear" if self.projector == "linear" else "orchestra-rotation", 4)

    @property
    def num_views(self) -> int:
        """One view, or all four rotations of it."""
        return 4 if self.turns == "all" else 1

    def check(self, context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
        """Refuse a user's views that would not be drawn."""
        if self.augmentation != "views" and isinstance(own := context.views.first, OwnView):
            raise ValueError(
                f"objective.augmentation={self.augmentation} draws no training.views={own.function}: set "
                "objective.augmentation=views, or leave training.views out"
            )
        return ()

    def chance_loss(self, batch: int) -> float:
        """The logarithm of 4."""
        return math.log(4)

    def inputs(self, context: Context, batch: Batch, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw a view of each image, and how far it is turned where that is one rotation."""
        first = context.views.first
        if self.augmentation == "none":
            views = context.plain(batch.images)
        else:
            recipe = first if self.augmentation == "views" else shifted_and_mirrored(first, context.size)
            views = context.augment(batch.images, recipe, generator)
        if self.turns == "all":
            return (views,)
        turns = draw(torch.randint, 4, (len(views),), generator=generator, device=views.device)
        return rotate_quarter_turns(views, turns), turns

    def loss_of(self, context: Context, model: Model, *inputs: Tensor) -> StepOutput:
        """Classify the rotations: all four of each image in one batch of 4 B (RotNet, Eq. 2), or one of each."""
        views, turns = four_rotations(inputs[0]) if self.turns == "all" else inputs
        with context.autocast():
            _, scores = model(views)
        return StepOutput(F.cross_entropy(scores, turns), scores[: len(inputs[0])])
