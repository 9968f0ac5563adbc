"""DP-SGD: gradients of single samples, clipped, summed and noised.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy, CCS 2016.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from rayfed_ssl.models import Model
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, PerSample, StepOutput

CHUNK = 16
"""Samples whose gradients are held at once, each as large as the model."""


class _LossOf(nn.Module):
    def __init__(self, context: Context, objective: PerSample, model: Model) -> None:
        super().__init__()
        self._context, self._objective, self.model = context, objective, model

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute the loss of some samples."""
        return self._objective.loss_of(self._context, self.model, *inputs).loss


def clipped_gradients(
    context: Context, objective: PerSample, model: Model, inputs: tuple[Tensor, ...], clip: float
) -> tuple[dict[str, Tensor], Tensor]:
    """Sum gradients of samples, each scaled to norm C at most over all parameters; and sum their losses."""
    module = _LossOf(context, objective, model)
    parameters = {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}

    def loss_of_one(parameters: dict[str, Tensor], *sample: Tensor) -> Tensor:
        loss: Tensor = functional_call(module, parameters, tuple(part.unsqueeze(0) for part in sample))
        return loss

    of_each = vmap(grad_and_value(loss_of_one), in_dims=(None, *[0] * len(inputs)), randomness="different")
    sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
    total = torch.zeros((), device=context.device)
    for samples in zip(*(part.split(CHUNK) for part in inputs), strict=True):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # some kernels run in a loop
            gradients, losses = of_each(parameters, *samples)
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)
        factors = (clip / norms).clamp(max=1)
        for name, gradient in gradients.items():
            sums[name] += torch.tensordot(factors, gradient, 1)
        total = total + losses.sum()
    return {name.removeprefix("model."): value for name, value in sums.items()}, total


@dataclass(frozen=True)
class SampleNoise:
    """How the gradients of local training hide single samples.

    Attributes:
        clip: C.
        noise: z.
        generator: Draws the noise.
    """

    clip: float
    noise: float
    generator: torch.Generator

    def loss(
        self,
        context: Context,
        objective: PerSample,
        views: torch.Generator,
        model: Model,
        state: nn.Module,
        batch: Batch,
    ) -> StepOutput:
        """Give the value of the objective's loss with the gradient (sum of clipped gradients + noise of z C) / B."""
        inputs, size = objective.inputs(context, batch, views), len(batch.index)
        sums, total = clipped_gradients(context, objective, model, inputs, self.clip)
        linear = torch.zeros((), device=context.device)
        for name, parameter in model.named_parameters():
            if name in sums:
                noise = draw(torch.randn, parameter.shape, generator=self.generator, device=context.device)
                gradient = (sums[name] + self.noise * self.clip * noise) / size
                linear = linear + (parameter * gradient).sum()
        value = linear + (total / size - linear).detach()
        return StepOutput(value, torch.zeros(size, model.projection_dim, device=context.device))
