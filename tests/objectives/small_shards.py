"""Shards on which an objective may stumble, and what every objective must do on them."""

import numpy as np
import torch
from torch import nn

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights

KINDS = ("two samples", "fewer than a batch", "duplicates", "equal gray images")


def shard(federation: Federation, kind: str) -> Shard:
    """Make a shard of one of `KINDS`, or of "all samples", from a federation's training images."""
    images, device = federation.dataset.train.images, federation.task.device
    if kind == "all samples":
        return Shard.of(images, np.arange(len(images)), device)
    if kind == "two samples":
        return Shard.of(images, np.arange(2), device)
    if kind == "fewer than a batch":
        return Shard.of(images, np.arange(7), device)
    if kind == "duplicates":
        return Shard.of(images, np.zeros(9, dtype=np.int64), device)
    return Shard.of(np.full_like(images[:9], 128), np.arange(9), device)


def train(task: Task, data: Shard, weights: Weights | None = None, round: int = 1) -> tuple[Weights, dict[str, float]]:
    """Train locally from the common start or from given weights."""
    start = task.initial_weights() if weights is None else weights
    return task.train(start, task.encoder, data, torch.Generator().manual_seed(1), round=round)


def check_finite(weights: Weights) -> None:
    for name, value in weights.items():
        assert bool(value.isfinite().all()), f"{name} is not finite"


def gradients(task: Task, data: Shard, epoch: int = 0) -> tuple[dict[str, torch.Tensor | None], nn.Module]:
    """Take one forward and backward pass; returns gradients by parameter and the state."""
    generator = torch.Generator().manual_seed(1)
    model = task.model(task.initial_weights())
    state = task.objective.start(task, model, data, generator)
    task.objective.start_epoch(task, model, state, data, 0, generator)
    index = torch.arange(len(data))
    terms = task.objective.loss(task, model, state, Batch(data.batch(index), index, None, epoch), generator)
    terms.loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, state
