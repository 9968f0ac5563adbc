"""FedAvg: average the clients' weights.

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017. With SimCLR as objective it is FLESD's and FedCA's baseline (FedSimCLR).

Symbols: w weights; n_k samples of client k; p_k its weight in the mean (FLESD, Eq. 1).

Deviations: none from the paper with `weighting="samples"`; FLESD's code averages `"uniform"`-ly. The paper's models are all
weights. Ours have batch-norm, whose running statistics are averaged too, as in all public code of the four papers, and
parts that belong to an objective; `parts` says which are averaged and which stay with the client.

`Averaging` holds the steps, with hooks for methods that change one of them: `local_term` for what a client minimizes,
`aggregate` for what the server makes of the uploads, `local_parts` where a client's state holds more. A method that leaves
no choice of `weighting` or `parts` makes it a class variable (docs/decisions/0008-methods-that-average.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass as pydantic_dataclass

from rayfed_ssl.aggregation.weighted_mean import weighted_mean
from rayfed_ssl.method import (
    Client,
    Empty,
    Encoder,
    Loss,
    Method,
    Metrics,
    Rule,
    Server,
    Task,
    Term,
    Weights,
    sent,
)
from rayfed_ssl.training import state_parts
from rayfed_ssl.training.state_parts import Parts


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

    weights: Weights = sent("weights", summed=True, release="difference")
    num_samples: int = sent("statistics", weight=True)


@pydantic_dataclass(frozen=True, kw_only=True)
class Averaging(Method):
    """The steps of FedAvg, each of which a method may replace."""

    averages_weights: ClassVar = True
    sends: ClassVar[type] = Upload
    takes_old_versions: ClassVar = True
    weighting: Literal["samples", "uniform"] = "samples"
    """p_k in proportion to n_k ("samples", McMahan et al.) or equal ("uniform", FLESD's code)."""
    parts: Parts = Parts()
    """What is averaged, kept by the client or reset, where it shall differ from the objective's own rules."""

    def rules(self, task: Task) -> dict[str, Rule]:
        """Name each part's rule under this task's objective."""
        return self.parts.over(task.parts)

    def averaged(self, weights: Weights, task: Task) -> Weights:
        """Select the parts that are averaged."""
        return state_parts.select(weights, state_parts.with_rule(self.rules(task), "averaged", "mixed"))

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse rules for parts that the objective does not have."""
        self.rules(task)
        return ()

    def init_server(self, server: Server) -> Any:
        """Start from random weights."""
        return ServerState(server.task.encoder, self.averaged(server.task.initial_weights(), server.task))

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send the global weights to everybody."""
        return Download(state.weights)

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Upload, Any, Metrics]:
        """ClientUpdate(k, w): E_local epochs from the global weights."""
        return self.train(download.weights, state, client, term=self.local_term(download, client))

    def train(
        self, weights: Weights, state: Any, client: Client, *, loss: Loss | None = None, term: Term | None = None
    ) -> tuple[Any, ClientState | Empty, Metrics]:
        """Train from averaged and local parts; `loss` replaces the objective's, `term` is added to it."""
        if term is not None:
            client = client.with_term(term)
        trained, metrics = client.train(weights | self.local_parts(state), loss)
        local = state_parts.select(trained, state_parts.with_rule(self.rules(client.task), "local"))
        upload = self.sends(weights=self.averaged(trained, client.task), num_samples=len(client.data))
        return upload, ClientState(local) if local else Empty(), metrics

    def local_term(self, download: Download, client: Client) -> Term | None:
        """Make what is added to each step's loss; by default nothing."""
        return None

    def local_parts(self, state: Any) -> Weights:
        """Find the parts that stay with a client in its state."""
        return state.kept if isinstance(state, ClientState) else {}

    def update_server(self, state: Any, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        """Replace the global weights by what `aggregate` makes of the uploads."""
        weights, metrics = self.aggregate(state, uploads, server)
        return replace(state, weights=weights), metrics

    def aggregate(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Weights, Metrics]:
        """Server executes: w <- sum_k p_k w_k (FLESD, Eq. 1)."""
        return weighted_mean((self.factor(upload), upload.weights) for upload in uploads.values()), {}

    def factor(self, upload: Upload) -> float:
        """p_k up to the common denominator."""
        return super().factor(upload) if self.weighting == "samples" else 1.0

    def encoders(self, state: Any, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The global encoder, or one per client that has trained where clients keep a part of it."""
        local = {client_id: self.local_parts(client) for client_id, client in clients.items()}
        personal = {
            f"client-{client_id}": Encoder.of(state.architecture, state.weights | parts)
            for client_id, parts in local.items()
            if state_parts.select(parts, ("encoder", "lora_b", "batch_norm"))
        }
        return personal or {"global": Encoder.of(state.architecture, state.weights)}


@pydantic_dataclass(frozen=True, kw_only=True)
class FedAvg(Averaging):
    """Average clients' weights after local training."""

    uploads_follow_weights: ClassVar = True
