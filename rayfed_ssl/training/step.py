"""A step of training: loss, terms, gradients, optimizers, and what the objective remembers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rayfed_ssl.models import Model
from rayfed_ssl.models.batch_norm import counting_together
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import Descent, Optimizer

Loss: TypeAlias = Callable[[Any, nn.Module, Batch], StepOutput | None]
"""What a method may put in the place of the objective's loss: takes model, state and batch; None teaches nothing.

What else it reads is bound to it by `functools.partial`, or is in the fields of a frozen dataclass (docs/gpu.md).
"""

Term: TypeAlias = Callable[[Model, Tensor], Tensor]
"""What a method adds to each step's loss: takes the model and the first view's projections [B, p], gives a scalar.

What else it reads is declared as for a loss.
"""

Rates: TypeAlias = tuple[float, Tensor | None]
"""An optimizer's learning rate, and that of each step in its place or None, as `Descent.restart` takes them."""


def descend(loss: Tensor, *descents: Descent) -> None:
    """Move parameters by one step down a loss, a scalar; the others stay where they are, even if those are all.

    Gradients go from autograd to the optimizer without lying in `grad`, where each would take an operation.
    """
    parameters = [parameter for descent in descents for parameter in descent.parameters]
    if not parameters:
        return
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    gradients = {
        parameter: gradient for parameter, gradient in zip(parameters, found, strict=True) if gradient is not None
    }
    for descent in descents:
        descent.step(gradients)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a training reads and writes; whatever can be told from it alone makes its kind (`contents`).

    Attributes:
        loss: The loss.
        terms: Added to it; not part of the reported loss.
        model: Trained in place.
        state: The objective's, changed in place, or an empty module.
        finish: Changes the state after the optimizer's step; takes model, state and what the loss gave.
        generators: Those of which draws are made between steps too.
        optimizers: How parts of the model move, by the part's name; "" is all of it.
    """

    loss: Loss
    terms: tuple[Term, ...] = ()
    model: nn.Module
    state: nn.Module
    finish: Callable[[Any, nn.Module, StepOutput], None] | None = None
    generators: tuple[torch.Generator, ...]
    optimizers: Mapping[str, Optimizer]

    def descents(self) -> tuple[Descent, ...]:
        """Make the optimizers' descents, with empty moments."""
        return tuple(
            settings.over(self.model.get_submodule(part).parameters()) for part, settings in self.optimizers.items()
        )


class TrainingStep:
    """Loss, terms, gradients, the optimizers' steps, and what the objective remembers.

    Args:
        training: What a step reads and writes.
        device: Where all this is.

    Attributes:
        training: The same.
        descents: Of the training's optimizers.
    """

    def __init__(self, training: Training, device: torch.device) -> None:
        self.training, self.descents = training, training.descents()
        self._sums = torch.zeros(3, device=device)

    def __call__(self, batch: Batch) -> None:
        """Take one step."""
        training = self.training
        with counting_together():
            output = training.loss(training.model, training.state, batch)
            if output is None:
                return
            value, added = output.loss, torch.zeros_like(output.loss)
            for term in training.terms:
                extra = term(training.model, output.projections)  # type: ignore[arg-type]  # Model where there are terms
                value, added = value + extra, added + extra.detach()
        descend(value, *self.descents)
        if training.finish is not None:
            training.finish(training.model, training.state, output)
        losses = torch.stack([output.loss.detach(), added.detach(), torch.ones_like(added)])
        self._sums.add_(losses, alpha=len(batch.index))

    def restart(self, rates: Sequence[Rates]) -> None:
        """Begin another training: moments, ages and sums are zeros, and each optimizer gets its learning rates."""
        self._sums.zero_()
        for descent, (lr, each) in zip(self.descents, rates, strict=True):
            descent.restart(lr, each)

    def read(self, *more: Tensor) -> tuple[float, float, list[float]]:
        """Read the means over samples of losses and of terms since the last time, and scalars besides: one wait."""
        loss, added, count, *values = torch.stack([*self._sums.unbind(), *more]).tolist()
        self._sums.zero_()
        return loss / (count or 1), added / (count or 1), values
