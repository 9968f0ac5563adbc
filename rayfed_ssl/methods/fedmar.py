"""FedMAR: FedAvg with MAE, clients' latents held near those of all clients.

Chen, Yang, Wang, Yuan: Understanding the Robustness of Distributed Self-Supervised Learning Frameworks Against Non-IID Data,
ICLR 2026. "Code" below is xuanyuLawrence/FedMAR-DecMAR, after which the equations are.

Symbols: x latents of a batch's V visible patches [B, V, d]; z_k mean latents of client k, z their mean over clients,
[M, V, d], M the batch size; sigma mean distance between two patches of an image, a patch with itself included; t round of T;
gamma_t weight of the alignment; k_ijc = exp(-sum_v (a_ivc - b_jvc)^2 / (2 sigma^2)), of feature c of latents a and b.

Loss = L_MAE + gamma_t MMD(x, z), MMD = sum_ijc k_ijc(x, x) / (B (B - 1)) + sum_ijc k_ijc(z, z) / (M (M - 1)) - 2 mean_ijc
k_ijc(x, z), as the code computes it. Its function is written for [B, d] and gets [B, V, d], so that the sums within a side
run over features, too, and count d times what is between the sides: it spreads x more than it pulls it to z.

Deviations:
- Row i of z_k is the mean latent of every sample in place i of a batch, as in the code, which takes batches while it trains.
  Here they are those of the trained model in a pass over the shard, and a last, short batch is filled from the start.
- gamma_t falls along a half cosine by the round; the code's by how often a client took part, the same where all always do.
- z_k are weighted as the models are; the code weights them equally.
- There is no class token, of which the code has one among the latents.
- Left out: the code's options of one mask for all and of weights by distances of latents, and DecMAR, without a server.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn

from rayfed_ssl.aggregation.weighted_mean import WeightedMean
from rayfed_ssl.method import Client, Metrics, Model, Server, Task, Weights, sent
from rayfed_ssl.methods import fedavg
from rayfed_ssl.models.vit import num_patches
from rayfed_ssl.objectives.mae import MAE
from rayfed_ssl.randomness.draws import move
from rayfed_ssl.training.objective import Batch, StepOutput, objective_as


@dataclass(frozen=True)
class ServerState(fedavg.ServerState):
    """The global weights, and z of the last round, float32 [M, V, d]; None before it."""

    latents: Tensor | None


@dataclass(frozen=True)
class Download:
    """What a client receives: the global weights, and z once there is one."""

    weights: Weights = sent("weights")
    latents: Tensor | None = sent("representations", default=None)


@dataclass(frozen=True)
class Upload(fedavg.Upload):
    """What a client reveals: weights, its number of samples, and z_k, means over n_k / M samples each."""

    latents: Tensor | None = sent("representations", summed=True, release="value", default=None)


def kernel(a: Tensor, b: Tensor, sigma: Tensor) -> Tensor:
    """k_ijc of latents [B, V, d] and [M, V, d], as [d, B, M]."""
    a, b = a.permute(2, 0, 1), b.permute(2, 0, 1)
    squares = a.square().sum(2, keepdim=True) + b.square().sum(2).unsqueeze(1) - 2 * a @ b.transpose(1, 2)
    return (-squares.clamp(min=0) / (2 * sigma**2)).exp()


def discrepancy(x: Tensor, z: Tensor) -> Tensor:
    """MMD(x, z) of latents [B, V, d] and [M, V, d] (code)."""
    sigma = torch.cdist(x.detach(), x.detach()).mean().clamp(min=1e-6)
    within = [kernel(a, a, sigma).sum() / max(1, len(a) * (len(a) - 1)) for a in (x, z)]
    return within[0] + within[1] - 2 * kernel(x, z, sigma).mean()


@pydantic_dataclass(frozen=True, kw_only=True)
class FedMAR(fedavg.Averaging):
    """FedAvg with MAE whose latents are held near everybody's."""

    sends: ClassVar = Upload
    first: NonNegativeFloat = 0.1
    """gamma in round 1 (code)."""
    last: NonNegativeFloat = 0.001
    """gamma towards which it falls (code)."""

    @property
    def follows_rounds(self) -> bool:
        """Gamma falls over all rounds."""
        return self.first != self.last

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse other objectives and a single visible patch; say where latents are never used."""
        objective, patches = _objective(task), num_patches(task.size)
        if objective.visible(patches) < 2:
            raise ValueError(
                f"fedmar measures distances between an image's visible patches, and 1 of {patches} is visible: lower "
                "objective.mask_ratio"
            )
        notes = super().check(task, num_public)
        return notes if task.rounds > 1 else (*notes, "FedMAR is FedAvg in its first round: set rounds to 2 or more")

    def gamma(self, round: int, rounds: int) -> float:
        """gamma_t = last + (first - last) (1 + cos(pi (t - 1) / T)) / 2."""
        return self.last + (self.first - self.last) * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2

    def init_server(self, server: Server) -> ServerState:
        """Start from random weights, without latents."""
        start = super().init_server(server)
        return ServerState(start.architecture, start.weights, None)

    def download(self, state: Any, client_id: int) -> Any:
        """Send the global weights and z."""
        return Download(state.weights, state.latents)

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train with the alignment once there is z, then compute z_k."""
        loss, task = None, client.task
        if download.latents is not None:
            gamma = move(torch.tensor(self.gamma(client.round, task.rounds)), task.device)
            loss = partial(self.loss, task, client.generator, download.latents.to(task.device), gamma)
        upload, kept, metrics = self.train(download.weights, state, client, loss=loss)
        return replace(upload, latents=self.latents(upload.weights | self.local_parts(kept), client)), kept, metrics

    def loss(
        self,
        task: Task,
        generator: torch.Generator,
        latents: Tensor,
        gamma: Tensor,
        model: Model,
        state: nn.Module,
        batch: Batch,
    ) -> StepOutput:
        """L_MAE + gamma_t MMD(x, z) of one batch."""
        objective = _objective(task)
        loss, own = objective.rebuild(task, model, *objective.inputs(task, batch, generator))
        return StepOutput(loss + gamma * discrepancy(own.float(), latents), own.float().mean(1))

    @torch.no_grad()
    def latents(self, weights: Weights, client: Client) -> Tensor:
        """z_k, the mean over batches of their latents by place, float32 [M, V, d]."""
        task, data, objective = client.task, client.data, _objective(client.task)
        model, number = task.model(weights, client.architecture).eval(), math.ceil(len(data) / task.batch)
        total = torch.zeros((), dtype=torch.float64, device=task.device)
        for index, images in data.batches((torch.arange(number * task.batch) % len(data)).split(task.batch)):
            views, order = objective.inputs(task, Batch(images, index, None, 0), client.method_generator)
            with task.autocast():
                total = total + objective.latents(model, views, order).float()
        return (total / number).float().cpu()

    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[ServerState, Metrics]:
        """Average the weights, and the latents."""
        mean = WeightedMean()
        for upload in uploads.values():
            mean.add(self.factor(upload), upload.weights | {"latents": upload.latents})
        weights = mean.result()
        latents = weights.pop("latents")
        return ServerState(state.architecture, weights, latents), {}


def _objective(task: Task) -> MAE:
    return objective_as(MAE, task.objective, "fedmar extends MAE", "mae")
