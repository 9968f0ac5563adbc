"""LocalOnly: every client trains alone; the lower and the upper bound of a federation.

On the real partition it is FLESD's Min-Local (the minimum over clients) and the mean over clients of its Figure 2; on
`partition=pooled`, where one client holds everything, it is Non-FL, the centralized upper bound.

Symbols: w_k weights of client k.

Deviations: with more than one round the optimizer starts anew in each, as it does in the federated methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass as pydantic_dataclass

from rayfed_ssl.method import Client, Empty, Encoder, Method, Metrics, Server, Weights, sent


@dataclass(frozen=True)
class ClientState:
    """The client's own model and its objective's state, which never leave it."""

    architecture: str
    weights: Weights


@dataclass(frozen=True)
class Download:
    """The common start, in the first round only; later a client continues from its own model."""

    weights: Weights | None = sent("weights")


@dataclass(frozen=True)
class ServerState:
    """The common start where all clients share an architecture, and whether it was handed out."""

    weights: Weights | None
    started: tuple[int, ...] = ()


def own_encoders(clients: Mapping[int, Any]) -> dict[str, Encoder]:
    """Name the encoders of clients that have a model of their own."""
    return {
        f"client-{client_id}": Encoder.of(state.architecture, state.weights)
        for client_id, state in clients.items()
        if isinstance(state, ClientState)
    }


@pydantic_dataclass(frozen=True, kw_only=True)
class LocalOnly(Method):
    """Train each client alone."""

    uploads_follow_weights: ClassVar = True

    def init_server(self, server: Server) -> ServerState:
        """Draw the common start; clients of different architectures draw their own."""
        return ServerState(None if server.task.heterogeneous else server.task.initial_weights())

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send the common start to a client that has not started yet."""
        return Download(None if client_id in state.started else state.weights)

    def update_client(
        self, download: Download, state: ClientState | Empty, client: Client
    ) -> tuple[Empty, ClientState, Metrics]:
        """Continue to train the client's own model; nothing is sent."""
        if isinstance(state, ClientState):
            weights = state.weights
        else:
            weights = download.weights or client.task.initial_weights(client.architecture)
        trained, metrics = client.train(weights)
        return Empty(), ClientState(client.architecture, trained), metrics

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Empty], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Note which clients have started."""
        return ServerState(state.weights, tuple(sorted({*state.started, *uploads}))), {}

    def encoders(self, state: ServerState, clients: Mapping[int, ClientState | Empty]) -> dict[str, Encoder]:
        """Each client's own encoder."""
        return own_encoders(clients)
