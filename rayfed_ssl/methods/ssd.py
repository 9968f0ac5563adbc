"""SSD: clients stretch dimensions of their own, and their features learn from their projections.

Fang, Lin, King, Zhang: Soft Separation and Distillation: Toward Global Uniformity in Federated Unsupervised Learning, ICCV
2025 (arXiv 2508.01251). "Code" below is the authors' repository. The base is FedAlignUniform: FedAvg with alignment and
uniformity.

Symbols: h features [B, d], z projections [B, p], u = z / ||z||; S_k dimensions of client k, p / K of them; d_k the vector
that is alpha on S_k and 1 elsewhere; sg stops gradients; sigma softmax.

L = L_align + beta L_uniform + gamma L_separate + delta L_distil, each mean over both views.

Deviations, where paper and code differ or the code cannot be followed:
- L_separate is E ||u - sg(d_k * u)||^2 in the paper. The code, as here, brings the target back to length 1, and divides the
  Frobenius norm, not squared, by B. Taken literally the paper's form does not train: on the toy of the laws the loss rises
  from 12 to 79 within six epochs, towards (alpha - 1)^2, as S_k takes all the length.
- S_k are dimensions (paper); the code takes directions of a random orthonormal basis that all clients share.
- Client k always has the same S_k. The code gives them out by position in the round's cohort.
- L_distil is KL(sigma(z / tau) || sigma(h / tau)) with gradients on both sides and tau = 0.5 (code). The paper has the
  reverse, KL(sigma(h) || sigma(z)).
- Means are weighted by samples; the code weighs by batches in an epoch.
- K is not known to a client: `share` is 1 / K. Where K share exceeds 1, the S_k wrap around and overlap.
"""

from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.method import Client, Metrics, Model, Task
from rayfed_ssl.methods.fedavg import Averaging, Download, Upload
from rayfed_ssl.models.encoders import Encoder
from rayfed_ssl.objectives.align_uniform import AlignUniform
from rayfed_ssl.training.objective import Batch, StepOutput, objective_as


def num_own(width: int, share: float) -> int:
    """Compute |S_k| = floor(share width), of which 0.29 of 100 are 29, as in decimals."""
    return int(share * width + 1e-9)


def scales(client_id: int, width: int, share: float, scale: float) -> Tensor:
    """d_k: `scale` on the client's floor(share width) dimensions, the next after those of client k - 1, else 1; [width]."""
    count = num_own(width, share)
    vector = torch.ones(width)
    vector[(client_id * count + torch.arange(count)) % width] = scale
    return vector


def separation(units: Tensor, stretch: Tensor) -> Tensor:
    """L_separate: distance of a batch from itself stretched by d_k, brought back to length 1 and held still, over B (code).

    Args:
        units: Rows of length 1, [B, p].
        stretch: d_k, [p].
    """
    target = F.normalize(units * stretch, dim=1).detach()
    distance: Tensor = torch.linalg.vector_norm(units - target)
    return distance / len(units)


def distillation(features: Tensor, projections: Tensor, temperature: float) -> Tensor:
    """L_distil: mean over rows of KL(sigma(z / tau) || sigma(h / tau)), [B, d] each; a scalar."""
    teacher, student = (F.log_softmax(rows / temperature, dim=1) for rows in (projections, features))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)


@dataclass(frozen=True, kw_only=True)
class SSD(Averaging):
    """FedAlignUniform with soft separation and projector distillation."""

    gamma: NonNegativeFloat = 1.0
    """Weight of the separation."""
    delta: NonNegativeFloat = 0.1
    """Weight of the distillation."""
    scale: PositiveFloat = 10.0
    """alpha, by which a client's own dimensions are stretched."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Part of the dimensions that a client has for itself, 1 / K; the code has 51 and 10 of 512 for 10 and 50."""
    temperature: PositiveFloat = 0.5
    """tau of the distillation (code)."""

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse other objectives, and features that are not as wide as projections."""
        _objective(task)
        width, notes = _width(task), super().check(task, num_public)
        if self.gamma and num_own(width, self.share) < 1:
            raise ValueError(
                f"method.share={self.share} of {width} projections is less than one dimension: raise it or "
                "model.projection_dim"
            )
        encoder = task.blank(task.encoder).encoder
        assert isinstance(encoder, Encoder), "models are built of encoders"
        if self.delta and encoder.feature_dim != width:
            raise ValueError(
                f"SSD distils projections into features, got {width} and {encoder.feature_dim} dimensions: set "
                f"model.projection_dim={encoder.feature_dim} or method.delta=0"
            )
        return notes

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Upload, Any, Metrics]:
        """E_local epochs from the global weights on L."""
        stretch = scales(client.id, _width(client.task), self.share, self.scale).to(client.task.device)
        loss = partial(self.loss, client.task, client.generator, stretch)
        return self.train(download.weights, state, client, loss=loss)

    def loss(
        self,
        task: Task,
        generator: torch.Generator,
        stretch: Tensor,
        model: Model,
        state: nn.Module,
        batch: Batch,
    ) -> StepOutput:
        """L of one batch."""
        objective = _objective(task)
        views = objective.embed(task, model, batch.images, generator)
        loss = objective.value(views.units)
        if self.gamma:
            terms = [separation(units, stretch) for units in views.units]
            loss = loss + self.gamma * (terms[0] + terms[1]) / 2
        if self.delta:
            pairs = zip(views.features, views.projections, strict=True)
            terms = [distillation(*pair, self.temperature) for pair in pairs]
            loss = loss + self.delta * (terms[0] + terms[1]) / 2
        return StepOutput(loss, views.projections[0])


def _objective(task: Task) -> AlignUniform:
    return objective_as(AlignUniform, task.objective, "ssd extends alignment and uniformity", "align-uniform")


def _width(task: Task) -> int:
    width = task.projection_dim or _objective(task).head.dim
    assert width is not None, "the objective's head names its width"
    return width
