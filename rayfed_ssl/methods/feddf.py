"""FedDF: average the clients of each architecture, then distil all of them into each average.

Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020, at the level of
features, as FedFoA compares with it. "Code" below means what the authors' code is known to do.

Symbols: D_pub unlabeled samples for the transfer, P of them; R_k = client k's unit-length projections of D_pub [P, D];
M = their mean [P, D]; w_a weights of architecture a; n_k samples of client k.

Deviations:
- The paper's ensemble averages class scores and its student minimizes a Kullback-Leibler divergence; FedFoA's text says
  only "share knowledge at the feature level". Here the student's unit-length projections are drawn to the teachers' mean,
  by mean squared error or by cosine (`distance`).
- Teachers see one plain view of each sample in evaluation mode, once a round; the student sees the same view in training
  mode. The mean is not scaled back to unit length: under "mse" a sample counts the less, the more the teachers disagree.
- The code takes up to 10,000 steps and stops early by validation accuracy, with a cosine schedule; without labels there is
  nothing to validate on, so the number of epochs is fixed and the learning rate constant.
- FedFoA's transfer data are "collaboratively generated", no more is said; here they are the run's public data.
- With four clients of four architectures the averages are the clients' own models.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.aggregation.weighted_mean import WeightedMean, ordered_sum
from rayfed_ssl.method import Client, Encoder, Metrics, Model, Server, Shard, Task, Weights, sent
from rayfed_ssl.methods import fedavg
from rayfed_ssl.training.optimizers import Adam
from rayfed_ssl.trees import tensor_mean


@dataclass(frozen=True)
class ServerState:
    """Which architecture each client has, cyclically, and w_a of each architecture."""

    architectures: tuple[str, ...]
    weights: dict[str, Weights]


@dataclass(frozen=True)
class Download:
    """The weights of the client's architecture."""

    weights: Weights = sent("weights")


@dataclass(frozen=True)
class Upload:
    """What a client reveals: its weights, from which samples can be reconstructed, and how many samples it has."""

    weights: Weights = sent("weights")
    num_samples: int = sent("statistics", weight=True)
    architecture: str = sent("statistics", default="")


def distance_loss(projections: Tensor, taught: Tensor, distance: str) -> Tensor:
    """Compare a student's projections, not normalized, with rows of M, both [B, D].

    "mse" is the mean over all entries of (student - M)^2, the student at unit length; "cosine" that of 1 - cos(student, M).
    """
    if distance == "mse":
        return F.mse_loss(F.normalize(projections, dim=1), taught)
    return 1 - F.cosine_similarity(projections, taught, dim=1).mean()


@pydantic_dataclass(frozen=True, kw_only=True)
class FedDF(fedavg.Averaging):
    """FedAvg per architecture, followed by the distillation of all received models into each."""

    uploads_follow_weights: ClassVar = True
    averages_weights: ClassVar = False
    needs_public: ClassVar = True
    sends: ClassVar = Upload
    weighting: ClassVar = "samples"  # type: ignore[misc]
    distance: Literal["mse", "cosine"] = "mse"
    """What the student minimizes."""
    distil_epochs: NonNegativeInt = 20
    """Passes over D_pub per round and architecture; 0 leaves the averages as they are."""
    distil_batch: Annotated[int, Field(ge=2)] = 128
    """Samples a step (code)."""
    distil_lr: PositiveFloat = 1e-3
    """Learning rate of Adam (code)."""

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse what a teacher cannot do without, projections of different widths and a public set of one sample."""
        rules = self.rules(task)
        for part in ("encoder", "projector", "batch_norm"):
            if rules[part] != "averaged":
                raise ValueError(
                    f"feddf lets the server look at public data with whole models, got method.parts.{part}={rules[part]}: "
                    "remove it"
                )
        task.shared_width("feddf")
        if num_public < 2:
            raise ValueError(f"feddf needs at least 2 public samples, got {num_public}: set a larger public set")
        return ()

    def init_server(self, server: Server) -> ServerState:
        """Start every architecture from its random weights."""
        task = server.task
        architectures = task.client_encoders or (task.encoder,)
        names = sorted(set(architectures))
        return ServerState(architectures, {name: self.averaged(task.initial_weights(name), task) for name in names})

    def download(self, state: Any, client_id: int) -> Any:
        """Send a client the weights of its architecture."""
        return Download(state.weights[_architecture(state, client_id)])

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train as FedAvg's clients do."""
        upload, next_state, metrics = self.train(download.weights, state, client)
        return replace(upload, architecture=client.architecture), next_state, metrics

    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[ServerState, Metrics]:
        """Average each architecture's clients (n_k / n); distil the ensemble of all into each average that moved."""
        assert server.public is not None, "the engine refuses to start FedDF without public data"
        means: dict[str, WeightedMean] = {}

        def projections(public: Shard) -> Iterator[Tensor]:
            for upload in uploads.values():
                means.setdefault(upload.architecture, WeightedMean()).add(self.factor(upload), upload.weights)
                if self.distil_epochs:
                    yield server.task.project(server.task.model(upload.weights, upload.architecture), public)

        taught = tensor_mean(projections(server.public))  # M = 1/|S| sum_k R_k (code: `avg_logits`)
        weights = state.weights | {name: mean.result() for name, mean in means.items()}
        if taught is None:
            return ServerState(state.architectures, weights), {}
        losses = []
        for name in sorted(means):
            student = server.task.model(weights[name], name)
            losses.append(self.distil(student, taught, server))
            fitted = server.task.weights_of(student)
            weights[name] = {key: fitted.get(key, value) for key, value in weights[name].items()}
        names = {"distil_loss_first": "loss_first", "distil_loss": "loss", "distil_steps": "steps"}
        metrics = {name: ordered_sum(loss[key] for loss in losses) / len(losses) for name, key in names.items()}
        return ServerState(state.architectures, weights), metrics

    def distil(self, student: Model, taught: Tensor, server: Server) -> Metrics:
        """Train the average of one architecture's clients towards the teachers' mean M, [P, D], in place."""
        assert server.public is not None, "the engine refuses to start FedDF without public data"
        return server.task.fit_projections(
            student,
            server.public,
            server.generator,
            taught,
            partial(distance_loss, distance=self.distance),
            epochs=self.distil_epochs,
            batch=self.distil_batch,
            optimizer=Adam(lr=self.distil_lr, weight_decay=0),
        )

    def encoders(self, state: Any, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The global encoder where there is one architecture, else the one of each client that has trained."""
        if len(state.weights) == 1:
            ((name, weights),) = state.weights.items()
            return {"global": Encoder.of(name, weights)}
        names = {client_id: _architecture(state, client_id) for client_id in clients}
        return {f"client-{client_id}": Encoder.of(name, state.weights[name]) for client_id, name in names.items()}


def _architecture(state: ServerState, client_id: int) -> str:
    return state.architectures[client_id % len(state.architectures)]
