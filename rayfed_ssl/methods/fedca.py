"""FedCA: FedAvg with SimCLR, a dictionary of everybody's projections as negatives, and a common model to align with.

Zhang, Kuang, You, Shen, Xiao, Zhang, Wu, Zhuang, Li: Federated Unsupervised Representation Learning, 2020
(arXiv 2010.08982). No code is public.

Symbols: h features, z projections, z~ = z / ||z||; D_u samples of client u; Z ensembled projections [|D_u|, D]; alpha their
momentum; K rows of the dictionary; t temperature; D_align public samples, P of them; beta strength of the alignment; N
samples a step; m clients of a round.

What the paper leaves open, and what is done here:
- t is `objective.temperature`.
- Who draws the K rows. A client does not know m, so it sends K random rows of its own (or all that it has); the server
  keeps the first K / m of each. The client's own rows are not taken out of what it receives (Eq. 5 does not either).
- Projections for the dictionary are those of unaugmented samples, by the trained local model (Algorithm 1; the text also
  says "global model"), in evaluation mode.
- The alignment model is SimCLR, trained by the server on D_align from everybody's initial weights with the run's own recipe.
- A step aligns on min(N, P) random public samples, unaugmented. The alignment model's h and z are those of the evaluation
  mode and are computed once; clients receive them in the place of the model, in their first round alone.
- Public samples pass the local model with their own batch statistics and leave no trace in its running ones.

Without the dictionary the contrast may be SimCLR's NT-Xent (Eq. 3), so that alignment alone is added to FedSimCLR.

Deviations: t in Eq. 9 counts the rounds in which the client took part. Metrics report the contrastive loss alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from rayfed_ssl.aggregation.weighted_mean import WeightedMean
from rayfed_ssl.method import (
    Client,
    Empty,
    Encoder,
    Method,
    Metrics,
    Model,
    Server,
    Shard,
    Task,
    Term,
    Weights,
    sent,
)
from rayfed_ssl.methods import fedavg
from rayfed_ssl.objectives.simclr import SimCLR
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.validation import BelowOne


@dataclass(frozen=True)
class Aligned:
    """What the alignment model makes of D_align: h_align [P, d] and z_align [P, D], not normalized."""

    features: Tensor
    projections: Tensor


@dataclass(frozen=True)
class ClientState:
    """What FedAvg keeps on the client, Z if projections are ensembled, and the alignment model's outputs."""

    own: fedavg.ClientState | Empty
    ensembled: Tensor | None
    aligned: Aligned | None


@dataclass(frozen=True)
class ServerState:
    """The global weights, the dictionary [K, D] after the first round, and what clients align with."""

    averaged: fedavg.ServerState
    dictionary: Tensor | None = None
    aligned: Aligned | None = None
    started: tuple[int, ...] = ()


@dataclass(frozen=True)
class Download:
    """The global weights; the dictionary after the first round; what to align with, in a client's first round alone."""

    weights: Weights = sent("weights")
    dictionary: Tensor | None = sent("representations")
    aligned: Aligned | None = sent("representations")


@dataclass(frozen=True)
class Upload:
    """What a client reveals without a dictionary: weights and how many samples it has; the server notes whose they are."""

    weights: Weights = sent("weights", release="difference")
    num_samples: int = sent("statistics", weight=True)


@dataclass(frozen=True)
class UploadWithRows(Upload):
    """What a client reveals: weights, how many samples it has, and projections of up to K of its own samples."""

    dictionary: Tensor | None = sent("representations", private=True, held=True, default=None)


def dictionary_contrast(first: Tensor, second: Tensor, dictionary: Tensor, temperature: float) -> Tensor:
    """InfoNCE with the batch's other samples and the dictionary as negatives (Eq. 4-8).

    Args:
        first: z~_i, unit-length projections of first views, [N, D].
        second: z~_j, of second views, [N, D].
        dictionary: z~_dict, unit length, [K, D]; without rows in the first round.
        temperature: t, above 0.

    Returns:
        Mean over i of -log( exp(z~_i.z~_j(i) / t) / sum over all N + K of exp(z~_i.z~ / t) ).
    """
    logits = torch.cat([first @ second.T, first @ dictionary.T], dim=1) / temperature
    return F.cross_entropy(logits, torch.arange(len(first), device=first.device))


def ensemble(previous: Tensor | None, projections: Tensor, alpha: float) -> Tensor:
    """Z^t = alpha Z^(t-1) + (1 - alpha) z^t, from Z^0 = 0 or None (Eq. 9), [|D_u|, D]."""
    fresh = (1 - alpha) * projections
    return fresh if previous is None else alpha * previous + fresh


def normalized(ensembled: Tensor) -> Tensor:
    """z~^t = Z^t / ||Z^t||; the correction 1 / (1 - alpha^t) cancels (Eq. 10), [|D_u|, D]."""
    return F.normalize(ensembled, dim=1)


def alignment_loss(features: Tensor, projections: Tensor, aligned: tuple[Tensor, Tensor]) -> Tensor:
    """Sum over samples of squared distances of h_u and z_u, not normalized, to h_align and z_align (Eq. 11-13)."""
    return (features - aligned[0]).square().sum() + (projections - aligned[1]).square().sum()


def share_of(size: int, position: int, num_clients: int) -> int:
    """Rows that the client at this position of a round gives to a dictionary of K rows: K / m, the first ones one more."""
    return size // num_clients + (position < size % num_clients)


@contextmanager
def unrecorded(model: nn.Module) -> Iterator[None]:
    """Let batch-norm layers in training mode use a batch's statistics without recording them."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


@pydantic_dataclass(frozen=True, kw_only=True)
class FedCA(fedavg.Averaging):
    """FedAvg with a shared dictionary of negatives and an alignment with a model of public data."""

    weighting: ClassVar = "samples"  # type: ignore[misc]
    sends = property(lambda self: UploadWithRows if self.dictionary else Upload)
    dictionary: bool = True
    """Whether projections are shared as negatives."""
    dictionary_size: PositiveInt = 1024
    """K (paper)."""
    ensembling: BelowOne = 0.5
    """alpha (paper); 0 switches temporal ensembling off."""
    beta: NonNegativeFloat = 0.01
    """Strength of the alignment (paper); 0 switches it off, and no public data are needed."""
    align_epochs: PositiveInt = 100
    """Passes over D_align in which the server trains the alignment model; as many as the paper's clients."""

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        """Whether there is an alignment, which happens on public data."""
        return self.beta > 0

    def costly_start(self) -> Method | None:
        """The server trains a model to align with."""
        unused = {name: getattr(FedCA, name) for name in ("dictionary", "dictionary_size", "ensembling", "beta")}
        return replace(self, **unused) if self.beta else None

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse objectives to whose negatives a dictionary cannot be added."""
        notes = super().check(task, num_public)
        if not isinstance(task.objective, SimCLR) or (self.dictionary and task.objective.form != "infonce"):
            raise ValueError(
                f"fedca adds negatives to InfoNCE, got {type(task.objective).__name__}: set objective=simclr and "
                "objective.form=infonce"
            )
        if self.beta and num_public < 2:
            raise ValueError(f"fedca aligns on at least 2 public samples, got {num_public}: set a larger public set")
        return notes

    def init_server(self, server: Server) -> ServerState:
        """Initialize theta_0; prepare D_align and an alignment model (Algorithm 1, server, 1-2)."""
        averaged = super().init_server(server)
        return ServerState(averaged, aligned=self.alignment_model(server) if self.beta else None)

    def alignment_model(self, server: Server) -> Aligned:
        """Train a model on D_align and keep what it makes of it."""
        assert server.public is not None, "the engine refuses to start FedCA's alignment without public data"
        model = server.task.model(server.task.initial_weights())
        server.task.fit(model, server.public, server.generator, epochs=self.align_epochs)
        features, projections = server.task.represent(model, server.public)
        return Aligned(features.cpu().clone(), projections.cpu().clone())

    def init_client(self, client: Client) -> ClientState:
        """Z^0 = 0, and nothing to align with yet."""
        return ClientState(Empty(), None, None)

    def download(self, state: Any, client_id: int) -> Any:
        """Send theta_t and dict_t, and to a newcomer what it shall align with."""
        aligned = None if client_id in state.started else state.aligned
        return Download(state.averaged.weights, state.dictionary, aligned)

    def update_client(self, download: Any, state: ClientState, client: Client) -> tuple[Any, ClientState, Metrics]:
        """ClientUpdate(u, theta, dict): E epochs on Eq. 14, then dict^u by Eq. 9-10."""
        aligned = download.aligned or state.aligned
        term = None if aligned is None else self.alignment(client, aligned)
        others = None if download.dictionary is None else download.dictionary.to(client.task.device)
        loss = None if others is None else partial(self.contrast, client.task, client.generator, others)
        upload, own, metrics = self.train(download.weights, state, client, loss=loss, term=term)
        if not self.dictionary:
            return upload, ClientState(own, None, aligned), metrics
        model = client.task.model(upload.weights | self.local_parts(own))
        _, projections = client.task.represent(model, client.data)
        ensembled = ensemble(state.ensembled, projections.cpu(), self.ensembling)
        chosen = torch.randperm(len(ensembled), generator=client.generator)
        rows = normalized(ensembled)[chosen[: self.dictionary_size]]
        remembered = ensembled if self.ensembling else None
        return replace(upload, dictionary=rows), ClientState(own, remembered, aligned), metrics

    def contrast(
        self,
        task: Task,
        generator: torch.Generator,
        dictionary: Tensor,
        model: Model,
        state: nn.Module,
        batch: Batch,
    ) -> StepOutput:
        """Contrast two random views of each image, drawn and encoded as SimCLR does, with the dictionary besides."""
        objective = task.objective
        assert isinstance(objective, SimCLR), "check refuses other objectives"
        projections = objective.project(task, model, batch.images, generator)
        first, second = F.normalize(projections, dim=1).chunk(2)
        return StepOutput(
            dictionary_contrast(first, second, dictionary, objective.temperature), projections.chunk(2)[0]
        )

    def alignment(self, client: Client, aligned: Aligned) -> Term:
        """Make beta loss_align on a random D_sub of D_align, which is added to each step's loss (Eq. 14)."""
        task = client.task
        assert client.public is not None, "the engine refuses to start FedCA's alignment without public data"
        targets = Aligned(aligned.features.to(task.device), aligned.projections.to(task.device))
        return partial(self.alignment_term, task, client.public, client.method_generator, targets)

    def alignment_term(
        self,
        task: Task,
        public: Shard,
        generator: torch.Generator,
        targets: Aligned,
        model: Model,
        projections: Tensor,
    ) -> Tensor:
        """Compute beta loss_align of one D_sub."""
        index, images = public.draw_samples(task.batch, generator)
        with unrecorded(model), task.autocast():
            h, z = model(task.plain(images))
        return self.beta * alignment_loss(h, z, (targets.features[index], targets.projections[index]))

    def local_parts(self, state: ClientState | fedavg.ClientState | Empty) -> Weights:
        """Find what FedAvg keeps."""
        return super().local_parts(state.own if isinstance(state, ClientState) else state)

    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[ServerState, Metrics]:
        """Average the weights by |D_u|; concatenate the dictionaries (Algorithm 1, server, 8-9)."""
        mean, rows, started = WeightedMean(), [], {*state.started, *server.left_out}
        for position, (client_id, upload) in enumerate(uploads.items()):
            mean.add(self.factor(upload), upload.weights)
            if self.dictionary:
                rows.append(upload.dictionary[: share_of(self.dictionary_size, position, len(uploads))].clone())
            started.add(client_id)
        averaged = fedavg.ServerState(state.averaged.architecture, mean.result())
        dictionary = torch.cat(rows) if rows else None
        metrics = {} if dictionary is None else {"dictionary_rows": float(len(dictionary))}
        return ServerState(averaged, dictionary, state.aligned, tuple(sorted(started))), metrics

    def encoders(self, state: Any, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The same encoders as FedAvg's."""
        return super().encoders(state.averaged, clients)
