"""FedX: FedAvg whose clients distil relations between samples, and from the global model what they may forget.

Han, Park, Wu, Kim, Wu, Xie, Cha: FedX: Unsupervised Federated Learning with Cross Knowledge Distillation, ECCV 2022. "Code"
below is the authors' repository, from which the equations are taken.

Symbols: z, z~ projections of a sample's two views; h, h~ predictions made of them; z^G projections by the global model that
the client received; index a for anchors, other samples of the client; t, t_T temperatures of students and targets.

    L = L_c(z, z~) + L_r(z, z~; z_a) + L_c(h, z~^G) + L_r(h, h~; z_a^G)

Deviations:
- The base is SimCLR, as in the code. The paper puts MoCo, BYOL, ProtoCL and FedU in its place, of which there is no code.
- L_r is the mean of KL(target || student) over both views (code); in the Jensen-Shannon divergence, for which the code names
  it, the arguments of KL stand the other way round. Gradients flow through the target and through the anchors z_a (code).
- Anchors are drawn anew for each step, without repetition; the code takes them from a second pass over the shuffled shard.
- Each distillation has a weight, 1 in the code.
- The mean is weighted by samples. The code divides by the samples of absent clients too: right only if all take part.
"""

import dataclasses
import math
from functools import partial
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.method import Client, Metrics, Model, Shard, Task
from rayfed_ssl.methods.fedavg import Averaging, Download, Upload
from rayfed_ssl.objectives.fedx import FedXObjective
from rayfed_ssl.objectives.simclr import nt_xent
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.training.objective import Batch, StepOutput, objective_as


def relational_loss(
    first: Tensor, second: Tensor, anchors: Tensor, temperature: float, target_temperature: float
) -> Tensor:
    """L_r: both views shall stand in the same relation to the anchors.

    Args:
        first: Of first views, unit rows [B, p].
        second: Of second views, unit rows [B, p].
        anchors: Unit rows [A, p].
        temperature: t of the relations softmax(cos(view, anchor) / t) over anchors that are trained.
        target_temperature: t_T of those whose mean over both views is the target.

    Returns:
        Mean over samples and views of KL(target || relation).
    """
    cosines = [view @ anchors.T for view in (first, second)]
    # As logarithms: a sharp target's zeros would have no gradient.
    targets = [F.log_softmax(cosine / target_temperature, dim=1) for cosine in cosines]
    target = torch.logaddexp(*targets) - math.log(2)
    relations = [F.log_softmax(cosine / temperature, dim=1) for cosine in cosines]
    first_loss, second_loss = (F.kl_div(log, target, reduction="batchmean", log_target=True) for log in relations)
    return (first_loss + second_loss) / 2


@dataclasses.dataclass(frozen=True)
class Draws:
    """Generators of a client's training: of its views, of the choice of anchors, of anchors' views."""

    views: torch.Generator
    choices: torch.Generator
    anchors: torch.Generator


def random_anchors(task: Task, data: Shard, draws: Draws) -> Tensor:
    """Draw one view each of B random samples of a client, or of all if there are fewer."""
    _, images = data.draw_samples(task.batch, draws.choices)
    return task.augment(images, task.views.first, draws.anchors)


@dataclass(frozen=True, kw_only=True)
class FedX(Averaging):
    """FedAvg with local and global distillation."""

    local_relation: NonNegativeFloat = 1.0
    """Weight of L_r among the client's own projections; 0 leaves it out."""
    global_contrast: NonNegativeFloat = 1.0
    """Weight of L_c between predictions and the global model's projections; 0 leaves it out."""
    global_relation: NonNegativeFloat = 1.0
    """Weight of L_r between predictions and the global model's anchors; 0 leaves it out."""
    target_temperature: PositiveFloat = 0.1
    """t_T (code)."""

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse other objectives."""
        _objective(task)
        return super().check(task, num_public)

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Upload, Any, Metrics]:
        """Local training beside the frozen global model, which is in evaluation mode (code)."""
        if not (self.local_relation or self.global_contrast or self.global_relation):
            return super().update_client(download, state, client)
        teacher = client.task.model(download.weights | self.local_parts(state)).eval().requires_grad_(False)
        choices = generator(int(torch.randint(2**62, (), generator=client.method_generator)))
        draws = Draws(client.generator, choices, client.method_generator)
        loss = partial(self.distil, client.task, client.data, draws, teacher)
        return self.train(download.weights, state, client, loss=loss)

    def distil(
        self,
        task: Task,
        data: Shard,
        draws: Draws,
        teacher: Model,
        model: Model,
        state: nn.Module,
        batch: Batch,
    ) -> StepOutput:
        """Compute L; two views of each sample and one of each anchor pass the client's network in one batch (code)."""
        objective, num = _objective(task), len(batch.images)
        views = task.stacked_views(batch.images, draws.views)
        if self.local_relation or self.global_relation:
            views = torch.cat([views, random_anchors(task, data, draws)])
        with task.autocast():
            _, projections = model(views)
            predictions = model.part("predictor")(projections[: 2 * num]).float()
            with torch.no_grad():
                _, seen = teacher(views[num:])
        first, second, anchors = F.normalize(projections, dim=1).split([num, num, len(views) - 2 * num])
        predicted = F.normalize(predictions, dim=1).chunk(2)
        global_second, global_anchors = F.normalize(seen, dim=1).split([num, len(views) - 2 * num])
        temperature = objective.temperature
        relate = partial(relational_loss, temperature=temperature, target_temperature=self.target_temperature)
        loss = objective.contrast(first, second)
        if self.local_relation:
            loss = loss + self.local_relation * relate(first, second, anchors)
        if self.global_contrast:
            loss = loss + self.global_contrast * nt_xent(predicted[0], global_second, temperature)
        if self.global_relation:
            loss = loss + self.global_relation * relate(predicted[0], predicted[1], global_anchors)
        return StepOutput(loss, projections[:num])


def _objective(task: Task) -> FedXObjective:
    return objective_as(FedXObjective, task.objective, "method=fedx has an objective of its own", "fedx")
