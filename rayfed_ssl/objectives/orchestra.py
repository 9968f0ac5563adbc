"""Orchestra's local objective: both views of a sample belong to one of the federation's clusters.

Lubana, Tang, Kawsar, Dick, Mathur: Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering, ICML 2022.
"Code" below is akhilmathurs/orchestra. Clusters come from the server: only method=orchestra (`methods/orchestra.py`) sends
them, and describes the whole.

Symbols: z_o, z_t unit projections by the online and the target network [B, p]; C global centroids, unit rows [G, p]; T
temperature; y quarter turns; zeta target decay.

Deviations:
- The target moves after the optimizer's step. In the code it moves before it is used: the first step of a local training
  already sees it moved, and the last step does not move it.
- First views pass the target alone: the code passes them through the online network as well and uses only what that does to
  running statistics of batch-norm. So a method's terms see the projections of the second view.
- The rotated view is drawn by the first view's recipe, and turned anticlockwise.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.augmentation import rotate_quarter_turns
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.objectives.moco import KeyQueue
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.training.context import Context, cohort_size, update_momentum
from rayfed_ssl.training.objective import Batch, Head, Memory, Objective, StepOutput, state_as
from rayfed_ssl.training.state_parts import Rule
from rayfed_ssl.validation import UnitInterval


class OrchestraState(Memory):
    """What Orchestra's clients hold in a round.

    Attributes:
        target: The target network, in training mode, without gradients.
        centroids: C, [G, p]; zeros until the server's are loaded.
        queue: The target's last projections of first views, which become local clusters.
    """

    target: Model
    centroids: Tensor
    queue: KeyQueue


def assignment_consistency(target: Tensor, online: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """Mean over samples of -softmax(z_t.C / T) . log softmax(z_o.C / T) (Orchestra, L_cluster); z [B, p], C [G, p]."""
    wanted = F.softmax(target @ centroids.T / temperature, dim=1)
    return -(wanted * F.log_softmax(online @ centroids.T / temperature, dim=1)).sum(1).mean()


@dataclass(frozen=True, kw_only=True)
class OrchestraObjective(Objective):
    """Agreement on the federation's clusters.

    It works with method=orchestra alone, which sends the clusters.
    """

    joins: ClassVar[str] = "clusters are of all samples"
    belongs_to: ClassVar[str | None] = "orchestra"
    parts: ClassVar[Mapping[str, Rule]] = {
        "degree": "averaged",
        "target": "averaged",
        "centroids": "reset",
        "queue": "reset",
    }
    head: ClassVar = Head("orchestra", 512)
    """The projector: 512-512 with batch-norm after both layers, the last without scale and shift (code)."""
    clusters: Annotated[int, Field(ge=2)] = 128
    """G, global clusters (code)."""
    local_clusters: PositiveInt = 16
    """L, centroids that a client uploads, if it has twice as many samples (code)."""
    memory: int = 128
    """Projections from which a client makes its local clusters (code)."""
    temperature: PositiveFloat = 0.1
    """T (code)."""
    momentum: UnitInterval = 0.996
    """zeta (code)."""

    def __post_init__(self) -> None:
        if self.memory < 2 * self.local_clusters:
            raise ValueError(
                f"objective.memory must hold at least two projections for each of {self.local_clusters} local clusters, got "
                f"{self.memory}: raise it or lower objective.local_clusters"
            )

    def heads(self, context: Context, feature_dim: int, projection_dim: int) -> dict[str, nn.Module]:
        """The layer that tells rotations from projections (code)."""
        return {"degree": nn.Linear(projection_dim, 4)}

    def check(self, context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
        """Refuse more global clusters than clients can fill; tell which clients upload fewer local clusters."""
        cohort = cohort_size(context.fraction, len(shard_sizes))
        most = sum(sorted(self.num_local(size) for size in shard_sizes)[-cohort:])
        if self.clusters >= most:
            raise ValueError(
                f"Orchestra's objective.clusters must stay below the number of local clusters of a round, got "
                f"{self.clusters} and {most} from {cohort} clients: set it to {max(2, most // 2)} or less, or raise "
                "objective.local_clusters or clients.fraction"
            )
        small = [size for size in shard_sizes if self.num_local(size) < self.local_clusters]
        if not small:
            return ()
        return (
            f"{len(small)} of {len(shard_sizes)} clients upload fewer than {self.local_clusters} local clusters: the "
            f"smallest has {min(small)} samples, and a cluster holds at least two",
        )

    def num_local(self, num_samples: int) -> int:
        """How many local clusters a client makes: L, but no cluster of a single sample."""
        return max(1, min(self.local_clusters, num_samples // 2))

    def start(self, context: Context, model: Model, data: Shard, generator: torch.Generator) -> OrchestraState:
        """Start the target as the online network, without centroids and with an empty queue."""
        return OrchestraState(
            target=context.twin(model),
            centroids=torch.zeros(self.clusters, model.projection_dim, device=context.device),
            queue=KeyQueue.random(self.memory, model.projection_dim, generator, context.device),
        )

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Assignment consistency of two views, plus the cross entropy of a third view's rotation."""
        state, images = state_as(OrchestraState, state), batch.images
        pictures = (images, context.positives(images), images)
        recipes = (context.views.first, context.views.second, context.views.first)
        views = zip(pictures, recipes, strict=True)
        first, second, third = (context.augment(each, recipe, generator) for each, recipe in views)
        turns = draw(torch.randint, 4, (len(images),), generator=generator, device=context.device)
        with context.autocast():
            _, online = model(second)
            degrees = model.part("degree")(model(rotate_quarter_turns(third, turns))[1]).float()
            with torch.no_grad():
                _, target = state.target(first)
        seen = F.normalize(target, dim=1)
        consistency = assignment_consistency(seen, F.normalize(online, dim=1), state.centroids, self.temperature)
        return StepOutput(consistency + F.cross_entropy(degrees, turns), online, {"seen": seen})

    def finish_step(self, context: Context, model: Model, state: nn.Module, output: StepOutput) -> None:
        """Move the target, and put what it saw into the queue."""
        state = state_as(OrchestraState, state)
        update_momentum(state.target, model, self.momentum)
        state.queue.enqueue(output.updates["seen"])
