"""The laws of an objective's steps, beside those of the method that trains on it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.testing.method_laws import LawViolation, demand
from rayfed_ssl.testing.trial import Trial, global_generators
from rayfed_ssl.training.objective import Batch, check_loss
from rayfed_ssl.training.state_parts import is_state, part_of
from rayfed_ssl.trees import digest, frozen


def check_steps(config: Config) -> None:
    """Check that a loss is a finite, differentiable function of its inputs that writes nothing but running statistics.

    Where `num_views` is more than 1, it depends on two views of each sample that differ.
    """
    federation = Trial(config).federation
    task, objective, data = federation.task, federation.task.objective, federation.dataset.train
    labels = data.labels if objective.needs_labels else None
    shard = Shard.of(data.images, federation.shards[min(federation.shards)], "cpu", labels)
    index = torch.arange(min(16, len(shard)))
    batch = Batch(shard.batch(index), index, None if shard.labels is None else shard.labels[index], 0)

    model = task.model(task.initial_weights())
    state = objective.start(task, model, shard, generator(1))
    parts = {part_of(name) for name in model.state_dict()} - {"encoder", "projector", "batch_norm"}
    demand(parts <= set(objective.parts), f"`parts` has no rule for {parts - set(objective.parts)}")
    kept = {name.partition(".")[0] for name in state.state_dict()}
    demand(all(map(is_state, kept)), f"names of a state's own parts begin with state_, got {sorted(kept)}")
    demand(kept <= set(objective.parts), f"`parts` has no rule for {kept - set(objective.parts)}")
    demand(not any(p.requires_grad for p in state.parameters()), "a state needs no gradients: requires_grad_(False)")

    objective.start_epoch(task, model, state, shard, 0, generator(2))

    def facts() -> str:
        weights = frozen(model.state_dict() | state.state_dict())
        return digest({k: v for k, v in weights.items() if not k.endswith(("_mean", "_var", "_tracked"))})

    before, generators = facts(), global_generators(False)
    output = objective.loss(task, model, state, batch, generator(3))
    demand(
        global_generators(False) == generators, "draw from the generator that `loss` is given, not from a global one"
    )
    demand(facts() == before, "`loss` writes to weights or state: change them in `finish_step`")
    try:
        check_loss(objective, model, output)
    except ValueError as error:
        raise LawViolation(str(error)) from error
    demand(bool(output.loss.isfinite()), f"the loss is finite, got {output.loss}")
    demand(len(output.projections) >= len(index), "projections are those of the first view, one row a sample")
    demand(not any(t.requires_grad for t in output.updates.values()), "`updates` are detached")
    output.loss.backward()
    reached = any(p.grad is not None and bool(p.grad.any()) for p in model.encoder.parameters())
    demand(reached, "the loss has no gradient in the encoder")
    objective.finish_step(task, model, state, output)
    if objective.num_views > 1:
        nn.ModuleList([model, state]).eval()  # batch-norm would let every view depend on all others
        shape = (task.channels, task.size, task.size)
        _check_views(lambda: objective.loss(task, model, state, batch, generator(3)).loss, len(index), shape)


def _check_views(loss: Callable[[], Tensor], num: int, shape: tuple[int, int, int]) -> None:
    """Check that models see two views of each sample that differ, and that the loss depends on the second."""
    seen = [torch.empty(0, *shape)]

    def images(inputs: tuple[Any, ...]) -> list[bool]:
        return [isinstance(value, Tensor) and value.shape[1:] == shape for value in inputs]

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.extend(value.detach().clone() for value, is_image in zip(inputs, images(inputs), strict=True) if is_image)

    def blacken(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            value * (value.flatten(1)[:, None] == views[:num]).all(2).any(1).view(-1, 1, 1, 1) if is_image else value
            for value, is_image in zip(inputs, images(inputs), strict=True)
        )

    with register_module_forward_pre_hook(note):
        expected = loss()
    views = torch.cat(seen).flatten(1)
    demand(
        len(views.unique(dim=0)) >= 2 * num,
        "the model sees the same view of a sample twice, or one alone: draw two, or set num_views to 1",
    )
    with register_module_forward_pre_hook(blacken):  # type: ignore[arg-type]  # it may give other inputs
        demand(not torch.equal(loss(), expected), "the loss does not depend on the second view")
