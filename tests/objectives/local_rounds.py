"""Local training of an objective with a state, by hand: what the tests of several objectives share."""

import torch
from torch import nn

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.models import Model
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.state_parts import part_of, select, with_rule
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights


def digits(federation: Federation, num: int) -> Shard:
    """The first digits."""
    return Shard.of(federation.dataset.train.images, torch.arange(num).numpy(), "cpu")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def first_batch(data: Shard, num: int) -> Batch:
    index = torch.arange(num)
    return Batch(data.batch(index), index, None, 0)


def started(task: Task, data: Shard, seed: int = 0) -> tuple[Model, nn.Module]:
    """A model and its state at the very beginning."""
    model = task.model(task.initial_weights())
    return model, task.objective.start(task, model, data, seeded(seed))


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
    weights = task.initial_weights()
    for round in (1, 2):
        kept = select(weights, with_rule(rules, "averaged", "local"))
        weights, _ = task.train(kept, task.encoder, data, seeded(round), round=round)
    return weights
