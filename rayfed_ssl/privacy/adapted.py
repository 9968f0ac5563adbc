"""Adapters in the place of encoders: a method around a method, whose participants train, send and average adapters alone.

The frozen weights go down once to each client and never up. Everything inside, rules, noise and secure sums too, sees models
whose weights are the adapters and the heads; encoders are shown with adapters merged, as a model without them.

Symbols: A_k, B_k factors of client k after local training, p_k its weight in the mean, of sum 1; A', B' the server's after
its step; M = sum_k p_k B_k A_k, wanted in the place of B'A'; s = alpha / r.

With `aggregation=exact` s R, R = M - B'A' = sum_k p_k B_k (A_k - A'), is added to the frozen weights, which then are state
of the run (Singhal, Ponkshe, Vepakomma: FedEx-LoRA, ACL 2025). To clients of the last round R goes down as these factors, of
rank K r at most, or as the changed layers where those are smaller; to others go the layers. The authors' code adds R
transposed, which is right for GPT-2's layers; W of `nn.Linear` is [d_out, d_in], as BA.

With `aggregation=svd` B' = U S and A' = V^T of M's first r singular values (Bai, Chen, Wang, Li, Yao: FlexLoRA, 2024), in
float64 on the CPU; the largest entry of each column of U is positive. A client of a smaller rank receives the first columns
of B' and rows of A', which are those of the largest singular values, and what it sends is filled up with zeros.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rayfed_ssl.method import (
    Client,
    Declared,
    Encoder,
    Method,
    Metrics,
    Rule,
    Server,
    Task,
    Weights,
    known,
    one_by_one,
    sent,
)
from rayfed_ssl.methods.fedavg import Averaging
from rayfed_ssl.models.adapters import A, Adapters, B, Lora, of_rank, products
from rayfed_ssl.privacy.robust import held_fields
from rayfed_ssl.privacy.wrapper import Wrapper
from rayfed_ssl.trees import nbytes


@dataclass(frozen=True)
class ServerState:
    """The inner method's state, the frozen weights, and what clients have of these.

    Attributes:
        started: Clients that have received them, with the last round in which they took part.
        round: The last round.
        residual: Factors of what it added to the frozen weights.
    """

    inner: Any
    base: Weights
    started: dict[int, int]
    round: int = 0
    residual: Weights | None = None


@dataclass(frozen=True)
class Download:
    """What the inner method sends, and what brings a client's frozen weights up to date.

    Attributes:
        base: The frozen weights as they then are.
        frozen: All of them in a client's first round; later those that have changed, if not as factors.
        residual: Factors of the change.
    """

    inner: Any
    base: Weights = known()
    frozen: Weights | None = sent("frozen weights")
    residual: Weights | None = sent("frozen weights")

    @property
    def weights(self) -> Weights:
        """What a method that averages sends."""
        weights: Weights = self.inner.weights
        return weights


class Observed(Mapping[int, Any]):
    """The inner method's view of uploads, as lazy as they are and of one rank; sums up products on the way.

    Attributes:
        sums: sum_k p_k B_k A_k by layer, float64, of the uploads that have been read.
        total: sum_k p_k.
        factors: p_k with A_k and B_k of each upload, if they are held.
    """

    def __init__(self, uploads: Mapping[int, Any], method: Method, rank: int, *, holds: bool) -> None:
        self._uploads, self._method, self._rank, self._holds = uploads, method, rank, holds
        self._read = set[int]()
        self.sums: dict[str, Tensor] = {}
        self.total = 0.0
        self.factors: list[tuple[float, Weights]] = []

    def __getitem__(self, client_id: int) -> Any:
        upload = self._uploads[client_id]
        upload = replace(upload, weights=of_rank(upload.weights, self._rank))
        if client_id not in self._read:
            self._read.add(client_id)
            factor = self._method.factor(upload)
            self.total += factor
            if self._holds:
                self.factors.append((factor, {n: v for n, v in upload.weights.items() if n.endswith((A, B))}))
            for layer, product in products(upload.weights):
                total = self.sums.get(layer)
                self.sums[layer] = product.mul_(factor) if total is None else total.add_(product, alpha=factor)
        return upload

    def __iter__(self) -> Iterator[int]:
        return iter(self._uploads)

    def __len__(self) -> int:
        return len(self._uploads)


def gap(wanted: Mapping[str, Tensor], made: Mapping[str, Tensor]) -> float:
    """||M - B'A'|| / ||M|| over all layers; 0 where M is 0."""
    missed = sum(float((matrix - made[layer]).square().sum()) for layer, matrix in wanted.items())
    size = sum(float(matrix.square().sum()) for matrix in wanted.values())
    return (missed / size) ** 0.5 if size else 0.0


def low_rank(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Find B [d_out, r] and A [r, d_in] of the nearest product of rank r: B = U S, A = V^T, signs fixed."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    left = left[:, :rank]
    signs = left.gather(0, left.abs().argmax(0, keepdim=True)).sign()
    return left * signs * values[:rank], right[:rank] * signs.T


def residual_factors(layer: str, after: Weights, factors: Sequence[tuple[float, Weights]]) -> tuple[Tensor, Tensor]:
    """[p_1 B_1 ... p_K B_K] and [A_1 - A'; ...; A_K - A'], whose product is R of a layer, float32."""
    total, mean = math.fsum(factor for factor, _ in factors), after[layer + A].double()
    left = [weights[layer + B].double() * (factor / total) for factor, weights in factors]
    right = [weights[layer + A].double() - mean for _, weights in factors]
    return torch.cat(left, 1).float(), torch.cat(right).float()


@dataclass(frozen=True, kw_only=True)
class Adapted(Wrapper):
    """A method whose participants train adapters of a frozen encoder.

    What stands around the method inside sees sums where it wants them; this server notes who sent, and looks at products.
    """

    adapters: Adapters
    takes_old_versions = property(lambda self: self.method.takes_old_versions and not self._is("exact", "svd"))

    @property
    def upload_fields(self) -> Mapping[str, Declared]:
        """What the method says, but for sums and releases; an exact server holds what the clients sent."""
        return held_fields(self.method) if self._is("exact") else one_by_one(self.method.upload_fields)

    def rules(self, task: Task) -> Mapping[str, Rule]:
        """The method's rules for what is trained."""
        return self.method.rules(self._task(task))

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse encoders that these adapters do not fit, and several of them; say what is trained."""
        if task.client_encoders:
            raise ValueError("model.adapters are of one encoder, got clients.models: leave one of both out")
        task = self._task(task)
        if self._is("exact", "svd"):
            self._check_mean(task)
        blank = task.blank(task.encoder).encoder
        trained = sum(value.numel() for value in blank.parameters() if value.requires_grad)
        frozen = sum(value.numel() for value in blank.parameters()) - trained
        note = f"model.adapters: {trained:,} weights of the encoder are trained, {frozen:,} are frozen"
        return (*self.method.check(task, num_public), note)

    def init_server(self, server: Server) -> ServerState:
        """Start as the method does, beside the frozen weights."""
        base = self._task(server.task).frozen_weights()
        return ServerState(self.method.init_server(self._server(server, base)), base, {})

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send what the method sends, and what a client's frozen weights lack."""
        inner, last = self.method.download(state.inner, client_id), state.started.get(client_id)
        if isinstance(own := self.adapters.of_client(client_id), Lora) and own != self.adapters:
            inner = replace(inner, weights=of_rank(inner.weights, own.rank))
        if last is None:
            return Download(inner, state.base, state.base, None)
        if not self._is("exact"):
            return Download(inner, state.base, None, None)
        if last == state.round and state.residual is not None:
            return Download(inner, state.base, None, state.residual)
        changed = {f"{layer}.weight" for layer, _ in products(inner.weights)}
        return Download(inner, state.base, {n: v for n, v in state.base.items() if n in changed}, None)

    def init_client(self, client: Client) -> Any:
        """Remember what the method makes a client remember."""
        return self.method.init_client(replace(client, task=self._task(client.task, client_id=client.id)))

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train adapters as the method trains models."""
        task = self._task(client.task, download.base, client.id)
        return self.method.update_client(download.inner, state, replace(client, task=task))

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Any], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Aggregate adapters as the method aggregates models; reports the gap of M and B'A' where it sees both."""
        started = state.started | dict.fromkeys(uploads, server.round)
        after = replace(state, started=dict(sorted(started.items())), round=server.round)
        server = self._server(server, state.base)
        if not isinstance(self.adapters, Lora) or not isinstance(self.method, Averaging):
            inner, metrics = self.method.update_server(state.inner, uploads, server)
            return replace(after, inner=inner), metrics
        observed = Observed(uploads, self.method, self.adapters.rank, holds=self._is("exact"))
        inner, metrics = self.method.update_server(state.inner, observed, server)
        wanted = {layer: total / observed.total for layer, total in observed.sums.items()}
        if not wanted:
            return replace(after, inner=inner), metrics
        if self._is("svd"):
            inner = replace(inner, weights=inner.weights | self._nearest(wanted))
        weights = self.method.download(inner, min(uploads)).weights
        metrics = metrics | {"adapter_gap": gap(wanted, dict(products(weights)))}
        if self._is("exact"):
            after = self._corrected(after, weights, observed.factors)
        return replace(after, inner=inner), metrics

    def _nearest(self, wanted: Mapping[str, Tensor]) -> Weights:
        assert isinstance(self.adapters, Lora), "others have no products"
        found: Weights = {}
        for layer, matrix in wanted.items():
            left, right = low_rank(matrix, self.adapters.rank)
            found |= {layer + B: left.float(), layer + A: right.float()}
        return found

    def _corrected(self, state: ServerState, weights: Weights, factors: Sequence[tuple[float, Weights]]) -> ServerState:
        """Add s R to the frozen weights, as a client does that receives its factors."""
        assert isinstance(self.adapters, Lora), "others have no products"
        residual, changed = Weights(), Weights()
        for layer, _ in products(weights):
            left, right = residual_factors(layer, weights, factors)
            residual |= {layer + B: left, layer + A: right}
            name = f"{layer}.weight"
            changed[name] = (state.base[name].double() + self.adapters.scale * (left.double() @ right.double())).float()
        smaller = residual if nbytes(residual) < nbytes(changed) else None
        return replace(state, base=state.base | changed, residual=smaller)

    def encoders(self, state: ServerState, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The method's encoders, whole and with adapters merged."""
        return {
            name: Encoder(encoder.architecture, self.adapters.merged(state.base | encoder.weights))
            for name, encoder in self.method.encoders(state.inner, clients).items()
        }

    def _is(self, *aggregations: str) -> bool:
        return isinstance(self.adapters, Lora) and self.adapters.aggregation in aggregations

    def _check_mean(self, task: Task) -> None:
        """Refuse methods whose server does something else than average A and B, and servers that do not see them."""
        kind = type(self.method)
        is_mean = isinstance(self.method, Averaging) and (
            (kind.aggregate, kind.update_server) == (Averaging.aggregate, Averaging.update_server)  # type: ignore[attr-defined]
        )
        rules = self.method.rules(task)
        if not is_mean or not rules["encoder"] == rules["lora_b"] == "averaged":
            assert isinstance(self.adapters, Lora), "others have no aggregation"
            raise ValueError(
                f"model.adapters.aggregation={self.adapters.aggregation} needs every client's A and B and their plain mean, "
                f"which {kind.__name__} as it is set does not give: take fedavg, fedprox or fedx without privacy, robust "
                "and adversary, or aggregation=mean"
            )
        if self._is("svd") and (target := rules.get("target", "reset")) != "reset":
            raise ValueError(
                "model.adapters.aggregation=svd turns A and B in each round, and a target that is not reset moves towards "
                f"turned ones, got method.parts.target={target}: set method.parts.target=reset, or aggregation=mean"
            )

    def _task(self, task: Task, base: Weights | None = None, client_id: int | None = None) -> Task:
        adapters = self.adapters if client_id is None else self.adapters.of_client(client_id)
        return replace(task, adapters=adapters, base=base)

    def _server(self, server: Server, base: Weights) -> Server:
        return replace(server, task=self._task(server.task, base))


def adapted(method: Method, adapters: Adapters | None) -> Method:
    """Put adapters around a method and what protects it, if a run has some."""
    return method if adapters is None else Adapted(method=method, adapters=adapters)
