"""What tests of single steps are made of: a client, its shard, and a linear model that is projected by hand."""

import torch
from torch import Tensor, nn

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.method import Client
from rayfed_ssl.models import Model
from rayfed_ssl.training.task import Task
from tests.tensors import seeded


def client_of(task: Task, data: Shard | None = None, public: Shard | None = None, round: int = 2) -> Client:
    """Make client 0, whose two generators are one, from seed 0."""
    return Client(0, round, data, public, task, *[seeded()] * 2)


def shard_of(federation: Federation, client_id: int, num: int | None = None) -> Shard:
    """Take the first samples of a client, by default all."""
    return Shard.of(federation.dataset.train.images, federation.shards[client_id][:num], "cpu")


def pixels(num: int, seed: int = 1) -> Tensor:
    """Draw images of the size of digits."""
    return torch.randint(0, 256, (num, 1, 8, 8), dtype=torch.uint8, generator=seeded(seed))


def linear(seed: int = 3, dim: int = 5, heads: dict[str, nn.Module] | None = None) -> Model:
    """Linear on pixels: nothing hides a mistake, and no dead unit has a gradient of rounding errors."""
    torch.manual_seed(seed)
    return Model(nn.Flatten(), nn.Linear(64, dim), dim, heads)


def projected(model: Model, views: Tensor) -> Tensor:
    """Project views by hand in float64, with the weights that the model has in float32."""
    weight, bias = (parameter.detach().double() for parameter in model.projector.parameters())
    return views.flatten(1).double() @ weight.T + bias


def projected_to_unit(model: Model, views: Tensor) -> list[list[float]]:
    rows = projected(model, views)
    return (rows / rows.square().sum(1, keepdim=True).sqrt()).tolist()
