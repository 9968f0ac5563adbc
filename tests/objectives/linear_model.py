"""Linear models on raw pixels, all that a loss needs and nothing that hides a mistake, and their passes in float64."""

import torch
from torch import Tensor, nn

from rayfed_ssl.models import Model
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.task import Task
from tests.tensors import seeded

IMAGES = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8, generator=seeded(1))


def batch_of(num: int = 6, labels: Tensor | None = None) -> Batch:
    return Batch(IMAGES[:num], torch.arange(num), labels, 0)


def linear_model(dim: int, *, seed: int = 3, norm: bool = False, **heads: nn.Module) -> Model:
    """A linear projector; with batch-norm after it, each view's own statistics show."""
    torch.manual_seed(seed)
    layer = nn.Linear(64, dim)
    projector = nn.Sequential(layer, nn.BatchNorm1d(dim, affine=False)) if norm else layer
    return Model(nn.Flatten(), projector, dim, heads)


def linear(pixels: Tensor, layer: nn.Module) -> Tensor:
    assert isinstance(layer, nn.Linear)
    return pixels @ layer.weight.detach().double().T + layer.bias.detach().double()


def views(task: Task, num: int = 6) -> list[Tensor]:
    """The pixels of both views, [num, 64], drawn one after the other as a loss with the generator `seeded(2)` does."""
    generator = seeded(2)
    recipes = (task.views.first, task.views.second)
    return [task.augment(IMAGES[:num], recipe, generator).flatten(1).double() for recipe in recipes]
