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
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor

from rayfed_ssl.method import Client, Empty, Metrics, Rule, Task, Weights
from rayfed_ssl.methods import fedavg


@dataclass(frozen=True)
class ClientState:
    """What FedAvg keeps, the predictor of the last local training, and how far the encoder moved in it."""

    averaging: fedavg.ClientState | Empty
    predictor: Weights
    divergence: float


def convolutions(weights: Mapping[str, Tensor]) -> list[str]:
    """Name the weights of the encoder's convolutions, without shortcuts."""
    return [
        name for name, value in weights.items() if name.startswith("encoder.") and "conv" in name and value.dim() == 4
    ]


def encoder_divergence(before: Weights, after: Weights) -> float:
    """d_k: mean over the encoder's convolutions of the Euclidean distance of their weights, in float64."""
    distances = [torch.dist(before[name].double(), after[name].double()) for name in convolutions(after)]
    return float(torch.stack(distances).mean())


def predictor(weights: Weights) -> Weights:
    """Select the predictor, batch-norm's statistics too."""
    return {name: value for name, value in weights.items() if name.startswith("predictor.")}


def check_averaged(method: fedavg.Averaging, task: Task, *parts: str) -> None:
    """Refuse a run in which a part that a method decides about is not there, or does not come from the server.

    Raises:
        ValueError: As said.
    """
    name, rules = type(method).__name__, method.parts.over(task.parts)
    for part in parts:
        if part not in rules:
            raise ValueError(
                f"{name} needs an objective with a {part}, this one has {', '.join(rules)}: set objective=byol"
            )
        if rules[part] != "averaged":
            raise ValueError(
                f"{name} decides about the {part} itself, got method.parts.{part}={rules[part]}: remove it or take fedavg"
            )
    if not convolutions({n: v for n, v in task.blank(task.encoder).named_parameters() if v.requires_grad}):
        frozen = "" if task.adapters is None else " that model.adapters trains"
        raise ValueError(
            f"{name} measures divergence on convolutions, and encoder {task.encoder} has none{frozen}: take another"
        )


@pydantic_dataclass(frozen=True, kw_only=True)
class FedU(fedavg.Averaging):
    """FedAvg with the divergence-aware predictor update."""

    threshold: NonNegativeFloat = 0.4
    """mu; 0.4 in the code."""

    def rules(self, task: Task) -> dict[str, Rule]:
        """As FedAvg's, but for the predictor the client chooses between two."""
        return {**super().rules(task), "predictor": "mixed"}

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse an objective without a predictor."""
        check_averaged(self, task, "encoder", "predictor")
        return ()

    def update_client(
        self, download: fedavg.Download, state: ClientState | Empty, client: Client
    ) -> tuple[fedavg.Upload, ClientState, Metrics]:
        """Train from the global encoder, and from the client's predictor where the encoder moved by mu or more."""
        start = download.weights | self.client_predictor(state)
        upload, local, metrics = self.train(start, state, client)
        divergence = encoder_divergence(start, upload.weights)
        return upload, ClientState(local, predictor(upload.weights), divergence), {**metrics, "divergence": divergence}

    def client_predictor(self, state: ClientState | Empty) -> Weights:
        """DAPU: the client's predictor if d_k >= mu, nothing if the global one is to be taken."""
        return state.predictor if isinstance(state, ClientState) and state.divergence >= self.threshold else {}

    def local_parts(self, state: ClientState | Empty) -> Weights:
        """Find what FedAvg keeps."""
        return super().local_parts(state.averaging if isinstance(state, ClientState) else state)
