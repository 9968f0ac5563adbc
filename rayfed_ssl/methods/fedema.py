"""FedEMA: mix the global model into the client's own, the less the further the client has moved.

Zhuang, Wen, Zhang: Divergence-aware Federated Self-Supervised Learning, ICLR 2022. "Code" below is the authors' EasyFL.

Symbols: W_k weights of client k after its last local training; W_g global weights; d_k divergence, how far the encoder moved
in that training; lambda_k scale, tau target of the autoscaler; mu_k = min(lambda_k d_k, 1) share of its previous weights.

Deviations:
- d_k is FedU's: the mean over convolutions of the online encoder (code; the paper writes a norm of all weights). A training
  starts from the mixed model, so that is what d_k is measured from (code; the paper's is the global model).
- Parameters are mixed. Running statistics of encoder and projector are the global ones, those of the heads beyond come
  from where the larger weight is (code). Entries that are not numbers are treated as statistics.
- lambda_k is fixed at the first divergence above 0. A client that has not moved has mu_k = 0.
- Heads beyond the projector are mixed like the predictor, also where an objective has others; the paper has BYOL alone.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rayfed_ssl.method import Client, Empty, Metrics, Rule, Task, Weights
from rayfed_ssl.methods import fedavg
from rayfed_ssl.methods.fedu import check_averaged, encoder_divergence
from rayfed_ssl.training.state_parts import is_state, part_of
from rayfed_ssl.validation import UnitInterval


@dataclass(frozen=True)
class ClientState:
    """What a client remembers of its last local training.

    Attributes:
        averaging: What FedAvg keeps, the target among it.
        weights: W_k, all parts that were sent.
        scale: lambda_k, or None as long as the client has not moved.
        divergence: d_k.
        round: The round of that training.
    """

    averaging: fedavg.ClientState | Empty
    weights: Weights
    scale: float | None
    divergence: float
    round: int


def autoscale(target: float, divergence: float) -> float | None:
    """lambda_k = tau / d_k, so that the first share of its previous weights is tau; None if the client has not moved."""
    return target / divergence if divergence > 0 else None


def own_share(scale: float | None, divergence: float) -> float:
    """mu_k = min(lambda_k d_k, 1)."""
    return 0.0 if scale is None else min(scale * divergence, 1.0)


def mix(local: Weights, received: Weights, share: float) -> Weights:
    """W_k <- mu_k W_k + (1 - mu_k) W_g for the parameters of encoder and heads; a share of 0 gives W_g bit for bit."""
    return received if share == 0 else {name: _mixed(name, local[name], received[name], share) for name in received}


def _mixed(name: str, local: torch.Tensor, received: torch.Tensor, share: float) -> torch.Tensor:
    part = name.partition(".")[0]
    if is_state(part):
        return received
    if part_of(name) == "batch_norm" or not received.is_floating_point():
        return local if share > 0.5 and part not in ("encoder", "projector") else received
    return torch.lerp(received, local, share)


@pydantic_dataclass(frozen=True, kw_only=True)
class FedEMA(fedavg.Averaging):
    """FedAvg whose clients keep a share of their own weights."""

    uploads_follow_weights: ClassVar = True
    tau: UnitInterval = 0.7
    """Target of the autoscaler, the share at a client's second participation; 0.7 in the code's instructions, 0.8 its
    parser's default.
    """
    scale: NonNegativeFloat | None = None
    """One lambda for all clients in place of the autoscaler; the code's default is 1."""
    selective: bool = False
    """Mix only if the client also trained in the round before; otherwise it takes the global weights and a fresh
    target. For runs in which a part of the clients trains in each round (code).
    """

    def __post_init__(self) -> None:
        if self.scale is not None and self.tau != FedEMA.tau:
            raise ValueError(f"method.tau={self.tau} has no meaning with method.scale={self.scale}: remove one of them")

    def rules(self, task: Task) -> dict[str, Rule]:
        """As FedAvg's, but what gradients train is mixed."""
        return {
            part: "mixed" if rule == "averaged" and part != "batch_norm" and not is_state(part) else rule
            for part, rule in super().rules(task).items()
        }

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse an encoder that is not sent, whose divergence nobody could measure; say where lambda will be too large."""
        check_averaged(self, task, "encoder")
        rounds = task.schedule_rounds or task.rounds
        rates = task.optimizer.rates(1, 1, 100 * rounds)  # of all rounds as one
        if self.scale is not None or rates is None:
            return ()
        means = rates.view(rounds, -1).mean(dim=1)
        if self.tau * float(means.max()) < float(means[0]):
            return ()
        return (
            "FedEMA's lambda is measured in a client's first round, where the learning rate only warms up: it moves further "
            "later and keeps all of its own weights then: set training.optimizer.schedule=cosine, without a warmup",
        )

    def update_client(
        self, download: fedavg.Download, state: ClientState | Empty, client: Client
    ) -> tuple[fedavg.Upload, ClientState, Metrics]:
        """Mix the global weights into the client's, train, and measure how far the encoder moved."""
        averaging, share, scale = self.resume(state, client.round)
        start = mix(state.weights, download.weights, share) if isinstance(state, ClientState) else download.weights
        upload, local, metrics = self.train(start, averaging, client)
        divergence = encoder_divergence(start, upload.weights)
        scale = autoscale(self.tau, divergence) if scale is None else scale
        next_state = ClientState(local, upload.weights, scale, divergence, client.round)
        return upload, next_state, {**metrics, "divergence": divergence, "own_share": share}

    def resume(self, state: ClientState | Empty, round: int) -> tuple[fedavg.ClientState | Empty, float, float | None]:
        """Decide what a client continues from: what FedAvg kept, mu_k and lambda_k.

        A client that takes part for the first time, or under `selective` after a pause, has a share of 0; after a pause its
        target is dropped, and so starts anew as a copy of the global model.
        """
        if not isinstance(state, ClientState):
            return Empty(), 0.0, self.scale
        if not self.selective or state.round == round - 1:
            return state.averaging, own_share(state.scale, state.divergence), state.scale
        local = self.local_parts(state)
        return fedavg.ClientState({k: v for k, v in local.items() if part_of(k) != "target"}), 0.0, state.scale

    def local_parts(self, state: ClientState | fedavg.ClientState | Empty) -> Weights:
        """Find what FedAvg keeps."""
        return super().local_parts(state.averaging if isinstance(state, ClientState) else state)
