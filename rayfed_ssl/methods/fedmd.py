"""FedMD: clients of different architectures agree on public data, each keeping its own model.

Li, Wang: FedMD: Heterogenous Federated Learning via Model Distillation, 2019 (arXiv 1910.03581), at the level of features,
as FedFoA compares with it. "Code" below means what the authors' code is known to do.

Symbols: D_pub public samples, P of them; R_k = client k's unit-length projections of D_pub [P, D]; C = consensus [P, D].

Deviations:
- The paper's clients exchange class scores; FedFoA's text says only that they align "the feature representations over a
  public dataset". Here they exchange unit-length projections of its calibration layer, one plain view, evaluation mode.
- The consensus is the plain mean over clients (code) and is not scaled back to unit length: where clients disagree it is
  short, and its pull on single entries is weak.
- The code draws 5,000 public samples anew each round; here the public set is all of them (`public=stl10:5000`).
- The paper's training on labeled public data before round 1 has nothing to correspond to, and is left out.
- Clients digest in training mode with their own optimizer, as the code does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.aggregation import compression
from rayfed_ssl.method import Client, Declared, Empty, Encoder, Method, Metrics, Server, Task, Weights, one_by_one, sent
from rayfed_ssl.methods.local_only import ClientState, own_encoders
from rayfed_ssl.trees import tensor_mean


@dataclass(frozen=True)
class ServerState:
    """C of the last round, or None before the first."""

    consensus: Tensor | None


@dataclass(frozen=True)
class Download:
    """How the clients of the last round see the public samples, on average; nothing in the first round."""

    consensus: Tensor | None = sent("representations")


@dataclass(frozen=True)
class Upload:
    """What a client reveals: how its model sees public samples; no weights, no sample counts."""

    representations: compression.Packed = sent("representations", summed=True, release="value")


def consensus(representations: Iterable[Tensor]) -> Tensor:
    """C = mean over clients of R_k, each counting the same (code), [P, D]; holds one summand at a time."""
    mean = tensor_mean(representations)
    assert mean is not None, "the engine starts no server step without an upload"
    return mean


def digest_loss(projections: Tensor, agreed: Tensor) -> Tensor:
    """Mean absolute error between projections, normalized here, and rows of C (code), both [B, D]."""
    return F.l1_loss(F.normalize(projections, dim=1), agreed)


@pydantic_dataclass(frozen=True, kw_only=True)
class FedMD(Method):
    """Fit the mean of all clients' projections of public data, then train on private data."""

    uploads_follow_weights: ClassVar = True
    needs_public: ClassVar = True
    sends: ClassVar = Upload
    digest_epochs: PositiveInt = 1
    """Passes over D_pub per round in which a client fits the consensus (code)."""
    digest_batch: Annotated[int, Field(ge=2)] = 256
    """Samples a step of them (code)."""
    upload_format: compression.Format = "fp32"
    """Number format of what is sent."""

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse projections of different widths and a public set of one sample."""
        task.shared_width("fedmd")
        if num_public < 2:
            raise ValueError(f"fedmd needs at least 2 public samples, got {num_public}: set a larger public set")
        return ()

    @property
    def upload_fields(self) -> Mapping[str, Declared]:
        """Exact numbers have a sum, and rounded ones a scale that tells what they were before noise."""
        says = super().upload_fields
        return says if self.upload_format == "fp32" else one_by_one(says)

    def init_server(self, server: Server) -> ServerState:
        """Begin without a consensus."""
        return ServerState(None)

    def download(self, state: ServerState, client_id: int) -> Download:
        """Distribute: send the consensus to everybody."""
        return Download(state.consensus)

    def update_client(
        self, download: Download, state: ClientState | Empty, client: Client
    ) -> tuple[Upload, ClientState, Metrics]:
        """Digest the consensus, revisit the private data, communicate how the public samples look now."""
        assert client.public is not None, "the engine refuses to start FedMD without public data"
        weights = state.weights if isinstance(state, ClientState) else client.task.initial_weights(client.architecture)
        digested: Metrics = {}
        if download.consensus is not None:
            fitted, digested = self.digest(weights, download.consensus, client)
            weights = weights | fitted
        trained, metrics = client.train(weights)
        model = client.task.model(trained, client.architecture)
        representations = client.task.project(model, client.public).cpu().clone()
        upload = Upload(compression.pack(representations, self.upload_format))
        return upload, ClientState(client.architecture, trained), metrics | digested

    def digest(self, weights: Weights, agreed: Tensor, client: Client) -> tuple[Weights, Metrics]:
        """Fit the client's model to the consensus on public data; the objective's state stays as it is."""
        task = client.task
        assert client.public is not None, "the engine refuses to start FedMD without public data"
        model = task.model(weights, client.architecture)
        metrics = task.fit_projections(
            model,
            client.public,
            client.method_generator,
            agreed.to(task.device),
            digest_loss,
            round=client.round,
            epochs=self.digest_epochs,
            batch=self.digest_batch,
        )
        return task.weights_of(model), {"digest_loss_first": metrics["loss_first"], "digest_loss": metrics["loss"]}

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Upload], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Aggregate: average what the clients of the round sent."""
        with torch.no_grad():
            return ServerState(consensus(compression.unpack(upload.representations) for upload in uploads.values())), {}

    def encoders(self, state: ServerState, clients: Mapping[int, ClientState | Empty]) -> dict[str, Encoder]:
        """Each client's own encoder; there is no global one."""
        return own_encoders(clients)
