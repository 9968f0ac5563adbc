"""FedU: take the global encoder, but the global predictor only where the encoder has not moved far.

Zhuang, Gan, Wen, Zhang, Yi: Collaborative Unsupervised Visual Representation Learning from Decentralized Data, ICCV 2021.
"Code" below is the authors' EasyFL.

Symbols: d_k divergence of client k, how far its encoder moved in its last local training; mu threshold of the
divergence-aware predictor update (DAPU).

Deviations:
- The code's first choice is the local predictor, but a client that has none yet takes the global one, so the choice never
  shows. It does not exist here.
- A convolution's weight is a 4-dimensional encoder entry with "conv" in its name. The code goes by the name alone, which
  leaves out the shortcuts of ResNets ("downsample" here) and everything outside the encoder.
- The predictor is a module: batch-norm's running statistics go with its parameters (code).
- A target stays with its client, as the objective's rules say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from rayfed_ssl.method import Client, Empty, Encoder, Method, Metrics, Server
from rayfed_ssl.methods import fedavg
from rayfed_ssl.methods.fedavg import Download, FedAvg, ServerState, Upload
from rayfed_ssl.training.state_parts import Parts, Rule
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights


@dataclass(frozen=True)
class ClientState:
    """What FedAvg keeps, the predictor of the last local training, and how far the encoder moved in it."""

    averaging: fedavg.ClientState | Empty
    predictor: Weights
    divergence: float


def convolutions(weights: Weights) -> list[str]:
    """Name the weights of the encoder's convolutions, without shortcuts."""
    return [
        name for name, value in weights.items() if name.startswith("encoder.") and "conv" in name and value.dim() == 4
    ]


def encoder_divergence(before: Weights, after: Weights) -> float:
    """d_k: mean over the encoder's convolutions of the Euclidean distance of their weights, in float64.

    Args:
        before: What a local training started from.
        after: What it ended with.
    """
    distances = [torch.dist(before[name].double(), after[name].double()) for name in convolutions(after)]
    return float(torch.stack(distances).mean())


def predictor(weights: Weights) -> Weights:
    """Select the predictor, batch-norm's statistics too."""
    return {name: value for name, value in weights.items() if name.startswith("predictor.")}


def check_averaged(name: str, averaging: FedAvg, task: Task, *parts: str) -> None:
    """Refuse a run in which a part that a method decides about is not there, or does not come from the server.

    Raises:
        ValueError: As said.
    """
    rules = averaging.rules(task)
    for part in parts:
        if part not in rules:
            raise ValueError(
                f"{name} needs an objective with a {part}, this one has {', '.join(rules)}: set objective=byol"
            )
        if rules[part] != "averaged":
            raise ValueError(
                f"{name} decides about the {part} itself, got method.parts.{part}={rules[part]}: remove it or take fedavg"
            )
    if not convolutions(task.blank(task.encoder).state_dict()):
        raise ValueError(
            f"{name} measures divergence on convolutions, and encoder {task.encoder} has none: take another"
        )


@dataclass(frozen=True, kw_only=True)
class FedU(Method):
    """FedAvg with the divergence-aware predictor update.

    Attributes:
        threshold: mu; 0.4 in the code.
        weighting: As in FedAvg; the code has "samples".
        parts: As in FedAvg.
    """

    privacy: ClassVar = "High"
    averages_weights: ClassVar = True
    threshold: float = 0.4
    weighting: Literal["samples", "uniform"] = "samples"
    parts: Parts = Parts()

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise ValueError(f"method.threshold must be at least 0, got {self.threshold}")

    @property
    def averaging(self) -> FedAvg:
        """The FedAvg that everything but the client's start is left to."""
        return FedAvg(weighting=self.weighting, parts=self.parts)

    def rules(self, task: Task) -> dict[str, Rule]:
        """As FedAvg's, but for the predictor the client chooses between two."""
        return {**self.averaging.rules(task), "predictor": "mixed"}

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse an objective without a predictor."""
        notes = self.averaging.check(task, num_public)
        check_averaged("FedU", self.averaging, task, "encoder", "predictor")
        return notes

    def init_server(self, server: Server) -> ServerState:
        """Start as FedAvg does."""
        return self.averaging.init_server(server)

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send the global weights to everybody; a client may not use the predictor."""
        return self.averaging.download(state, client_id)

    def update_client(
        self, download: Download, state: ClientState | Empty, client: Client
    ) -> tuple[Upload, ClientState, Metrics]:
        """Train from the global encoder, and from the own predictor where the encoder moved by mu or more."""
        before = state.averaging if isinstance(state, ClientState) else state
        start = download.weights | self.own_predictor(state)
        upload, kept, metrics = self.averaging.update_client(replace(download, weights=start), before, client)
        divergence = encoder_divergence(start, upload.weights)
        return upload, ClientState(kept, predictor(upload.weights), divergence), {**metrics, "divergence": divergence}

    def own_predictor(self, state: ClientState | Empty) -> Weights:
        """DAPU: the client's predictor if d_k >= mu, nothing if the global one is to be taken."""
        return state.predictor if isinstance(state, ClientState) and state.divergence >= self.threshold else {}

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Upload], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Average as FedAvg does."""
        return self.averaging.update_server(state, uploads, server)

    def encoders(self, state: ServerState, clients: Mapping[int, ClientState | Empty]) -> dict[str, Encoder]:
        """The same encoders as FedAvg's."""
        return self.averaging.encoders(
            state, {k: own.averaging if isinstance(own, ClientState) else own for k, own in clients.items()}
        )
