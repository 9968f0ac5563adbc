"""FedProx: FedAvg with a term that holds local weights near the global ones.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020.

Symbols: w local weights; w^t global weights of the round; mu strength.

Deviations: FLESD's code adds mu ||w - w^t||^2 where the paper has mu / 2; `convention` chooses. Clients do equal work: the
paper's variable number of local epochs is not simulated.
"""

from functools import partial
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.method import Client, Model, Term, Weights
from rayfed_ssl.methods.fedavg import Averaging, Download


def proximal_term(model: Model, reference: Weights, mu: float) -> Tensor:
    """Mu ||w - w^t||^2 over parameters that have a global value, without running statistics (Eq. 2 without the 1/2)."""
    squares = [
        (value - reference[name]).square().sum() for name, value in model.named_parameters() if name in reference
    ]
    return mu * torch.stack(squares).sum()


@dataclass(frozen=True, kw_only=True)
class FedProx(Averaging):
    """FedAvg with a proximal term."""

    mu: NonNegativeFloat = 0.01
    """Strength; FLESD searches {0.001, 0.01, 0.1, 1}."""
    convention: Literal["flesd", "original"] = "flesd"
    """Form of the term: "flesd" adds mu ||w - w^t||^2, "original" mu / 2 ||w - w^t||^2."""

    def local_term(self, download: Download, client: Client) -> Term | None:
        """Hold local weights near w^t."""
        if self.mu == 0:
            return None
        reference = {name: value.to(client.task.device) for name, value in download.weights.items()}
        return partial(self.held_near, reference)

    def held_near(self, reference: Weights, model: Model, projections: Tensor) -> Tensor:
        """Compute the proximal term."""
        return proximal_term(model, reference, self.mu if self.convention == "flesd" else self.mu / 2)
