"""FCL: federated MoCo whose clients contrast with each other's features and match their neighborhoods.

Federated Contrastive Representation Learning with Feature Fusion and Neighborhood Matching, under review for ICLR 2022.
Published as Wu, Wang, Zeng, Li, Shi, Hu: Decentralized Unsupervised Learning of Visual Representations, IJCAI 2022
(arXiv 2111.10763). No code is public, and the appendix with the settings could not be read.

Symbols: q queries and k+ keys, unit length [B, D]; Q_l the client's queue of K keys; Q^ features of encrypted images, Q_s
those of all other clients [M, D]; Q' candidates [K, D]; N neighbors; tau, tau_nm temperatures; lambda strength.

What the paper leaves open, and what is done here:
- tau and K are `objective.temperature` and `objective.queue_size`. Whether Table 1 used Eq. 3 or its form without Q_l is
  not said: `negatives`.
- Q^ is made at the end of local training, not during it: `features` of the client's images (or all that it has), one
  random second view each, encrypted in batches and encoded by the trained momentum model as it encodes keys, with the
  batch's own statistics. The paper sends as many as the queue holds.
- Q' is drawn without replacement, once a step. Where it is drawn from Q_l alone, because nobody has sent anything yet,
  neighbors are local ones, and of a queue that is not full yet some are random directions.
- A client receives what others sent in the last round; who did not take part in it is not in Q_s.
- InstaHide mixes k images of one batch (its authors' code); no attack is known to be stopped by it.
- With `objective.symmetric=true` second views are queries too, and both losses are summed over them as MoCo's is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.aggregation.weighted_mean import WeightedMean
from rayfed_ssl.data.instahide import encrypt
from rayfed_ssl.method import Client, Encoder, Metrics, Model, Rule, Server, Task, Weights, sent
from rayfed_ssl.methods import fedavg
from rayfed_ssl.objectives import moco
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.training.objective import Batch, StepOutput


@dataclass(frozen=True)
class ServerState:
    """The global weights, momentum model included, and Q^ of each client of the last round."""

    averaged: fedavg.ServerState
    features: dict[int, Tensor]


@dataclass(frozen=True)
class Download:
    """Query and momentum model, and the other clients' features of encrypted images."""

    weights: Weights = sent("weights")
    features: tuple[Tensor, ...] | None = sent("representations")


@dataclass(frozen=True)
class Upload(fedavg.Upload):
    """What a client reveals: query and momentum model, sample count, and features of its encrypted images."""

    features: Tensor | None = sent("representations", private=True, held=True, default=None)


def fused_negatives(local: Tensor, remote: Tensor, negatives: str) -> Tensor:
    """Choose what a query is told from: Q_l and Q_s (Eq. 3), or Q_s alone (Eq. 5), or Q_l where Q_s is empty.

    Both have unit-length rows, [K, D] and [M, D]; `negatives` is "both" or "remote".
    """
    if not len(remote):
        return local
    return remote if negatives == "remote" else torch.cat([local, remote])


def draw_candidates(local: Tensor, remote: Tensor, generator: torch.Generator) -> Tensor:
    """Q': K different features, drawn uniformly from Q_s, [M, D], and Q_l, [K, D], together (Eq. 7)."""
    union = torch.cat([remote, local])
    return union[draw(torch.randperm, len(union), generator=generator, device=union.device)[: len(local)]]


def neighborhood_loss(queries: Tensor, candidates: Tensor, neighbors: int, temperature: float) -> Tensor:
    """Make each query's match with each of its nearest candidates certain (Eq. 8-11).

    The set L_j holds neighbor n_j and all candidates that are no neighbors, so its entropy splits by the chain rule
    into that of "n_j or one of the others" and, weighed with the others' probability, that among the others. The latter
    is the same for all j: no set is built, and no difference of large numbers is taken.

    Args:
        queries: q, unit length, [B, D]; the gradient flows through them alone.
        candidates: Q', unit length, [K, D].
        neighbors: N; with N >= K every set holds one feature, and the loss is 0.
        temperature: tau_nm.

    Returns:
        Mean over queries and neighbors of the entropy of p_ij in nats.
    """
    scores = queries @ candidates.T / temperature
    if neighbors >= len(candidates):
        return scores.sum() * 0
    nearest, places = scores.topk(neighbors, dim=1)
    among = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, places, True)
    others = scores.masked_fill(among, float("-inf"))
    log_shares = F.log_softmax(others, dim=1).masked_fill(among, 0)
    shares = F.softmax(others, dim=1)
    entropy_of_others = -(shares * log_shares).sum(dim=1, keepdim=True)
    odds = nearest - others.logsumexp(dim=1, keepdim=True)
    here, elsewhere = F.sigmoid(odds), F.sigmoid(-odds)
    of_the_choice = -(here * F.logsigmoid(odds) + elsewhere * F.logsigmoid(-odds))
    return (of_the_choice + elsewhere * entropy_of_others).mean()


@pydantic_dataclass(frozen=True, kw_only=True)
class FCL(fedavg.Averaging):
    """FedAvg with MoCo, feature fusion and neighborhood matching."""

    weighting: ClassVar = "samples"  # type: ignore[misc]
    sends = property(lambda self: Upload if self.fusion else fedavg.Upload)
    fusion: bool = True
    """Whether features of encrypted images are shared as negatives; without it FCL is FedAvg with MoCo."""
    negatives: Literal["both", "remote"] = "both"
    """What a query is told from: Q_l and Q_s ("both", Eq. 3), or Q_s alone ("remote", Eq. 5)."""
    features: Annotated[int, Field(ge=2)] = 4096
    """How many features a client shares; the paper's K."""
    mixed: PositiveInt = 4
    """k of InstaHide (its authors' code); 1 encodes images as they are, to measure what the encryption hides."""
    neighborhood: NonNegativeFloat = 0.1
    """lambda (not in the paper); 0 switches neighborhood matching off."""
    neighbors: PositiveInt = 5
    """N (not in the paper)."""
    neighborhood_temperature: PositiveFloat = 0.1
    """tau_nm (not in the paper)."""

    def __post_init__(self) -> None:
        if self.neighborhood and not self.fusion:
            raise ValueError(
                f"neighborhood matching needs fused features, got method.fusion=false and method.neighborhood="
                f"{self.neighborhood}: set method.fusion=true or method.neighborhood=0"
            )

    def rules(self, task: Task) -> dict[str, Rule]:
        """As FedAvg's, but both models are averaged: f_q is encoder and projector, f_k is the target."""
        return replace(self.parts, target=self.parts.target or "averaged").over(task.parts)

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse objectives without queries and keys."""
        if not isinstance(task.objective, moco.MoCo):
            raise ValueError(f"fcl extends MoCo, got {type(task.objective).__name__}: set objective=moco")
        notes = super().check(task, num_public)
        if self.parts.target == "reset":
            raise ValueError(
                "fcl's clients encode with their momentum models, got method.parts.target=reset: remove it"
            )
        if self.neighborhood and self.neighbors >= task.objective.queue_size:
            raise ValueError(
                f"method.neighbors must be below objective.queue_size={task.objective.queue_size}, the number of "
                f"candidates, got {self.neighbors}: every match would be certain"
            )
        return notes

    def init_server(self, server: Server) -> ServerState:
        """Start from random weights and without features."""
        return ServerState(super().init_server(server), {})

    def download(self, state: Any, client_id: int) -> Any:
        """Send the aggregated models and Q_s,c = { Q^_i : i != c } (Eq. 2)."""
        others = tuple(features for owner, features in sorted(state.features.items()) if owner != client_id)
        return Download(state.averaged.weights, others or None)

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train f_q and f_k on Eq. 12, then encode encrypted images with f_k."""
        remote = torch.cat(download.features).to(client.task.device) if download.features else None
        generators = client.generator, client.method_generator
        loss = partial(self.loss, client.task, generators, remote) if self.fusion else None
        upload, next_state, metrics = self.train(download.weights, state, client, loss=loss)
        trained = upload.weights | self.local_parts(next_state)
        if self.fusion:
            upload = replace(upload, features=self.encode_encrypted(trained, client))
        return upload, next_state, metrics

    def loss(
        self,
        task: Task,
        generators: tuple[torch.Generator, torch.Generator],
        remote: Tensor | None,
        model: Model,
        state: nn.Module,
        batch: Batch,
    ) -> StepOutput:
        """L_contrast + lambda L_neigh of one batch (Eq. 12)."""
        objective, (views, choices) = task.objective, generators
        assert isinstance(objective, moco.MoCo), "check refuses other objectives"
        encoded = objective.encode(task, model, state, batch, views)
        local = moco.queue_rows(state)
        others = local[:0] if remote is None else remote
        negatives = fused_negatives(local, others, self.negatives)
        contrast = moco.queue_contrast(encoded.queries, encoded.keys, negatives, objective.temperature)
        loss = contrast.sum() / len(batch.images)
        if self.neighborhood:
            candidates = draw_candidates(local, others, choices)
            directions = len(encoded.queries) / len(batch.images)
            loss = loss + self.neighborhood * directions * neighborhood_loss(
                encoded.queries, candidates, self.neighbors, self.neighborhood_temperature
            )
        return StepOutput(loss, encoded.projections, {"keys": encoded.keys})

    @torch.no_grad()
    def encode_encrypted(self, weights: Weights, client: Client) -> Tensor:
        """Q^: features of a random choice of the client's images, each encrypted with others of its batch.

        Returns:
            Unit-length rows, float32 [min(features, n), D], on the CPU.
        """
        task = client.task
        momentum_model = task.model(target_weights(weights), client.architecture)
        order = torch.randperm(len(client.data), generator=client.generator)[: self.features]
        rows = []
        for _, images in client.data.batches(order.tensor_split(max(1, len(order) // task.batch))):
            views = task.augment(images, task.views.second, client.generator)
            with task.autocast():
                if self.mixed > 1:
                    views = encrypt(views, self.mixed, client.generator)
                _, projections = momentum_model(views)
            rows.append(F.normalize(projections, dim=1))
        return torch.cat(rows).cpu()

    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[ServerState, Metrics]:
        """Average both models by |D_c| / |D| and collect the features."""
        mean, features = WeightedMean(), {}
        for client_id, upload in uploads.items():
            mean.add(self.factor(upload), upload.weights)
            if self.fusion:
                features[client_id] = upload.features
        return ServerState(fedavg.ServerState(state.averaged.architecture, mean.result()), features), {}

    def encoders(self, state: Any, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The same encoders as FedAvg's."""
        return super().encoders(state.averaged, clients)


def target_weights(weights: Weights) -> Weights:
    """Take the target network's out of weights that hold both networks'."""
    return {name.removeprefix("target."): value for name, value in weights.items() if name.startswith("target.")}
