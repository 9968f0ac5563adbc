"""FedSC: clients contrast their samples with everybody's by exchanging correlation matrices.

Jing, Yu, Zhang, Zhang: FedSC: Provable Federated Self-supervised Learning with Spectral Contrastive Objective over
Non-i.i.d. Data, ICML 2024 (arXiv 2405.03949). "Code" below is the authors' repository. FedFoA shares such a matrix too: its
R^T R is Z^T Z.

Symbols: z projections, shortened to sqrt(mu); R_k = E[z z^T] over client k's views under the round's global model [p, p];
R_-k weighted mean of the other clients' R; R_B the batch's; q_k client k's weight; T rounds, t the round from 1.

The spectral objective of all clients has the term ||sum_k q_k R_k||^2, in which k's part is
q_k (q_k ||R_k||^2 + (1 - q_k) <R_k, R_-k>). A client therefore minimizes

    -2 E[z^T z'] + alpha_t ||R_B||^2 + 2 (1 - alpha_t) <R_B, R_-k>,

where alpha_t falls from 1 to about q_k along a line.

Deviations:
- In the paper a round has two exchanges, correlation matrices before training and weights after it. A round here has one:
  R_k arrives with the weights, and others see it from the next round on. The code does so with clients that pause.
- Round 1 has no R_-k, nor has a client without others: the loss is the spectral objective's own.
- `weighting` weighs models and matrices. By default it is by samples; the code's are uniform.
- Noise is added to the upper triangle that is sent, so that R_k stays symmetric; the code's matrix with noise is not.
- Gradients are not clipped (code: norm 3), and encoders may have batch-norm, which the code's ResNet with Fixup lacks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn

from rayfed_ssl.aggregation.compression import symmetric, upper_triangle
from rayfed_ssl.aggregation.weighted_mean import WeightedMean, ordered_sum
from rayfed_ssl.method import Client, Metrics, Model, Server, Task, Weights, sent
from rayfed_ssl.methods import fedavg
from rayfed_ssl.objectives import spectral
from rayfed_ssl.randomness.draws import draw, move
from rayfed_ssl.training.objective import Batch, StepOutput, objective_as
from rayfed_ssl.validation import UnitInterval


@dataclass(frozen=True)
class ServerState(fedavg.ServerState):
    """The global weights, and of each client that ever sent one its last R_k and its factor in the mean.

    A correlation matrix is kept and sent as its upper triangle row by row, float32 [p (p + 1) / 2].
    """

    correlations: dict[int, Tensor]
    factors: dict[int, float]


@dataclass(frozen=True)
class Download:
    """What a client receives: the global weights, and R_-k once there are others."""

    weights: Weights = sent("weights")
    others: Tensor | None = sent("correlation matrix")


@dataclass(frozen=True)
class Upload(fedavg.Upload):
    """What a client reveals: weights, its number of samples, and the second moments of its projections, R_k."""

    correlation: Tensor | None = sent("correlation matrix", held=True, release="value", default=None)


def mean_of_others(correlations: Mapping[int, Tensor], factors: Mapping[int, float], client_id: int) -> Tensor | None:
    """R_-k = sum_{j != k} q_j R_j / sum_{j != k} q_j, packed; None if nobody else sent any."""
    others = [other for other in sorted(correlations) if other != client_id]
    if not others:
        return None
    total = sum(factors[other] * correlations[other].double() for other in others)
    assert isinstance(total, Tensor), "there are others"
    return (total / ordered_sum(factors[other] for other in others)).float()


def own_share(round: int, rounds: int, first: float, last: float) -> float:
    """alpha_t, from `first` in round 1 along a line that would reach `last` in round T + 1 (code)."""
    return first - (first - last) * (round - 1) / rounds


def contrast(own: Tensor, others: Tensor, weights: Tensor) -> Tensor:
    """Alpha ||R_B||^2 + 2 (1 - alpha) <R_B, R_-k> for symmetric [p, p] and weights alpha, 2 (1 - alpha), [2]; a scalar."""
    return weights[0] * own.square().sum() + weights[1] * (own * others).sum()


@pydantic_dataclass(frozen=True, kw_only=True)
class FedSC(fedavg.Averaging):
    """FedAvg with the spectral contrastive objective over all clients' samples."""

    sends: ClassVar = Upload
    alpha_first: UnitInterval = 1.0
    """Share of a client's own correlations in round 1 (code)."""
    alpha_last: UnitInterval = 0.2
    """The share towards which it falls; 1 / K makes the clients' losses add up to the global one (code: 0.2)."""
    passes: PositiveInt = 5
    """How often each sample's two views are drawn for R_k (code)."""
    noise: NonNegativeFloat = 0.0
    """Standard deviation of Gaussian noise on the entries of R_k. One sample moves R_k by at most 2 mu / n_k in
    Frobenius norm; 0 is no protection.
    """

    @property
    def follows_rounds(self) -> bool:
        """The share of a client's own correlations falls over all rounds."""
        return self.alpha_first != self.alpha_last

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse other objectives; say where correlation matrices are never used."""
        _objective(task)
        notes = super().check(task, num_public)
        if task.rounds == 1:
            return (*notes, "FedSC is FedAvg in its first round: set rounds to 2 or more")
        return notes

    def init_server(self, server: Server) -> ServerState:
        """Start from random weights, without correlation matrices."""
        start = super().init_server(server)
        return ServerState(start.architecture, start.weights, {}, {})

    def download(self, state: Any, client_id: int) -> Any:
        """Send the global weights and the mean of the others' correlation matrices."""
        return Download(state.weights, mean_of_others(state.correlations, state.factors, client_id))

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Compute R_k under the global model, then train on own and others' correlations."""
        correlation = self.correlation(download.weights | self.local_parts(state), client)
        loss = None
        if download.others is not None:
            others = symmetric(download.others).to(client.task.device)
            share = own_share(client.round, client.task.rounds, self.alpha_first, self.alpha_last)
            weights = move(torch.tensor([share, 2 * (1 - share)]), others.device)
            loss = partial(self.loss, client.task, client.generator, others, weights)
        upload, next_state, metrics = self.train(download.weights, state, client, loss=loss)
        return replace(upload, correlation=correlation), next_state, metrics

    def loss(
        self,
        task: Task,
        generator: torch.Generator,
        others: Tensor,
        weights: Tensor,
        model: Model,
        state: nn.Module,
        batch: Batch,
    ) -> StepOutput:
        """-2 E[z^T z'] + alpha_t ||R_B||^2 + 2 (1 - alpha_t) <R_B, R_-k> of one batch."""
        views, projections = _objective(task).embed(task, model, batch.images, generator)
        own = spectral.correlation(*views)
        return StepOutput(spectral.attraction(*views) + contrast(own, others, weights), projections)

    @torch.no_grad()
    def correlation(self, weights: Weights, client: Client) -> Tensor:
        """R_k over views of the whole shard in evaluation mode, with noise, packed."""
        task, data, generator = client.task, client.data, client.method_generator
        model = task.model(weights, client.architecture).eval()
        total: Tensor | float = 0.0
        for _ in range(self.passes):
            for index, images in data.batches(torch.arange(len(data)).split(task.batch)):
                views, _ = _objective(task).embed(task, model, images, generator)
                total = total + spectral.correlation(*views).double() * len(index)
        assert isinstance(total, Tensor), "a shard has samples"
        packed = upper_triangle(total / (self.passes * len(data))).float().cpu()
        if self.noise == 0:
            return packed
        return packed + self.noise * draw(torch.randn, len(packed), generator=generator, device=packed.device)

    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[ServerState, Metrics]:
        """Average the weights and keep the correlation matrices."""
        mean, correlations, factors = WeightedMean(), dict(state.correlations), dict(state.factors)
        for client_id, upload in uploads.items():
            factors[client_id] = self.factor(upload)
            mean.add(factors[client_id], upload.weights)
            correlations[client_id] = upload.correlation
        return ServerState(state.architecture, mean.result(), correlations, factors), {}


def _objective(task: Task) -> spectral.Spectral:
    objective = objective_as(spectral.Spectral, task.objective, "fedsc extends the spectral contrast", "spectral")
    if objective.form != "fedsc":
        raise ValueError(f"fedsc contrasts all pairs of views, got objective.form={objective.form}: set it to fedsc")
    return objective
