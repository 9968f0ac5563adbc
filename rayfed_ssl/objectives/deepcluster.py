"""DeepCluster-v2: cluster the projections, predict the clusters, and again every epoch.

Caron, Misra, Mairal, Goyal, Bojanowski, Joulin: Unsupervised Learning of Visual Features by Contrasting Cluster
Assignments, NeurIPS 2020, appendix; after Caron, Bojanowski, Joulin, Douze: Deep Clustering, ECCV 2018. "Code" below is
facebookresearch/swav. FCL's FedDC is FedAvg with this objective.

Symbols: z unit projections [B, p]; C centroids, unit rows [K, p]; bank: a unit projection of every sample [N, p]; T
temperature; N samples of the client.

Deviations:
- Clusters are the client's own, found on its own bank at the start of each local epoch; bank, centroids and assignments are
  made anew in each round and never leave the client. FCL says nothing about it.
- One head of K clusters and two views; the code has three heads of 3000 and small crops.
- A client with fewer than K samples gets as many clusters as it has samples.
- The bank is filled by a pass over first views with batch statistics, as in the code, but by a copy of the model: running
  statistics of batch-norm do not change. It is indexed by sample, so one that `drop_last` leaves out keeps its last
  projection and takes part in clustering; the code ignores it for an epoch.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.data.view_recipes import ViewRecipe
from rayfed_ssl.models import Model
from rayfed_ssl.training.clustering import spherical_k_means
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Memory, Objective, StepOutput, check_groups, state_as
from rayfed_ssl.training.state_parts import Rule


class Bank(Memory):
    """A unit projection, float32 [N, p], and a cluster, int64 [N], for each sample."""

    rows: Tensor
    assignments: Tensor


class DeepClusterState(Memory):
    """What DeepCluster-v2 remembers: the bank, and C, unit rows [K, p]."""

    bank: Bank
    centroids: Tensor

    @classmethod
    def of(cls, rows: Tensor, num_clusters: int) -> "DeepClusterState":
        """Start from a bank's rows, before they are clustered."""
        assignments = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return cls(bank=Bank(rows=rows, assignments=assignments), centroids=rows[:num_clusters].clone())


def cluster_prediction(views: Sequence[Tensor], centroids: Tensor, assignments: Tensor, temperature: float) -> Tensor:
    """Mean over samples and views of -log softmax(z.C / T) at the sample's cluster, for unit-length z [B, p]."""
    return F.cross_entropy(torch.cat(list(views)) @ centroids.T / temperature, assignments.repeat(len(views)))


@torch.no_grad()
def project_views(
    context: Context, model: Model, data: Shard, recipe: ViewRecipe, generator: torch.Generator
) -> Tensor:
    """Draw one view of every sample and project it with batch statistics, as in training; the model does not change.

    Returns:
        Unit projections by sample, float32 [N, p].
    """
    copied, num = context.twin(model), len(data)
    rows = torch.empty(num, model.projection_dim, device=context.device)
    order = torch.randperm(num, generator=generator)
    parts = order.tensor_split(max(1, num // context.batch))  # no batch of one, which has no statistics
    for index, images in data.batches(parts):
        with context.autocast():
            _, projections = copied(context.augment(images, recipe, generator))
        rows[index] = F.normalize(projections, dim=1)
    return rows


@dataclass(frozen=True, kw_only=True)
class DeepCluster(Objective):
    """DeepCluster-v2's prediction of its own clusters."""

    joins: ClassVar[str] = "clusters are of all samples"
    parts: ClassVar[Mapping[str, Rule]] = {"bank": "reset", "centroids": "reset"}
    head: ClassVar = Head("simclr-bn", 128)
    """The projector: d-d-128 with batch-norm, as SwAV's."""
    clusters: Annotated[int, Field(ge=2)] = 128
    """K. The paper's 3000 are for 1.28 million images; a client of 10,000 fills 128 with 78 each."""
    temperature: PositiveFloat = 0.1
    """T (code)."""
    iterations: PositiveInt = 10
    """Of spherical k-means (code)."""

    def check(self, context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
        """Refuse more clusters than any client has samples; tell which clients get fewer."""
        alone = "each sample can become a cluster of its own"
        return check_groups("DeepCluster", "clusters", self.clusters, shard_sizes, alone)

    def start(self, context: Context, model: Model, data: Shard, generator: torch.Generator) -> DeepClusterState:
        """Fill the bank by a pass over first views."""
        rows = project_views(context, model, data, context.views.first, generator)
        return DeepClusterState.of(rows, min(self.clusters, len(data)))

    def start_epoch(
        self, context: Context, model: Model, state: nn.Module, data: Shard, epoch: int, generator: torch.Generator
    ) -> None:
        """Cluster the bank anew."""
        state = state_as(DeepClusterState, state)
        centroids, assignments = spherical_k_means(state.bank.rows, len(state.centroids), self.iterations, generator)
        state.centroids.copy_(centroids)
        state.bank.assignments.copy_(assignments)

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Predict the samples' clusters from two views, which pass the network in one batch of 2 B."""
        state = state_as(DeepClusterState, state)
        views = context.stacked_views(batch.images, generator)
        with context.autocast():
            _, projections = model(views)
        unit = F.normalize(projections, dim=1).chunk(2)
        loss = cluster_prediction(unit, state.centroids, state.bank.assignments[batch.index], self.temperature)
        remember = {"rows": unit[0].detach(), "index": batch.index}
        return StepOutput(loss, projections[: len(batch.images)], remember)

    def finish_step(self, context: Context, model: Model, state: nn.Module, output: StepOutput) -> None:
        """Put the first views' projections into the bank."""
        state_as(DeepClusterState, state).bank.rows[output.updates["index"]] = output.updates["rows"]
