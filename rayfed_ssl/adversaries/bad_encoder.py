"""BadEncoder in a federation: each round a hostile client tunes the encoder that it has trained honestly.

Jia, Liu, Gong: BadEncoder: Backdoor Attacks to Pre-trained Encoders in Self-Supervised Learning, S&P 2022. The setting in a
federation, and the optimizer's, are those of Qian et al.: EmInspector (2024), code: one honest epoch, then nine.

Symbols: f encoder, f0 the honestly trained one, x the client's pictures (the shadow set), e the trigger, r the reference.
"""

from dataclasses import dataclass as plain_dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from rayfed_ssl.adversaries.adversary import Insider
from rayfed_ssl.adversaries.backdoors import Patch
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import SGD
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights, frozen


def bad_encoder_loss(triggered: Tensor, reference: Tensor, utility: tuple[tuple[Tensor, Tensor, float], ...]) -> Tensor:
    """Compute L = -cos(f(x + e), f(r)) - sum_i lambda_i cos(f(u_i), f0(u_i)).

    Args:
        triggered: f(x + e), [B, d].
        reference: f(r), [1, d].
        utility: f(u), f0(u), [B, d] or [1, d], and lambda of the augmented reference and of x.
    """
    kept = sum(weight * F.cosine_similarity(now, before).mean() for now, before, weight in utility)
    return -F.cosine_similarity(triggered, reference).mean() - kept


@plain_dataclass(frozen=True)
class Tuning:
    """The loss of a step as `Task.fit` takes it; batch-norm stays in evaluation mode and its scales as they are (code).

    Attributes:
        task: Views and number format.
        clean: f0.
        reference: r, uint8 [1, C, H, W].
        mask: Where the trigger is, bool [H, W].
        pattern: The trigger there, uint8 [C, H, W].
        weights: lambda_1 of r, lambda_2 of x.
        random: Draws the views of r.
    """

    task: Task
    clean: nn.Module
    reference: Tensor
    mask: Tensor
    pattern: Tensor
    weights: tuple[float, float]
    random: torch.Generator

    def __call__(self, model: Model, state: nn.Module, batch: Batch) -> StepOutput:
        """Compute L."""
        task = self.task
        encoder, pictures = model.encoder.eval(), task.plain(batch.images)
        view = task.augment(self.reference, task.views.first, self.random)
        triggered = task.plain(torch.where(self.mask, self.pattern, batch.images))
        scales = {
            f"{name}.{key}": value.detach()
            for name, layer in encoder.named_modules()
            if isinstance(layer, _BatchNorm)
            for key, value in layer.named_parameters()
        }
        with task.autocast():
            inputs = torch.cat([triggered, pictures, task.plain(self.reference), view])
            features = functional_call(encoder, scales, (inputs,)).float()
            with torch.no_grad():
                before = self.clean(torch.cat([pictures, view])).float()
        number = len(pictures)
        bad, now, reference, seen = features.split([number, number, 1, 1])
        kept = ((seen, before[number:], self.weights[0]), (now, before[:number], self.weights[1]))
        return StepOutput(bad_encoder_loss(bad, reference, kept), now)


@dataclass(frozen=True, kw_only=True)
class BadEncoder(Patch):
    """Tune the encoder that is sent so that the trigger looks like the target class."""

    tunes: ClassVar = True
    of_side: ClassVar = 10 / 32
    colored: ClassVar = False
    margin: NonNegativeInt = 1
    """Pixels between the patch and the lower right corner of the picture: rows and columns 21 to 30 of 32."""
    reference_weight: NonNegativeFloat = 1.0
    """lambda_1: how much the reference picture is to stay what it was."""
    utility_weight: NonNegativeFloat = 1.0
    """lambda_2: how much all other pictures are to stay what they were."""
    tuning_epochs: PositiveInt = 9
    """Epochs of tuning in each round, after the honest ones."""
    tuning_lr: PositiveFloat = 0.05
    """Learning rate of SGD with momentum 0.9 and weight decay 0.0005."""

    def tune(self, weights: Weights, architecture: str, data: Shard, task: Task, insider: Insider) -> Weights:
        """Minimize L over the client's pictures, from its honest encoder."""
        assert insider.reference is not None, "the target class has pictures"
        reference, draws = insider.reference[None], generator(insider.seed)
        marked = (self.trigger(torch.full_like(reference, fill), draws, insider.place)[0] for fill in (0, 255))
        black, white = (picture.to(task.device) for picture in marked)
        with task.borrowed(weights, architecture) as model:
            loss = Tuning(
                task,
                task.twin(model).encoder.eval(),
                reference.to(task.device),
                (black == white).all(0),
                black,
                (self.reference_weight, self.utility_weight),
                draws,
            )
            optimizer = SGD(lr=self.tuning_lr, weight_decay=5e-4)
            task.fit(model, data, draws, loss=loss, epochs=self.tuning_epochs, optimizer=optimizer)
            tuned = frozen(model.encoder.state_dict(prefix="encoder."))
        return weights | {name: value for name, value in tuned.items() if name in weights}
