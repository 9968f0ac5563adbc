"""FedAvgM, a method of one's own: FedAvg with momentum on the server.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.

    rayfed-ssl run method=examples.my_method:FedAvgM method.momentum=0.9 public=null
    python -m examples.my_method          # checks it against the laws

Symbols: w global weights; w' mean of the clients' weights; v velocity; beta momentum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from rayfed_ssl.method import Metrics, Server, Weights
from rayfed_ssl.methods.fedavg import Averaging, Upload

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class ServerState:
    """The global weights and their velocity, None before the first round."""

    architecture: str
    weights: Weights
    velocity: Weights | None = None


def momentum_step(weights: Weights, mean: Weights, velocity: Weights | None, beta: float) -> tuple[Weights, Weights]:
    """V <- beta v + (w' - w), w <- w + v; batch-norm's statistics are their mean, as momentum makes variances negative.

    Returns:
        New weights and velocity; the inputs are not written.
    """
    moved: Weights = {}
    next_velocity: Weights = {}
    for name, value in weights.items():
        if name.endswith(STATISTICS):
            moved[name] = mean[name]
            continue
        change = mean[name] - value
        next_velocity[name] = change if velocity is None else beta * velocity[name] + change
        moved[name] = value + next_velocity[name]
    return moved, next_velocity


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Averaging):
    """FedAvg whose server moves with momentum."""

    sends: ClassVar = Upload  # of which the step uses nothing but the mean, as the fields say
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """beta; 0 is FedAvg up to rounding."""

    def init_server(self, server: Server) -> ServerState:
        """Start from random weights, at rest."""
        return ServerState(server.task.encoder, self.averaged(server.task.initial_weights(), server.task))

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Upload], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Move the weights towards the clients' mean, and beyond."""
        mean, metrics = self.aggregate(state, uploads, server)
        weights, velocity = momentum_step(state.weights, mean, state.velocity, self.momentum)
        return ServerState(state.architecture, weights, velocity), metrics


if __name__ == "__main__":
    from rayfed_ssl.testing import check_method

    check_method(FedAvgM())  # raises a LawViolation that says which law is broken, and how
