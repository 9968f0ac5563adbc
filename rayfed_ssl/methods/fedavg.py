"""FedAvg: average the clients' weights.

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017. With SimCLR as objective it is FLESD's and FedCA's baseline (FedSimCLR).

Symbols: w weights; n_k samples of client k; p_k its weight in the mean (FLESD, Eq. 1).

Deviations: none from the paper with `weighting="samples"`; FLESD's code averages `"uniform"`-ly. Batch-norm is newer than
the paper: `"average"` treats its buffers as weights, as all public code of the four papers does; `"local"` keeps running
statistics on the client and averages everything else, so evaluation sees one encoder per client.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from rayfed_ssl.method import Client, Empty, Encoder, Method, Metrics, Server, sent
from rayfed_ssl.models import Model
from rayfed_ssl.trees import Weights, frozen, weighted_mean


@dataclass(frozen=True)
class ClientState:
    """Running statistics that stay with the client under `batch_norm="local"`."""

    buffers: Weights


@dataclass(frozen=True)
class ServerState:
    """The global weights; without running statistics under `batch_norm="local"`."""

    architecture: str
    weights: Weights


@dataclass(frozen=True)
class Download:
    """What a client receives: the global weights."""

    weights: Weights = sent("weights")


@dataclass(frozen=True)
class Upload:
    """What a client reveals: its weights, from which samples can be reconstructed, and how many samples it has."""

    weights: Weights = sent("weights")
    num_samples: int = sent("statistics")


BATCH_NORM_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def split_batch_norm(weights: Weights) -> tuple[Weights, Weights]:
    """Split weights into (everything else, batch-norm's running statistics)."""
    is_statistic = {name: name.rpartition(".")[2] in BATCH_NORM_STATISTICS for name in weights}
    return (
        {name: value for name, value in weights.items() if not is_statistic[name]},
        {name: value for name, value in weights.items() if is_statistic[name]},
    )


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Average clients' weights after local training.

    Attributes:
        weighting: p_k in proportion to n_k ("samples", McMahan et al.) or equal ("uniform", FLESD's code).
        batch_norm: Whether running statistics are averaged ("average") or stay with the client ("local").
    """

    privacy: ClassVar = "High"
    averages_weights: ClassVar = True
    weighting: Literal["samples", "uniform"] = "samples"
    batch_norm: Literal["average", "local"] = "average"

    def init_server(self, server: Server) -> ServerState:
        """Start from random weights."""
        return ServerState(server.task.encoder, self.shared(server.task.initial_weights()))

    def shared(self, weights: Weights) -> Weights:
        """Select the part of the weights that crosses the client's boundary."""
        return split_batch_norm(weights)[0] if self.batch_norm == "local" else weights

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send the global weights to everybody."""
        return Download(state.weights)

    def update_client(
        self, download: Download, state: ClientState | Empty, client: Client
    ) -> tuple[Upload, ClientState | Empty, Metrics]:
        """ClientUpdate(k, w): E_local epochs from the global weights."""
        return self.train(download, state, client)

    def train(
        self,
        download: Download,
        state: ClientState | Empty,
        client: Client,
        penalty: Callable[[Model], Tensor] | None = None,
    ) -> tuple[Upload, ClientState | Empty, Metrics]:
        """ClientUpdate with a term added to each step's loss, for methods that regularise local training."""
        weights = download.weights
        if self.batch_norm == "local":
            kept = (
                state.buffers if isinstance(state, ClientState) else split_batch_norm(client.task.initial_weights())[1]
            )
            weights = weights | kept
        model = client.task.model(weights)
        metrics = client.task.fit(model, client.data, client.generator, penalty)
        trained = frozen(model.state_dict())
        upload = Upload(self.shared(trained), len(client.data))
        return upload, ClientState(split_batch_norm(trained)[1]) if self.batch_norm == "local" else Empty(), metrics

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Upload], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Server executes: w <- sum_k p_k w_k (FLESD, Eq. 1)."""
        mean = weighted_mean((self.factor(upload), upload.weights) for upload in uploads.values())
        return ServerState(state.architecture, mean), {}

    def factor(self, upload: Upload) -> float:
        """p_k up to the common denominator."""
        return float(upload.num_samples) if self.weighting == "samples" else 1.0

    def encoders(self, state: ServerState, clients: Mapping[int, ClientState | Empty]) -> dict[str, Encoder]:
        """The global encoder, or with local statistics one per client that has trained."""
        if self.batch_norm == "average":
            return {"global": Encoder(state.architecture, state.weights)}
        return {
            f"client-{client_id}": Encoder(state.architecture, state.weights | own.buffers)
            for client_id, own in clients.items()
            if isinstance(own, ClientState)
        }
