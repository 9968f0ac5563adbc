"""Local training of an objective with a state, by hand: what the tests of several objectives share."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.models import Model
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.state_parts import part_of, select, with_rule
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights
from tests.tensors import seeded

Open = Callable[..., Federation]

SETTINGS: dict[str, tuple[str, ...]] = {
    **{name: () for name, kind in OBJECTIVES.items() if not kind.needs_labels and kind.belongs_to is None},
    "byol": ("objective.hidden=48",),
    "moco": ("objective.queue_size=50",),
    "simsiam": ("objective.hidden=48", "objective.predictor_hidden=12"),
    "swav": tuple(f"objective.{s}" for s in ("prototypes=6", "queue_size=8", "queue_epoch=0", "freeze_epochs=0")),
    "deepcluster": ("objective.clusters=6",),
    "rotation": ("model.projection_dim=null",),
    "autoencoder": ("model.projection_dim=null",),
    "mae": ("model.encoder=vit-micro", "model.projection_dim=null", "objective.width=32", "objective.depth=1"),
    "dino": ("objective.hidden=48",),
    "ibot": ("objective.hidden=48", "model.encoder=vit-micro"),
}


def digits(federation: Federation, num: int) -> Shard:
    """The first digits."""
    return Shard.of(federation.dataset.train.images, np.arange(num), "cpu")


def first_batch(data: Shard, num: int, epoch: int = 0) -> Batch:
    index = torch.arange(num)
    return Batch(data.batch(index), index, None, epoch)


def started(task: Task, data: Shard, seed: int = 0) -> tuple[Model, nn.Module]:
    """A model and its state at the start of the first epoch."""
    model, generator = task.model(task.initial_weights()), seeded(seed)
    state = task.objective.start(task, model, data, generator)
    task.objective.start_epoch(task, model, state, data, 0, generator)
    return model, state


def train(task: Task, data: Shard, weights: Weights | None = None, round: int = 1) -> tuple[Weights, dict[str, float]]:
    """Train locally from the common start or from given weights."""
    start = task.initial_weights() if weights is None else weights
    return task.train(start, task.encoder, data, seeded(round), round=round)


def parts_of(weights: Weights) -> set[str]:
    return {part_of(name) for name in weights}


def undisturbed(task: Task, data: Shard) -> Weights:
    """Two rounds of one client on the same objects in state; a target with the rule "reset" is set back in between."""
    model, state = task.model(task.initial_weights()), None
    for round in (1, 2):
        generator = seeded(round)
        fresh = task.objective.start(task, model, data, generator)
        state = state or fresh
        for part in with_rule(task.objective.parts, "reset"):
            state.get_submodule(part).load_state_dict(fresh.get_submodule(part).state_dict())
        task.fit(model, data, generator, round=round, state=state)
    return model.state_dict() | state.state_dict()


def resumed(task: Task, data: Shard) -> Weights:
    """Two rounds of one client that keeps only what the rules let it keep."""
    rules = {"encoder": "averaged", "projector": "averaged", "batch_norm": "averaged", **task.objective.parts}
    weights, _ = train(task, data)
    return train(task, data, select(weights, with_rule(rules, "averaged", "local")), round=2)[0]
