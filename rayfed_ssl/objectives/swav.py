"""SwAV: predict the cluster of one view from the other; clusters are equally full in every batch.

Caron, Misra, Mairal, Goyal, Bojanowski, Joulin: Unsupervised Learning of Visual Features by Contrasting Cluster
Assignments, NeurIPS 2020. "Code" below is facebookresearch/swav; FedU2's FedSwAV says how it was federated before. FCL's
FedSwAV is FedAvg with this objective.

Symbols: z unit projections [B, p]; C prototypes, unit rows [K, p]; q codes [B, K]; T temperature; eps Sinkhorn's entropy
weight; B samples a step.

Deviations:
- Two views, and small crops where `training.small_crops` asks for them: six in the paper's best results, none in FCL, FedU2.
- K is 32 (FedU2); the paper's 3000 are for 1.28 million images. K must stay below the clients' sample counts.
- Prototypes are averaged like weights and brought back to unit length when a local training starts.
- `freeze_epochs` counts a client's local epochs over the whole run; the code's 313 iterations are one epoch of ImageNet.
- Prototypes are normalized after the optimizer's step and not before the next forward pass (code): the same weights.
- Codes are computed from the client's batch and its queue alone. The queue stays with the client (FedU2); it is used once it
  is full, from `queue_epoch` on (code), and its rows are enqueued after the optimizer's step.
- The projector is d-d-128 with batch-norm; the code's hidden layer is 2048 wide for a ResNet-50.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.objectives.moco import KeyQueue
from rayfed_ssl.training.clustering import sinkhorn
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Memory, Objective, StepOutput, check_groups, state_as
from rayfed_ssl.training.state_parts import Rule


class ViewQueues(Memory):
    """Projections of earlier batches, of first and of second views."""

    first: KeyQueue
    second: KeyQueue


class SwAVState(Memory):
    """What SwAV remembers: the queues of both views, or None."""

    queue: ViewQueues | None


def swapped_prediction(scores: Sequence[Tensor], codes: Sequence[Tensor], temperature: float) -> Tensor:
    """Cross entropy of each large view's code [B, K] with all other views' scores z.C [B, K] (SwAV, Eq. 1, 2 and 6).

    Args:
        scores: By view, the large ones first.
        codes: q of the large views.
        temperature: T.

    Returns:
        The mean over samples and pairs (i, v), v not i, of -q_i . log softmax(z_v.C / T) (the mean as in the code).
    """
    logs = [F.log_softmax(score / temperature, dim=1) for score in scores]
    pairs = [(code * log).sum(1) for i, code in enumerate(codes) for v, log in enumerate(logs) if v != i]
    return -sum(pairs[1:], pairs[0]).mean() / len(pairs)


@dataclass(frozen=True, kw_only=True)
class SwAV(Objective):
    """SwAV's swapped prediction."""

    joins: ClassVar[str] = "assignments are balanced over samples"
    takes_small_crops: ClassVar[bool] = True
    parts: ClassVar[Mapping[str, Rule]] = {"prototypes": "averaged", "queue": "local"}
    head: ClassVar = Head("simclr-bn", 128)
    """The projector: d-d-128 with batch-norm."""
    prototypes: Annotated[int, Field(ge=2)] = 32
    """K, below the samples of a client; 32 in FedU2's FedSwAV."""
    temperature: PositiveFloat = 0.1
    """T (section 4 of the paper's appendix, code)."""
    epsilon: PositiveFloat = 0.05
    """eps (code)."""
    sinkhorn_iterations: PositiveInt = 3
    """Of Sinkhorn's iteration (code)."""
    freeze_epochs: NonNegativeInt = 1
    """Local epochs since the run began in which prototypes are not trained."""
    queue_size: NonNegativeInt = 0
    """Projections per view that codes are computed with beside the batch's own; 0 for none, 256 in FedU2, 3840 for the
    code's small batches. It helps where a batch is not much larger than K.
    """
    queue_epoch: NonNegativeInt = 15
    """Local epochs since the run began before the queue is used (code)."""

    def heads(self, context: Context, feature_dim: int, projection_dim: int) -> dict[str, nn.Module]:
        """The prototypes C, random directions."""
        return {"prototypes": nn.Linear(projection_dim, self.prototypes, bias=False)}

    def check(self, context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
        """Refuse more prototypes than any client has samples; tell where codes are arbitrary or queues unused."""
        notes = check_groups("SwAV", "prototypes", self.prototypes, shard_sizes, "their codes are arbitrary")
        if self.queue_size and self.queue_epoch >= context.rounds * context.epochs:
            unused = (
                f"SwAV's queue is never used: objective.queue_epoch={self.queue_epoch} and the run has "
                f"{context.rounds * context.epochs} local epochs"
            )
            return (*notes, unused)
        return notes

    def start(self, context: Context, model: Model, data: Shard, generator: torch.Generator) -> SwAVState:
        """Bring averaged prototypes back to unit length, and start two queues."""
        normalize_prototypes(model)
        if not self.queue_size:
            return SwAVState(queue=None)
        first, second = (
            KeyQueue.random(self.queue_size, model.projection_dim, generator, context.device) for _ in range(2)
        )
        return SwAVState(queue=ViewQueues(first=first, second=second))

    def phase(self, epoch: int) -> Hashable:
        """Whether prototypes are frozen, and whether queues are used."""
        return epoch < self.freeze_epochs, epoch >= self.queue_epoch

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Predict each large view's code from the other views; both pass the network in one batch of 2 B."""
        views, small = context.stacked_views(batch.images, generator), context.small_views(batch.images, generator)
        with context.autocast():
            _, projections = model(views, *small)
        weights = _prototypes(model)
        if batch.epoch < self.freeze_epochs:
            weights = weights.detach()
        unit = F.normalize(projections, dim=1).split(len(batch.images))
        scores = [rows @ weights.T for rows in unit]
        queues = state_as(SwAVState, state).queue if batch.epoch >= self.queue_epoch else None
        by_view = (None, None) if queues is None else (queues.first, queues.second)
        codes = [self.codes(score, queue, weights) for score, queue in zip(scores[:2], by_view, strict=True)]
        return StepOutput(
            swapped_prediction(scores, codes, self.temperature),
            projections[: len(batch.images)],
            {"first": unit[0].detach(), "second": unit[1].detach()} if self.queue_size else {},
        )

    @torch.no_grad()
    def codes(self, scores: Tensor, queue: KeyQueue | None, weights: Tensor) -> Tensor:
        """Compute q of the batch, [B, K], from its scores z.C and, if there is one and it is full, the view's queue."""
        if queue is None:
            return sinkhorn(scores, self.epsilon, self.sinkhorn_iterations)
        full = (queue.filled >= self.queue_size).expand(self.queue_size)
        counted = torch.cat([full, full.new_ones(len(scores))])
        among = torch.cat([queue.rows @ weights.T, scores])
        return sinkhorn(among, self.epsilon, self.sinkhorn_iterations, counted=counted)[-len(scores) :]

    def finish_step(self, context: Context, model: Model, state: nn.Module, output: StepOutput) -> None:
        """Bring prototypes back to unit length and enqueue the projections."""
        normalize_prototypes(model)
        if (queues := state_as(SwAVState, state).queue) is not None:
            queues.first.enqueue(output.updates["first"])
            queues.second.enqueue(output.updates["second"])


@torch.no_grad()
def normalize_prototypes(model: Model) -> None:
    """Scale each prototype to unit length, in place."""
    weights = _prototypes(model)
    weights.copy_(F.normalize(weights, dim=1))


def _prototypes(model: Model) -> Tensor:
    layer = model.part("prototypes")
    assert isinstance(layer, nn.Linear), "SwAV.heads made it"
    return layer.weight
