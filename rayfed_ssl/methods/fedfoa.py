"""FedFoA: clients learn to recreate their features from each other's feature correlations.

Liu, Guo, Zhang, Zhou, Wang, Zhao: Feature Correlation-guided Knowledge Transfer for Federated Self-supervised Learning,
2022 (arXiv 2211.07364). A plug-in: `base` is the method that trains the models, alone ("local", for clients of different
architectures) or on top of FedAvg with objective=byol (FedBYOL), FedU or FedEMA. No public code.

Symbols: Z features of a batch [m, n]; Z = QR, R the relation matrix [n, n]; Rbar^j client j's mean of R over the steps of
a round; Q* the orthonormal basis in which Rbar^j comes closest to Z; lambda strength; t_warm warm-up rounds.

Deviations, where the paper is silent or cannot be meant literally:
- R has a non-negative diagonal. Only then is QR unique, as section 3.2 says it is; with LAPACK's signs traces mean nothing
  and averages cancel.
- Z are the online projections of the first view, as they are unless `normalize`. R^T R = Z^T Z, so R grows with the root
  of the batch: use one batch size for all clients, and drop_last.
- A batch of fewer than n samples is filled up with rows of zeros, which changes neither Z^T Z nor R; without them no Q meets
  Q^T Q = I.
- Q* is a constant of the step. By the envelope theorem the gradient of Eq. 7 is the same, and no derivative of an SVD,
  which is infinite at equal singular values, is needed.
- The norm of Eq. 7 is Frobenius', not squared; where it is 0, so is its gradient.
- Every client that ever sent one has its last Rbar in the bank, also if it does not take part in the round.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.aggregation.compression import from_triangle, upper_triangle
from rayfed_ssl.method import Client, Declared, Encoder, Method, Metrics, Model, Rule, Server, Task, Weights, sent
from rayfed_ssl.methods.local_only import LocalOnly


@dataclass(frozen=True)
class ServerState:
    """The base's state, the bank of relation matrices by client, and the last round that was aggregated.

    A relation matrix is kept and sent as its upper triangle row by row, float32 [n (n + 1) / 2].
    """

    base: Any
    bank: dict[int, Tensor]
    round: int


@dataclass(frozen=True)
class Download:
    """The base's download, and after the warm-up Rbar of every other client, in the order of ids."""

    base: Any
    relations: tuple[Tensor, ...] | None = sent("relation matrix")


@dataclass(frozen=True)
class Upload:
    """What a client reveals beyond the base's upload: Rbar, and with it about Z^T Z, the second moments of its features."""

    base: Any
    relation: Tensor | None = sent("relation matrix", held=True, release="value")


def filled(features: Tensor) -> Tensor:
    """Fill [m, n] up with rows of zeros to at least n rows."""
    missing = features.new_zeros(max(0, features.shape[1] - len(features)), features.shape[1])
    return torch.cat([features, missing])


def factorize(features: Tensor) -> tuple[Tensor, Tensor]:
    """Z = QR with a non-negative diagonal of R (Eq. 4): Q [m, n] with orthonormal columns, R [n, n]; m >= n."""
    basis, relation = torch.linalg.qr(features)
    signs = torch.where(relation.diagonal() < 0, -1.0, 1.0).to(features.dtype)
    return basis * signs, relation * signs.unsqueeze(1)


def best_basis(basis: Tensor, relation: Tensor, other: Tensor) -> Tensor:
    """Q* = V U^T with U, S, V = SVD(Rbar^j Z^T) (Eq. 6), for Z = QR: orthonormal columns, [m, n].

    The SVD is that of Rbar^j R^T, [n, n] instead of [n, m], as Q only turns V. It runs on the host, where LAPACK is quick at
    this size.
    """
    left, _, right = torch.linalg.svd((other @ relation.T).cpu())
    turn: Tensor = left @ right
    return basis @ turn.T.to(basis.device)


def recreation_error(features: Tensor, basis: Tensor, other: Tensor) -> Tensor:
    """l_A = ||Z - Q* Rbar^j||, how far client i is from understanding client j (Eq. 7); a scalar, gradient 0 at 0."""
    error: Tensor = torch.linalg.vector_norm(features - basis @ other)
    return error


class Understanding:
    """The term of one client's local training in one round, and the mean of its own R over the steps (Eq. 12, 13).

    Attributes:
        others: Rbar of the other clients, [n, n] each, on the device.
        strength: lambda.
        normalize: Whether rows of Z have unit length.
    """

    def __init__(self, others: Sequence[Tensor], strength: float, normalize: bool = False) -> None:
        self.others, self.strength, self.normalize = others, strength, normalize
        self.traces = [float(other.trace()) for other in others]
        self.total: Tensor | None = None
        self.steps = 0

    def __call__(self, model: Model, projections: Tensor) -> Tensor:
        """Algorithm 1, lines 8 to 11 and 15 to 24: lambda l_A summed over clients whose features are more independent.

        Args:
            model: Not looked at.
            projections: Z, [m, n], differentiable.
        """
        features = filled(F.normalize(projections, dim=1) if self.normalize else projections)
        basis, relation = factorize(features.detach())
        self.total = relation.double() if self.total is None else self.total + relation.double()
        self.steps += 1
        term = projections.new_zeros(())
        if self.strength == 0 or not self.others:
            return term
        # A trace that is not a number passes nobody, so the training loop reports the loss and not an SVD.
        own_trace = float(relation.trace())
        for other, trace in zip(self.others, self.traces, strict=True):
            if trace > own_trace:
                term = term + recreation_error(features, best_basis(basis, relation, other), other)
        return self.strength * term

    def mean(self) -> Tensor | None:
        """Rbar (Eq. 12), packed; None if no step was taken."""
        return None if self.total is None else upper_triangle(self.total / self.steps).float().cpu()


class BaseUploads(Mapping[int, Any]):
    """The base's view of the uploads, as lazy as they are; collects the relation matrices on the way.

    Attributes:
        relations: Rbar by client, of the uploads that have been read.
    """

    def __init__(self, uploads: Mapping[int, Upload]) -> None:
        self._uploads = uploads
        self.relations: dict[int, Tensor | None] = {}

    def __getitem__(self, client_id: int) -> Any:
        upload = self._uploads[client_id]
        self.relations[client_id] = upload.relation
        return upload.base

    def __iter__(self) -> Iterator[int]:
        return iter(self._uploads)

    def __len__(self) -> int:
        return len(self._uploads)


@pydantic_dataclass(frozen=True, kw_only=True)
class FedFoA(Method):
    """Add the understanding of others' relation matrices to a base method's local training."""

    needs_public = property(lambda self: self.base.needs_public)
    averages_weights = property(lambda self: self.base.averages_weights)
    sends: ClassVar = Upload
    base: Method = LocalOnly()
    """The method that trains the models; by default none, as in the paper's heterogeneous setting."""
    strength: NonNegativeFloat = 0.01
    """lambda (section 4.1)."""
    warm_up: NonNegativeInt = 5
    """t_warm, rounds without the term (section 4.1)."""
    normalize: bool = False
    """Whether rows of Z are brought to unit length first (not in the paper). Without it the term can be lowered by
    shrinking Z, which an objective on cosines does not resist.
    """

    def rules(self, task: Task) -> Mapping[str, Rule]:
        """The base's rules."""
        return self.base.rules(task)

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse projections of different widths; say where the term tells little or never acts."""
        width = task.shared_width("fedfoa")
        notes = []
        if task.rounds <= self.warm_up:
            notes.append(f"FedFoA's term never acts: all {task.rounds} rounds are warm-up, lower method.warm_up")
        if task.batch < width:
            notes.append(
                f"a batch of {task.batch} cannot tell the correlations of {width} projections: raise training.batch or "
                "lower model.projection_dim"
            )
        return (*self.base.check(task, num_public), *notes)

    @property
    def upload_fields(self) -> Mapping[str, Declared]:
        """What the base says of its upload, and Rbar, which every other client receives."""
        return {**{f"base.{name}": says for name, says in self.base.upload_fields.items()}, **super().upload_fields}

    def init_server(self, server: Server) -> ServerState:
        """Start as the base does, with an empty bank."""
        return ServerState(self.base.init_server(server), {}, 0)

    def init_client(self, client: Client) -> Any:
        """A client remembers what the base makes it remember."""
        return self.base.init_client(client)

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send the base's download, and after the warm-up the others' relation matrices."""
        others = tuple(state.bank[other] for other in sorted(state.bank) if other != client_id)
        listens = state.round >= self.warm_up and others
        return Download(self.base.download(state.base, client_id), others if listens else None)

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Upload, Any, Metrics]:
        """Client(D^i, R): the base's local training with the term on each step (Algorithm 1, lines 5 to 14)."""
        others = [from_triangle(packed).to(client.task.device) for packed in download.relations or ()]
        understanding = Understanding(others, self.strength, self.normalize)
        upload, next_state, metrics = self.base.update_client(download.base, state, client.with_term(understanding))
        return Upload(upload, understanding.mean()), next_state, metrics

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Upload], server: Server
    ) -> tuple[ServerState, Metrics]:
        """The base's aggregation; Rbar goes to the bank."""
        base_uploads = BaseUploads(uploads)
        base, metrics = self.base.update_server(state.base, base_uploads, server)
        for client_id in uploads:
            if client_id not in base_uploads.relations:
                base_uploads[client_id]
        received = {
            client_id: relation for client_id, relation in base_uploads.relations.items() if relation is not None
        }
        return ServerState(base, {**state.bank, **received}, server.round), metrics

    def local_parts(self, state: Any) -> Weights:
        """What the base leaves with clients."""
        return self.base.local_parts(state)

    def encoders(self, state: ServerState, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The base's encoders."""
        return self.base.encoders(state.base, clients)
