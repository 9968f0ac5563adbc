"""DINO: give the same distribution over K directions to two views, one seen by a slow copy; there are no negatives.

Caron, Touvron, Misra, Jégou, Mairal, Bojanowski, Joulin: Emerging Properties in Self-Supervised Vision Transformers, ICCV
2021. "Code" below is facebookresearch/dino.

Symbols: theta_s student, theta_t teacher, a slow copy of the student; g cosines with K directions, [B, K]; tau_s and tau_t
temperatures; c center [K]; l and m the decays of teacher and center; f features, [B, d].

KoLeo, which DINOv2 adds (Oquab et al., 2023; Sablayrolles et al.: Spreading Vectors for Similarity Search, ICLR 2019), keeps
nearest features of a batch apart.

Deviations:
- Two views, and small crops where `training.small_crops` asks for them: eight in the paper's best results.
- l and tau_t are constant. The code raises l to 1 along a cosine. Its tau_t is 0.04 by default, as here; the paper, and the
  code's commands for its best results, raise it from 0.04 to 0.07 in the first 30 epochs.
- K directions are trained from the first epoch on; the code freezes them for one.
- Teacher and center stay with the client: the center is the mean output of its own teacher on its own samples.
- The head's last layer is averaged with its lengths, which the loss does not see.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
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


def distillation(students: Sequence[Tensor], teachers: Sequence[Tensor], temperature: float) -> Tensor:
    """H(P_t, P_s) of each large view's teacher with all other views' students (Eq. 3), the mean over pairs and samples.

    Args:
        students: g_s by view, the large ones first, [B, K].
        teachers: P_t by large view, [B, K].
        temperature: tau_s.
    """
    logs = [F.log_softmax(outputs / temperature, dim=1) for outputs in students]
    pairs = [(teacher * log).sum(1) for t, teacher in enumerate(teachers) for s, log in enumerate(logs) if s != t]
    return -sum(pairs[1:], pairs[0]).mean() / len(pairs)


def koleo(features: Tensor) -> Tensor:
    """Minus the mean log distance of unit-length features, [B, d], to the nearest other one (1e-8 is of DINOv2's code)."""
    units = F.normalize(features, dim=1, eps=1e-8)
    closest = (units @ units.T).detach().fill_diagonal_(-2).argmax(1, keepdim=True)
    chosen = (closest == torch.arange(len(units), device=units.device)).to(
        units.dtype
    )  # its gradient has a fixed order
    return -(F.pairwise_distance(units, chosen @ units, eps=1e-8) + 1e-8).log().mean()


@dataclass(frozen=True, kw_only=True)
class DINO(Objective):
    """Self-distillation without labels.

    K is the width of the projections, `model.projection_dim`.
    """

    joins: ClassVar[str] = "the center follows all samples"
    takes_small_crops: ClassVar[bool] = True
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
    koleo: Annotated[NonNegativeFloat, Field(exclude_if=lambda weight: weight == 0)] = 0.0
    """Weight of KoLeo, the sum over both views; 0.1 in DINOv2, 0 for DINO."""

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
        """Both views pass each network in one batch of 2 B; small crops pass the student alone."""
        views, small = context.stacked_views(batch.images, generator), context.small_views(batch.images, generator)
        memory = state_as(DINOState, state)
        with context.autocast():
            features, students = model(views, *small)
            with torch.no_grad():
                _, outputs = memory.target(views)
        loss = self.between_views(students, outputs, memory.center.mean, features[: len(views)])
        return StepOutput(loss, students[: len(batch.images)], {"mean": outputs.mean(0)})

    def between_views(self, students: Tensor, outputs: Tensor, center: Tensor, features: Tensor) -> Tensor:
        """Eq. 3, and KoLeo of both large views.

        Args:
            students: g_s of all views, one after the other, the large ones first.
            outputs: g_t of both large views, [2 B, K].
            center: c.
            features: f of both large views, [2 B, d].
        """
        teachers = teacher_distribution(outputs, center, self.teacher_temperature).chunk(2)
        loss = distillation(students.split(len(teachers[0])), teachers, self.student_temperature)
        return loss + self.koleo * sum(koleo(view) for view in features.chunk(2)) if self.koleo else loss

    def finish_step(self, context: Context, model: Model, state: nn.Module, output: StepOutput) -> None:
        """Move the teacher, theta_t <- l theta_t + (1 - l) theta_s, and the center, c <- m c + (1 - m) mean(g_t) (Eq. 4)."""
        memory = state_as(DINOState, state)
        update_momentum(memory.target, model, self.momentum)
        memory.center.mean.lerp_(output.updates["mean"], 1 - self.center_momentum)
