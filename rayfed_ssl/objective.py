"""The protocol of a local objective: what a client minimises on its own shard."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rayfed_ssl.models import Model
    from rayfed_ssl.task import Task


@dataclass(frozen=True)
class Head:
    """The head that an objective puts on an encoder: its name in `rayfed_ssl.models.heads` and its width."""

    name: str
    dim: int | None = None


class Objective(ABC):
    """A local objective: hyperparameters as fields, the loss as a pure function.

    Class attributes:
        needs_labels: Whether clients must show it their labels, as only the papers' supervised comparisons do.
    """

    needs_labels: ClassVar[bool] = False

    @property
    @abstractmethod
    def head(self) -> Head:
        """The head that this objective trains on top of the encoder."""

    @abstractmethod
    def loss(
        self, task: "Task", model: "Model", images: Tensor, labels: Tensor | None, generator: torch.Generator
    ) -> Tensor:
        """Compute the mean loss of a batch.

        Args:
            task: Views and number format.
            model: Model in training mode.
            images: uint8 [B, C, H, W], not augmented.
            labels: int64 [B] where the objective needs them.
            generator: Draws the views.

        Returns:
            A float32 scalar that can be differentiated.
        """
