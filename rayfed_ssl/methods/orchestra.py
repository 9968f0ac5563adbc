"""Orchestra: clusters that mean the same on all clients.

Lubana, Tang, Kawsar, Dick, Mathur: Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering, ICML 2022.
"Code" below is akhilmathurs/orchestra.

Symbols: z_t unit projections by the target network; C global centroids, unit rows [G, p]; L local clusters of a client; T
temperature; p_k weight of client k, in proportion to its number of batches; lambda sharpness of balanced assignments.

Clients keep nothing. Each round they get online network, target network and C, minimize `objective=orchestra`, cluster the
target's last projections into L equally full groups and send weights and the groups' centroids. The server averages the
weights and clusters all centroids of the round into C.

Deviations:
- Round 1 has no C yet: clients only cluster projections by the initial target, nobody trains and no weights are sent. The
  code adds such a round to the number asked for; here it is the first of `rounds`.
- C starts in random directions; the code's first C is not of unit length before the first step.
- A client makes at most one local cluster for each two samples. The code asks for L and fails below.
- A queue that is not full yet is clustered as far as it is filled; the code would cluster random numbers with it.
- The number of batches counts an incomplete last batch where the run trains on it; the code drops it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.aggregation.weighted_mean import WeightedMean
from rayfed_ssl.method import Client, Empty, Metrics, Rule, Server, Task, Weights, sent
from rayfed_ssl.methods import fedavg
from rayfed_ssl.objectives.deepcluster import project_views
from rayfed_ssl.objectives.orchestra import OrchestraObjective
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.training import clustering
from rayfed_ssl.training.objective import objective_as
from rayfed_ssl.training.optimizers import SGD
from rayfed_ssl.training.state_parts import Parts
from rayfed_ssl.training.step import descend


@dataclass(frozen=True)
class ServerState(fedavg.ServerState):
    """The global weights, from round 2 on the target's among them, and C.

    Attributes:
        centroids: C, [G, p]; random directions before round 1.
        clustered: Whether C has come from clients.
    """

    centroids: Tensor
    clustered: bool = False


@dataclass(frozen=True)
class Download:
    """The global weights, and C once there is one."""

    weights: Weights = sent("weights")
    centroids: Tensor | None = sent("representations", default=None)


@dataclass(frozen=True)
class Upload:
    """What a client reveals: centroids of groups of its projections, its weights and how many batches they saw.

    A centroid is the mean of about memory / L projections, which tells less than a projection of one sample. It guarantees
    nothing: groups are only about equally full, and in the place of one that ends empty stands a single projection (code).
    """

    local_centroids: Tensor = sent("representations", held=True)
    num_batches: int = sent("statistics", weight=True)
    weights: Weights | None = sent("weights", default=None)


def balanced_assignments(cosines: Tensor, sharpness: float, iterations: int, tolerance: float = 0.0) -> Tensor:
    """Assign rows [N, K] to equally full clusters, starting from softmax(lambda cosines) (code); rows sum to 1."""
    return clustering.sinkhorn(F.log_softmax(sharpness * cosines, dim=1), 1.0, iterations, tolerance)


@torch.no_grad()
def cluster_locally(
    rows: Tensor, num_clusters: int, sharpness: float, iterations: int, generator: torch.Generator
) -> Tensor:
    """Cluster unit projections [N, p] into groups of about equal size (code: 10 of Sinkhorn's iterations).

    The first centroids are random rows, and so are those of groups that end empty.

    Returns:
        Unit centroids, [num_clusters, p].
    """
    centroids = rows[draw(torch.randperm, len(rows), generator=generator, device=rows.device)[:num_clusters]]
    for _ in range(iterations):
        assignments = balanced_assignments(rows @ centroids.T, sharpness, 10, 0.01).argmax(dim=1)
        others = rows[draw(torch.randint, len(rows), (num_clusters,), generator=generator, device=rows.device)]
        centroids = clustering.mean_directions(rows, assignments, others)
    return centroids


def agreement_loss(balanced: Tensor, local: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """Minus the mean cosine between balanced [N, G] and predicted assignments of local centroids [N, p] (code)."""
    predicted = F.softmax(local @ centroids.T / temperature, dim=1)
    return -F.cosine_similarity(balanced, predicted, dim=1).mean()


@pydantic_dataclass(frozen=True, kw_only=True)
class Orchestra(fedavg.Averaging):
    """Average weights, and cluster clients' clusters."""

    weighting: ClassVar = "samples"  # type: ignore[misc]
    parts: ClassVar = Parts()  # type: ignore[misc]
    sends: ClassVar = Upload
    takes_old_versions: ClassVar = False  # clients of round 1 send no weights
    local_iterations: PositiveInt = 5
    """How often local centroids move (code)."""
    sharpness: PositiveFloat = 25.0
    """lambda of balanced assignments (code)."""
    global_steps: PositiveInt = 500
    """Steps of gradient descent on C in a round (code)."""
    global_lr: PositiveFloat = 0.01
    """Their learning rate; momentum 0.9 and weight decay 1e-4 (code)."""

    def rules(self, task: Task) -> dict[str, Rule]:
        """The objective's rules, of which its centroids are made by the server from clients' centroids."""
        return {**super().rules(task), "centroids": "received"}

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse other objectives, and runs that end before training begins."""
        _objective(task)
        if task.rounds < 2:
            raise ValueError("Orchestra's first round trains nothing, got rounds=1: set rounds to 2 or more")
        return (f"Orchestra's first round only builds clusters: {task.rounds - 1} of {task.rounds} rounds train",)

    def init_server(self, server: Server) -> ServerState:
        """Start from random weights and random directions."""
        task = server.task
        dim, num = task.blank(task.encoder).projection_dim, _objective(task).clusters
        directions = torch.randn(num, dim, generator=server.generator)
        return ServerState(task.encoder, task.initial_weights(), F.normalize(directions, dim=1))

    def download(self, state: Any, client_id: int) -> Any:
        """Send online and target network and C to everybody."""
        return Download(state.weights, state.centroids if state.clustered else None)

    def update_client(self, download: Any, state: Empty, client: Client) -> tuple[Any, Empty, Metrics]:
        """Train towards C, then cluster what the target saw; without C only cluster."""
        if download.centroids is None:
            return Upload(self._local_centroids(first_projections(download.weights, client), client), 0), state, {}
        trained, metrics = client.train(download.weights | {"centroids": download.centroids})
        rows, filled = trained["queue.rows"], int(trained["queue.filled"])
        seen = rows[:filled].to(client.task.device)
        num_batches = int(metrics["steps"]) // client.task.epochs
        upload = Upload(self._local_centroids(seen, client), num_batches, self.averaged(trained, client.task))
        return upload, state, metrics

    def _local_centroids(self, rows: Tensor, client: Client) -> Tensor:
        num_clusters = min(_objective(client.task).num_local(len(client.data)), len(rows))
        return cluster_locally(rows, num_clusters, self.sharpness, self.local_iterations, client.generator).cpu()

    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[ServerState, Metrics]:
        """Server executes: w <- sum_k p_k w_k, and C from all local centroids of the round."""
        local, mean = [], WeightedMean()
        for upload in uploads.values():
            local.append(upload.local_centroids)
            if state.clustered:
                mean.add(self.factor(upload), upload.weights)
        if not local:
            raise ValueError("Orchestra has nothing to cluster: no client of this round sent an upload")
        if state.clustered:
            state = replace(state, weights=mean.result())
        # On the CPU: thousands of iterations on small matrices, each of which may be the last.
        temperature = _objective(server.task).temperature
        centroids, metrics = self.cluster_globally(torch.cat(local), state.centroids, temperature)
        return replace(state, centroids=centroids, clustered=True), metrics

    def cluster_globally(self, local: Tensor, centroids: Tensor, temperature: float) -> tuple[Tensor, Metrics]:
        """Move C until predicted assignments of local centroids are balanced (code: 100 of Sinkhorn's iterations).

        Returns:
            The new C, unit rows [G, p], and the loss of the first and of the last step.
        """
        moving = nn.Parameter(centroids.clone())
        descent = SGD(lr=self.global_lr, momentum=0.9, weight_decay=1e-4).over([moving])
        losses = []
        for step in range(self.global_steps):
            balanced = balanced_assignments(local @ moving.detach().T, self.sharpness, 100, 0.01)
            loss = agreement_loss(balanced, local, moving, temperature)
            descend(loss, descent)
            with torch.no_grad():
                moving.copy_(F.normalize(moving, dim=1))
            if step in (0, self.global_steps - 1):
                losses.append(float(loss.detach()))
        return moving.detach(), {"clustering_loss_first": losses[0], "clustering_loss": losses[-1]}


def first_projections(weights: Weights, client: Client) -> Tensor:
    """Project random samples, as many as the queue holds, by the initial target: unit rows [N, p]."""
    task, data = client.task, client.data
    some = data.select(torch.randperm(len(data), generator=client.generator)[: _objective(task).memory])
    return project_views(task, task.model(weights), some, task.views.first, client.generator)


def _objective(task: Task) -> OrchestraObjective:
    return objective_as(OrchestraObjective, task.objective, "method=orchestra has an objective of its own", "orchestra")
