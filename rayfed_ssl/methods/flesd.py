"""FLESD: federated representation learning by ensemble similarity distillation.

Shi, Zhang, Shen, Tang, Li, Guo, Zhuang: Towards Communication-Efficient and Privacy-Preserving Federated Representation
Learning, 2021 (arXiv 2109.14611). Reimplemented from the paper; "code" below means what the authors' code is known to do.

Symbols: D_pub public samples, P of them; R_k representations of D_pub [P, D]; M_k their similarities [P, P]; tau_T target
and tau_S student temperature; f_S student, whose weights become the global ones; zeta momentum; m anchors in the queue.

Deviations, each a field where there is a choice:
- R_k are the projection head's outputs, normalized, one plain view in evaluation mode (code; the paper says "encoder").
- The student goes on from the last global model (Algorithm 1).
- A step enqueues its own batch before it compares, so a sample's other view is among its anchors (code). `exclude_self`
  takes the sample itself out of both distributions.
- Steps on which the queue is refilled teach nothing: m / B' steps of every epoch (code, `refill="epoch"`) or only while
  the queue fills for the first time (`"first"`), which a small public set needs.
- Sums of exp(M / tau_T) carry the factor exp(-1 / tau_T), which Eq. 8 cancels.
- Sparsified similarities that were not sent count as 0 before exp (code).
- FLESD-cc ("constant communication") is this method with one round.
- An objective's state (a target, a queue) starts anew in every round in which the client loads the global weights.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.aggregation import compression
from rayfed_ssl.data.public_data import batch_for, check_public
from rayfed_ssl.method import (
    Client,
    Declared,
    Empty,
    Encoder,
    Method,
    Metrics,
    Model,
    Rule,
    Server,
    Task,
    Weights,
    one_by_one,
    sent,
)
from rayfed_ssl.methods.local_only import ClientState, own_encoders
from rayfed_ssl.objectives.moco import KeyQueue
from rayfed_ssl.training.context import update_momentum
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import Adam
from rayfed_ssl.training.state_parts import is_state
from rayfed_ssl.trees import tensor_mean
from rayfed_ssl.validation import UnitInterval


@dataclass(frozen=True)
class ServerState:
    """The global model: the student of the last distillation."""

    architecture: str
    weights: Weights
    clients_differ: bool


@dataclass(frozen=True)
class Download:
    """The global weights, or nothing where clients' architectures differ."""

    weights: Weights | None = sent("weights")


@dataclass(frozen=True)
class Upload:
    """What a client reveals: how its model sees public samples, in one of three forms; no weights, no sample counts."""

    representations: compression.Packed | None = sent("representations", release="value", default=None)
    similarities: compression.Packed | None = sent("similarities", release="value", default=None)
    largest_similarities: compression.SparseRows | None = sent("similarities", default=None)


def similarity(representations: Tensor) -> Tensor:
    """M_k = R_k^T R_k (Eq. 4): cosines [P, P] of unit-length rows [P, D]."""
    return representations @ representations.T


def sharpen(similarities: Tensor, temperature: float) -> Tensor:
    """Sharpen similarities [P, P] before they are averaged (Eq. 5).

    Eq. 5 times exp(-1 / tau_T), which Eq. 8 cancels and which keeps the exponent at or below 0.
    """
    return ((similarities - 1) / temperature).exp_()


def ensemble(sharpened: Iterable[Tensor]) -> Tensor:
    """M = mean over clients of their sharpened similarities, unweighted (Eq. 6), [P, P]; holds one matrix at a time."""
    mean = tensor_mean(sharpened)
    assert mean is not None, "the engine starts no server step without an upload"
    return mean


def student_log_probabilities(queries: Tensor, anchors: Tensor, temperature: float) -> Tensor:
    """Log q^i_j [B, m] (Eq. 7): how the student spreads unit-length queries [B, D] over anchors [m, D]."""
    return F.log_softmax(queries @ anchors.T / temperature, dim=1)


def target_probabilities(ensembled: Tensor, queries: Tensor, anchors: Tensor) -> Tensor:
    """p^i_j [B, m] (Eq. 8): rows of M, [P, P], restricted to the anchors and normalized; positions are int64."""
    rows = ensembled[queries][:, anchors]
    return rows / rows.sum(dim=1, keepdim=True)


def distillation_loss(target: Tensor, log_student: Tensor) -> Tensor:
    """Mean Kullback-Leibler divergence KL(p^i || q^i) over the queries (Eq. 9), both [B, m]."""
    return F.kl_div(log_student, target, reduction="batchmean")


@dataclass(frozen=True)
class Teacher:
    """What the student learns from: its slow copy, M, and the anchors with the samples that they are of."""

    momentum: Model
    ensembled: Tensor
    queue: KeyQueue
    samples: KeyQueue


@pydantic_dataclass(frozen=True, kw_only=True)
class FLESD(Method):
    """Distil the ensemble of clients' similarities on public data."""

    uploads_follow_weights: ClassVar = True
    needs_public: ClassVar = True
    sends: ClassVar = Upload
    temperature: PositiveFloat = 0.1
    """tau_T (section 5.1)."""
    student_temperature: PositiveFloat | None = None
    """tau_S; None means tau_T, as the paper sets it."""
    queue_size: PositiveInt = 2048
    """m, anchors (section 5.1); a smaller public set makes it the largest multiple of `distil_batch` that leaves one
    batch over.
    """
    momentum: UnitInterval = 0.999
    """zeta (section 5.1)."""
    distil_epochs: PositiveInt = 200
    """Passes over D_pub per round (section 5.1)."""
    distil_batch: Annotated[int, Field(ge=2)] | None = None
    """B'; None takes the paper's 128 (section 5.1), halved until the public set has at least 8 batches."""
    distil_lr: PositiveFloat = 1e-3
    """Learning rate of Adam (section 5.1)."""
    distil_weight_decay: NonNegativeFloat = 1e-6
    """L2 factor (code)."""
    refill: Literal["epoch", "first"] = "epoch"
    """When steps only refill the queue: at the start of every "epoch" (code) or of the "first" alone."""
    exclude_self: bool = False
    """Whether a sample is left out of its own anchors."""
    upload: Literal["representations", "similarities"] = "representations"
    """Send "representations" (code) or "similarities" (the paper's privacy argument)."""
    upload_format: compression.Format = "fp32"
    """Number format of what is sent."""
    keep: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of each row of similarities that is sent; below 1 needs upload="similarities"."""

    def __post_init__(self) -> None:
        if self.keep < 1 and self.upload != "similarities":
            raise ValueError("method.keep applies to similarities only: set method.upload=similarities or drop it")

    @property
    def has_break_even(self) -> bool:
        """Whether representations are sent, whose bytes Eq. 11 compares with those of weights."""
        return self.upload == "representations"

    def rules(self, task: Task) -> Mapping[str, Rule]:
        """The student's weights come down and no weights go up; where clients differ, everybody keeps its own."""
        if task.heterogeneous:
            return super().rules(task)
        return {part: "reset" if is_state(part) else "received" for part in super().rules(task)}

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Shrink the queue to the public set, or refuse a public set that cannot fill two batches."""
        batch = self.distil_batch or batch_for(num_public)
        size = check_public(num_public, self.queue_size, batch)
        notes = [
            f"FLESD's queue holds {size} anchors instead of {self.queue_size}: the public set has {num_public} samples"
        ] * (size != self.queue_size)
        steps = num_public // batch
        if self.refill == "epoch" and steps - size // batch < steps / 2:
            notes.append(
                f"only {steps - size // batch} of {steps} distillation steps an epoch teach the student, the "
                "others refill the queue: method.refill=first uses them all"
            )
        return tuple(notes)

    @property
    def upload_fields(self) -> Mapping[str, Declared]:
        """One of the three forms; which similarities are a client's largest ones has no bound."""
        form = self.upload if self.keep == 1 else "largest_similarities"
        says: dict[str, Declared] = {form: super().upload_fields[form]}
        return says if self.upload_format == "fp32" else one_by_one(says)

    def init_server(self, server: Server) -> ServerState:
        """w^(0) <- random weight initialization."""
        task = server.task
        return ServerState(task.encoder, task.initial_weights(), task.heterogeneous)

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send w^(t-1), if the client can load it."""
        return Download(None if state.clients_differ else state.weights)

    def update_client(
        self, download: Download, state: ClientState | Empty, client: Client
    ) -> tuple[Upload, ClientState | Empty, Metrics]:
        """ClientUpdate(k, w): local contrastive training, then similarity inference on D_pub."""
        assert client.public is not None, "the engine refuses to start FLESD without public data"
        weights = download.weights or (state.weights if isinstance(state, ClientState) else None)
        weights = weights or client.task.initial_weights(client.architecture)
        trained, metrics = client.train(weights)
        model = client.task.model(trained, client.architecture)
        representations = client.task.project(model, client.public).cpu()
        next_state = Empty() if download.weights is not None else ClientState(client.architecture, trained)
        return self.pack(representations), next_state, metrics

    def pack(self, representations: Tensor) -> Upload:
        """Put R_k into the form in which it is sent."""
        if self.upload == "representations":
            return Upload(representations=compression.pack(representations, self.upload_format))
        matrix = similarity(representations)
        if self.keep < 1:
            return Upload(largest_similarities=compression.keep_largest(matrix, self.keep, self.upload_format))
        triangle = compression.upper_triangle(matrix, offset=1).unsqueeze(0)
        return Upload(similarities=compression.pack(triangle, self.upload_format))

    def unpack(self, upload: Upload) -> Tensor:
        """Recover M_k, [P, P], from what was sent."""
        if upload.representations is not None:
            return similarity(F.normalize(compression.unpack(upload.representations), dim=1))
        if upload.largest_similarities is not None:
            return compression.fill_rows(upload.largest_similarities)
        assert upload.similarities is not None, "one of the three forms is always there"
        return compression.symmetric(compression.unpack(upload.similarities).squeeze(0), offset=1).fill_diagonal_(1.0)

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Upload], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Server: ensemble the similarities, then distil them into the global model."""
        assert server.public is not None, "the engine refuses to start FLESD without public data"
        device = server.task.device
        sharpened = (sharpen(self.unpack(upload).to(device), self.temperature) for upload in uploads.values())
        student, momentum = (server.task.model(state.weights, state.architecture) for _ in range(2))
        metrics = self.distil(student, momentum, ensemble(sharpened), server)
        return replace(state, weights=server.task.weights_of(student)), metrics

    def distil(self, student: Model, momentum: Model, ensembled: Tensor, server: Server) -> Metrics:
        """Train the student in place by Eq. 7-10; its slow copy encodes the anchors; losses are means over an epoch."""
        public, task, generator = server.public, server.task, server.generator
        assert public is not None, "the engine refuses to start FLESD without public data"
        batch = self.distil_batch or batch_for(len(public))
        size = check_public(len(public), self.queue_size, batch)
        queue = KeyQueue.random(size, student.projection_dim, generator, task.device)
        samples = KeyQueue(torch.zeros(size, dtype=torch.int64, device=task.device))
        num_batches = len(public) // batch

        def teaches(epoch: int, place: int) -> bool:
            return (place + 1 + (0 if self.refill == "epoch" else epoch * num_batches)) * batch > size

        metrics = task.fit(
            student,
            public,
            generator,
            loss=partial(self.step, task, generator, Teacher(momentum, ensembled, queue, samples)),
            epochs=self.distil_epochs,
            batch=batch,
            drop_last=True,
            optimizer=Adam(lr=self.distil_lr, weight_decay=self.distil_weight_decay),
            phase=teaches,
        )
        taught = sum(teaches(epoch, place) for epoch in range(self.distil_epochs) for place in range(num_batches))
        return {"distil_loss_first": metrics["loss_first"], "distil_loss": metrics["loss"], "distil_steps": taught}

    def step(
        self,
        task: Task,
        generator: torch.Generator,
        teacher: Teacher,
        student: Model,
        state: nn.Module,
        batch: Batch,
    ) -> StepOutput | None:
        """Encode two views, move the slow copy, enqueue its anchors; the loss, or None while the queue is refilled."""
        with task.autocast():
            _, projections = student(task.augment(batch.images, task.views.first, generator))
        queries = F.normalize(projections.float(), dim=1)
        update_momentum(teacher.momentum, student, self.momentum)  # Eq. 10
        with torch.no_grad(), task.autocast():
            _, anchors = teacher.momentum(task.augment(batch.images, task.views.second, generator))
        teacher.queue.enqueue(F.normalize(anchors.float(), dim=1))
        teacher.samples.enqueue(batch.index)
        if not batch.phase:
            return None
        loss = self.loss(teacher.ensembled, queries, batch.index, teacher.queue.rows, teacher.samples.rows)
        return StepOutput(loss, projections)

    def loss(self, ensembled: Tensor, queries: Tensor, index: Tensor, anchors: Tensor, samples: Tensor) -> Tensor:
        """Distillation loss of one batch against the queue (Eq. 7-9): anchors [m, D], and which sample each is of, [m]."""
        target = target_probabilities(ensembled, index, samples)
        temperature = self.student_temperature or self.temperature
        if not self.exclude_self:
            return distillation_loss(target, student_log_probabilities(queries, anchors, temperature))
        same_sample = index.unsqueeze(1) == samples.unsqueeze(0)
        target = target.masked_fill(same_sample, 0)
        total = target.sum(dim=1, keepdim=True).clamp_min(torch.finfo(target.dtype).tiny)
        target = target / total  # where all other anchors underflow, nothing is left to teach and the loss is 0
        logits = (queries @ anchors.T / temperature).masked_fill(same_sample, -1e9)
        return distillation_loss(target, F.log_softmax(logits, dim=1))

    def encoders(self, state: ServerState, clients: Mapping[int, ClientState | Empty]) -> dict[str, Encoder]:
        """The global encoder, and where architectures differ each client's own beside it."""
        return {"global": Encoder(state.architecture, state.weights)} | own_encoders(clients)
