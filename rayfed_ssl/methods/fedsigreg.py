"""FedSIGReg: FedAvg with LeJEPA, whose SIGReg looks at the samples of all clients; this method is ours, of no paper.

SIGReg (Balestriero and LeCun, 2025) is a distance of the empirical characteristic function, a mean over samples. That of
all clients' samples is therefore the weighted mean of the clients' own, exactly, and nothing else of their projections is
needed.

Symbols: a directions [p, M] of length 1, common to all clients in a round; phi_k = E[exp(i t a^T z)] over the views of
client k, [M, knots]; phi_-k weighted mean of the other clients'; phi_B the batch's; B samples of a batch; q_k client k's
part of its own weight and the others'; SIGReg(phi, n) = n times the integral of |phi(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2).

A client minimizes LeJEPA's loss with SIGReg(q_k phi_B + (1 - q_k) phi_-k, B / q_k) in the place of SIGReg(phi_B, B), the
mean over views. The others' part is constant. With one client it is LeJEPA's own, and lambda means the same: a sample's
gradient is that of SIGReg over everybody's samples.

What is exact and what is not:
- The mean of characteristic functions is exact. They are those of the others' models at the end of the last round, and the
  model has moved since; others are those who took part in it.
- In a round all steps look along the same directions, where LeJEPA draws others for each step: phi_-k belongs to them.
- phi_k is taken in evaluation mode over one draw of views of each sample; a step's batch is in training mode.
- Round 1 has no phi_-k, nor has a client without others: the loss is LeJEPA's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn

from rayfed_ssl.aggregation.weighted_mean import WeightedMean, ordered_sum
from rayfed_ssl.method import Client, Metrics, Model, Server, Task, Weights, sent
from rayfed_ssl.methods import fedavg
from rayfed_ssl.methods.fedsc import mean_of_others
from rayfed_ssl.objectives.lejepa import LeJEPA, characteristic, directions, normality
from rayfed_ssl.randomness.draws import move
from rayfed_ssl.randomness.seeds import generator as seeded
from rayfed_ssl.training.objective import Batch, StepOutput, objective_as


@dataclass(frozen=True)
class ServerState(fedavg.ServerState):
    """The global weights, the seed of directions, and of the last round's clients phi_k, [2, M, knots], and weight.

    The seed grows with each aggregation, and not in a round of which nothing counts: phi_k stay along its directions.
    """

    seed: int
    functions: dict[int, Tensor]
    factors: dict[int, float]


@dataclass(frozen=True)
class Download:
    """What a client receives: global weights, the seed of directions, and phi_-k and its weight once there are others."""

    weights: Weights = sent("weights")
    seed: int = sent("statistics")
    others: Tensor | None = sent("statistics", default=None)
    weight: float | None = sent("statistics", default=None)


@dataclass(frozen=True)
class Upload(fedavg.Upload):
    """What a client reveals: weights, its number of samples, and phi_k along the next round's directions."""

    functions: Tensor | None = sent("statistics", held=True, release="value", default=None)


@pydantic_dataclass(frozen=True, kw_only=True)
class FedSIGReg(fedavg.Averaging):
    """FedAvg with LeJEPA, whose SIGReg is that of all clients' samples."""

    sends: ClassVar = Upload
    takes_old_versions: ClassVar = False  # directions are those of a round

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse other objectives; say where characteristic functions are never used."""
        _objective(task)
        notes = super().check(task, num_public)
        return notes if task.rounds > 1 else (*notes, "FedSIGReg is FedAvg in its first round: set rounds to 2 or more")

    def init_server(self, server: Server) -> ServerState:
        """Start from random weights, and draw the seed of directions."""
        start, seed = super().init_server(server), 1 + int(torch.randint(2**62, (), generator=server.generator))
        return ServerState(start.architecture, start.weights, seed, {}, {})

    def download(self, state: Any, client_id: int) -> Any:
        """Send the global weights and the mean of the others' characteristic functions."""
        if (others := mean_of_others(state.functions, state.factors, client_id)) is None:
            return Download(state.weights, state.seed)
        weight = ordered_sum(state.factors[other] for other in sorted(state.factors) if other != client_id)
        return Download(state.weights, state.seed, others, weight)

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train towards a normal distribution of all clients' samples, then compute phi_k."""
        loss = None
        if download.others is not None:
            own = len(client.data) if self.weighting == "samples" else 1.0
            share, others = own / (own + download.weight), download.others.to(client.task.device)
            along = self.along(client, download.seed)
            weights = move(torch.tensor([share, 1 - share]), others.device)
            loss = partial(self.loss, client.task, client.generator, along, others, weights)
        upload, kept, metrics = self.train(download.weights, state, client, loss=loss)
        trained = upload.weights | self.local_parts(kept)
        functions = self.functions(trained, client, self.along(client, download.seed + 1))
        return replace(upload, functions=functions), kept, metrics

    def along(self, client: Client, seed: int) -> Tensor:
        """Draw a round's directions, [p, M]."""
        width = client.task.blank(client.architecture).projection_dim
        return directions(width, _objective(client.task).directions, seeded(seed), client.task.device)

    def loss(
        self,
        task: Task,
        generator: torch.Generator,
        along: Tensor,
        others: Tensor,
        weights: Tensor,
        model: Model,
        state: nn.Module,
        batch: Batch,
    ) -> StepOutput:
        """LeJEPA's loss of one batch with SIGReg(q_k phi_B + (1 - q_k) phi_-k, B / q_k); weights are q_k and 1 - q_k."""
        objective = _objective(task)
        views = objective.project(task, model, batch.images, generator)
        own = torch.stack([characteristic(view @ along, objective.largest, objective.knots) for view in views])
        mixed = weights[0] * own + weights[1] * others
        statistic = normality(mixed, len(batch.images), objective.largest).mean() / weights[0]
        return StepOutput(objective.value(views, statistic), views[0])

    @torch.no_grad()
    def functions(self, weights: Weights, client: Client, along: Tensor) -> Tensor:
        """phi_k over views of the whole shard in evaluation mode, [2, M, knots]."""
        task, data, objective = client.task, client.data, _objective(client.task)
        model, total = task.model(weights, client.architecture).eval(), torch.zeros((), device=task.device)
        for index, images in data.batches(torch.arange(len(data)).split(task.batch)):
            views = objective.project(task, model, images, client.method_generator)
            functions = characteristic(views.flatten(0, 1) @ along, objective.largest, objective.knots)
            total = total + functions.double() * len(index)
        return (total / len(data)).float().cpu()

    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[ServerState, Metrics]:
        """Average the weights and keep this round's characteristic functions."""
        mean, functions, factors = WeightedMean(), dict[int, Tensor](), dict[int, float]()
        for client_id, upload in uploads.items():
            factors[client_id] = self.factor(upload)
            mean.add(factors[client_id], upload.weights)
            functions[client_id] = upload.functions
        return ServerState(state.architecture, mean.result(), state.seed + 1, functions, factors), {}


def _objective(task: Task) -> LeJEPA:
    return objective_as(LeJEPA, task.objective, "fedsigreg extends LeJEPA", "lejepa")
