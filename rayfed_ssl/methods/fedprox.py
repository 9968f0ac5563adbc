"""FedProx: FedAvg with a term that holds local weights near the global ones.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020.

Symbols: w local weights; w^t global weights of the round; mu strength.

Deviations: FLESD's code adds mu ||w - w^t||^2 where the paper has mu / 2; `convention` chooses. Clients do equal work: the
paper's variable number of local epochs is not simulated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rayfed_ssl.method import Client, Empty, Encoder, Method, Metrics, Server
from rayfed_ssl.methods.fedavg import ClientState, Download, FedAvg, ServerState, Upload
from rayfed_ssl.models import Model
from rayfed_ssl.training.state_parts import Parts, Rule
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights


def proximal_term(model: Model, reference: Weights, mu: float) -> Tensor:
    """Mu ||w - w^t||^2 over parameters, not over batch-norm's running statistics (FedProx, Eq. 2 without the 1/2).

    Args:
        model: The model in training.
        reference: w^t by parameter name, on the model's device; parameters that are not in it have no global value.
        mu: Strength, at least 0.

    Returns:
        A scalar that can be differentiated.
    """
    squares = [
        (value - reference[name]).square().sum() for name, value in model.named_parameters() if name in reference
    ]
    return mu * torch.stack(squares).sum()


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """FedAvg with a proximal term.

    Attributes:
        mu: Strength; FLESD searches {0.001, 0.01, 0.1, 1}.
        convention: "flesd" adds mu ||w - w^t||^2, "original" mu / 2 ||w - w^t||^2.
        weighting: As in FedAvg.
        parts: As in FedAvg.
    """

    privacy: ClassVar = "High"
    averages_weights: ClassVar = True
    mu: float = 0.01
    convention: Literal["flesd", "original"] = "flesd"
    weighting: Literal["samples", "uniform"] = "samples"
    parts: Parts = Parts()

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ValueError(f"method.mu must be at least 0, got {self.mu}")

    @property
    def averaging(self) -> FedAvg:
        """The FedAvg that everything but the local loss is left to."""
        return FedAvg(weighting=self.weighting, parts=self.parts)

    def rules(self, task: Task) -> Mapping[str, Rule]:
        """The same rules as FedAvg's."""
        return self.averaging.rules(task)

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse what FedAvg refuses."""
        return self.averaging.check(task, num_public)

    def init_server(self, server: Server) -> ServerState:
        """Start as FedAvg does."""
        return self.averaging.init_server(server)

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send the global weights to everybody."""
        return self.averaging.download(state, client_id)

    def update_client(
        self, download: Download, state: ClientState | Empty, client: Client
    ) -> tuple[Upload, ClientState | Empty, Metrics]:
        """ClientUpdate: local epochs on the loss plus the proximal term."""
        if self.mu == 0:
            return self.averaging.update_client(download, state, client)
        reference = {name: value.to(client.task.device) for name, value in download.weights.items()}
        strength = self.mu if self.convention == "flesd" else self.mu / 2
        near = client.adding(lambda model, projections: proximal_term(model, reference, strength))
        return self.averaging.update_client(download, state, near)

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Upload], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Average as FedAvg does."""
        return self.averaging.update_server(state, uploads, server)

    def encoders(self, state: ServerState, clients: Mapping[int, ClientState | Empty]) -> dict[str, Encoder]:
        """The same encoders as FedAvg's."""
        return self.averaging.encoders(state, clients)
