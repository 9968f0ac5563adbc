"""FedAvg: average the clients' weights.

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017. With SimCLR as objective it is FLESD's and FedCA's baseline (FedSimCLR).

Symbols: w weights; n_k samples of client k; p_k its weight in the mean (FLESD, Eq. 1).

Deviations: none from the paper with `weighting="samples"`; FLESD's code averages `"uniform"`-ly. The paper's models are all
weights. Ours have batch-norm, whose running statistics are averaged too, as in all public code of the four papers, and
parts that belong to an objective; `parts` says which are averaged and which stay with the client.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from rayfed_ssl.aggregation.weighted_mean import weighted_mean
from rayfed_ssl.method import Client, Empty, Encoder, Method, Metrics, Server, sent
from rayfed_ssl.training.state_parts import Parts, Rule, select, with_rule, without_memory
from rayfed_ssl.training.task import Loss, Task
from rayfed_ssl.trees import Weights


@dataclass(frozen=True)
class ClientState:
    """Parts that stay with the client: those with the rule "local"."""

    kept: Weights


@dataclass(frozen=True)
class ServerState:
    """The global weights: parts with the rule "averaged"."""

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


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Average clients' weights after local training.

    Attributes:
        weighting: p_k in proportion to n_k ("samples", McMahan et al.) or equal ("uniform", FLESD's code).
        parts: What is averaged, kept by the client or reset, where it shall differ from the objective's own rules.
    """

    privacy: ClassVar = "High"
    averages_weights: ClassVar = True
    weighting: Literal["samples", "uniform"] = "samples"
    parts: Parts = Parts()

    def rules(self, task: Task) -> dict[str, Rule]:
        """Name each part's rule under this task's objective."""
        return self.parts.over(task.objective.parts)

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse rules for parts that the objective does not have."""
        self.rules(task)
        return ()

    def init_server(self, server: Server) -> ServerState:
        """Start from random weights."""
        averaged = with_rule(self.rules(server.task), "averaged")
        return ServerState(server.task.encoder, select(server.task.initial_weights(), averaged))

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send the global weights to everybody."""
        return Download(state.weights)

    def update_client(
        self, download: Download, state: ClientState | Empty, client: Client, loss: Loss | None = None
    ) -> tuple[Upload, ClientState | Empty, Metrics]:
        """ClientUpdate(k, w): E_local epochs from the global weights, on the objective or on a method's own loss."""
        weights = download.weights | state.kept if isinstance(state, ClientState) else download.weights
        trained, metrics = client.train(weights, loss)
        rules = self.rules(client.task)
        upload = Upload(select(trained, with_rule(rules, "averaged")), len(client.data))
        kept = select(trained, with_rule(rules, "local"))
        return upload, ClientState(kept) if kept else Empty(), metrics

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
        """The global encoder, or one per client that has trained where clients keep a part of it."""
        own = {
            f"client-{client_id}": Encoder(state.architecture, without_memory(state.weights | mine.kept))
            for client_id, mine in clients.items()
            if isinstance(mine, ClientState) and select(mine.kept, ("encoder", "batch_norm"))
        }
        return own or {"global": Encoder(state.architecture, without_memory(state.weights))}
