"""DINO: give the same distribution over K directions to two views, one seen by a slow copy; there are no negatives.

Caron, Touvron, Misra, Jégou, Mairal, Bojanowski, Joulin: Emerging Properties in Self-Supervised Vision Transformers, ICCV
2021. "Code" below is facebookresearch/dino.

Symbols: theta_s student, theta_t teacher, a slow copy of the student; g cosines with K directions, [B, K]; tau_s and tau_t
temperatures; c center [K]; l and m the decays of teacher and center.

Deviations:
- Two views and no small crops, as SwAV here; the paper's best results have eight small crops more.
- l and tau_t are constant. The code raises l to 1 along a cosine. Its tau_t is 0.04 by default, as here; the paper, and the
  code's commands for its best results, raise it from 0.04 to 0.07 in the first 30 epochs.
- K directions are trained from the first epoch on; the code freezes them for one.
- Teacher and center stay with the client: the center is the mean output of its own teacher on its own samples.
- The head's last layer is averaged with its lengths, which the loss does not see.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context, update_momentum
from rayfed_ssl.training.objective import Batch, Head, Memory, Objective, StepOutput, state_as
from rayfed_ssl.training.state_parts import Rule
from rayfed_ssl.validation import UnitInterval


class Center(Memory):
    """The center c of outputs, float32 [K]."""

    mean: Tensor


class DINOState(Memory):
    """What DINO remembers: the teacher, in training mode, without gradients, and the center."""

    target: Model
    center: Center


def teacher_distribution(outputs: Tensor, center: Tensor, temperature: float) -> Tensor:
    """P_t = softmax((g_t - c) / tau_t) (Algorithm 1): centered, then sharpened; [B, K]."""
    return F.softmax((outputs.detach() - center) / temperature, dim=1)


def distillation(students: tuple[Tensor, Tensor], teachers: tuple[Tensor, Tensor], temperature: float) -> Tensor:
    """H(P_t, P_s) of each view's teacher with the other view's student (Eq. 3), the mean over both and over samples.

    Args:
        students: g_s by view, [B, K].
        teachers: P_t by view, [B, K].
        temperature: tau_s.
    """
    logs = [F.log_softmax(outputs / temperature, dim=1) for outputs in students]
    return -((teachers[0] * logs[1]).sum(1) + (teachers[1] * logs[0]).sum(1)).mean() / 2


@dataclass(frozen=True, kw_only=True)
class DINO(Objective):
    """Self-distillation without labels.

    K is the width of the projections, `model.projection_dim`.
    """

    joins: ClassVar[str] = "the center follows all samples"
    parts: ClassVar[Mapping[str, Rule]] = {"target": "local", "center": "local"}
    momentum: UnitInterval = 0.996
    """l; the code's first value."""
    student_temperature: PositiveFloat = 0.1
    """tau_s."""
    teacher_temperature: PositiveFloat = 0.04
    """tau_t, below tau_s; the code's default."""
    center_momentum: UnitInterval = 0.9
    """m (Eq. 4)."""
    hidden: PositiveInt = 2048
    """Width of the head's hidden layers."""

    @property
    def head(self) -> Head:
        """Three layers to 256 dimensions, brought to unit length, and their cosines with 65,536 directions."""
        return Head("dino", 65536, self.hidden)

    def start(self, context: Context, model: Model, data: Shard, generator: torch.Generator) -> DINOState:
        """Start the teacher as the student, and the center at 0."""
        center = Center(mean=torch.zeros(model.projection_dim, device=context.device))
        return DINOState(target=context.twin(model), center=center)

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Both views pass each network in one batch of 2 B."""
        views = context.stacked_views(batch.images, generator)
        memory = state_as(DINOState, state)
        with context.autocast():
            _, students = model(views)
            with torch.no_grad():
                _, outputs = memory.target(views)
        teachers = teacher_distribution(outputs, memory.center.mean, self.teacher_temperature)
        first, second = students.chunk(2)
        one, other = teachers.chunk(2)
        loss = distillation((first, second), (one, other), self.student_temperature)
        return StepOutput(loss, first, {"mean": outputs.mean(0)})

    def finish_step(self, context: Context, model: Model, state: nn.Module, output: StepOutput) -> None:
        """Move the teacher, theta_t <- l theta_t + (1 - l) theta_s, and the center, c <- m c + (1 - m) mean(g_t) (Eq. 4)."""
        memory = state_as(DINOState, state)
        update_momentum(memory.target, model, self.momentum)
        memory.center.mean.lerp_(output.updates["mean"], 1 - self.center_momentum)
