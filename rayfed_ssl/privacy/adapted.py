"""Adapters in the place of encoders: a method around a method, whose participants train, send and average adapters alone.

The frozen weights go down once to each client and never up. Everything inside, rules, noise and secure sums too, sees models
whose weights are the adapters and the heads; encoders are shown with adapters merged, as a model without them.

Symbols: A_k, B_k factors of client k after local training, p_k its weight in the mean; A', B' the server's after its step;
M = sum_k p_k B_k A_k.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from rayfed_ssl.method import Client, Encoder, Method, Metrics, Rule, Server, Task, Weights, known, one_by_one, sent
from rayfed_ssl.methods.fedavg import Averaging
from rayfed_ssl.models.adapters import Adapters, Lora, products
from rayfed_ssl.privacy.wrapper import Wrapper


@dataclass(frozen=True)
class ServerState:
    """The inner method's state, the frozen weights, and the clients that have received them."""

    inner: Any
    base: Weights
    started: tuple[int, ...] = ()


@dataclass(frozen=True)
class Download:
    """What the inner method sends, and in a client's first round the frozen weights, which it has in later ones."""

    inner: Any
    base: Weights = known()
    frozen: Weights | None = sent("frozen weights")

    @property
    def weights(self) -> Weights:
        """What a method that averages sends."""
        weights: Weights = self.inner.weights
        return weights


class Observed(Mapping[int, Any]):
    """The inner method's view of uploads, as lazy as they are; sums up products on the way.

    Attributes:
        sums: sum_k p_k B_k A_k by layer, float64, of the uploads that have been read.
        total: sum_k p_k.
    """

    def __init__(self, uploads: Mapping[int, Any], method: Method) -> None:
        self._uploads, self._method, self._read = uploads, method, set[int]()
        self.sums: dict[str, Tensor] = {}
        self.total = 0.0

    def __getitem__(self, client_id: int) -> Any:
        upload = self._uploads[client_id]
        if client_id not in self._read:
            self._read.add(client_id)
            factor = self._method.factor(upload)
            self.total += factor
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


@dataclass(frozen=True, kw_only=True)
class Adapted(Wrapper):
    """A method whose participants train adapters of a frozen encoder.

    What stands around the method inside sees sums where it wants them; this server notes who sent, and looks at products.
    """

    adapters: Adapters
    upload_fields = property(lambda self: one_by_one(self.method.upload_fields))
    takes_old_versions = property(lambda self: isinstance(self.method, Averaging) and self.method.takes_old_versions)

    def rules(self, task: Task) -> Mapping[str, Rule]:
        """The method's rules for what is trained."""
        return self.method.rules(self._task(task))

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse encoders that these adapters do not fit, and several of them; say what is trained."""
        if task.client_encoders:
            raise ValueError("model.adapters are of one encoder, got clients.models: leave one of both out")
        task = self._task(task)
        blank = task.blank(task.encoder).encoder
        trained = sum(value.numel() for value in blank.parameters() if value.requires_grad)
        frozen = sum(value.numel() for value in blank.parameters()) - trained
        note = f"model.adapters: {trained:,} weights of the encoder are trained and sent, {frozen:,} are frozen"
        return (*self.method.check(task, num_public), note)

    def init_server(self, server: Server) -> ServerState:
        """Start as the method does, beside the frozen weights."""
        base = self._task(server.task).frozen_weights()
        return ServerState(self.method.init_server(self._server(server, base)), base)

    def download(self, state: ServerState, client_id: int) -> Download:
        """Send what the method sends, and to a client that has not started yet the frozen weights."""
        inner = self.method.download(state.inner, client_id)
        return Download(inner, state.base, None if client_id in state.started else state.base)

    def init_client(self, client: Client) -> Any:
        """Remember what the method makes a client remember."""
        return self.method.init_client(replace(client, task=self._task(client.task)))

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train adapters as the method trains models."""
        task = self._task(client.task, download.base)
        return self.method.update_client(download.inner, state, replace(client, task=task))

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Any], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Aggregate adapters as the method aggregates models; reports the gap of M and B'A' where it sees both."""
        started = tuple(sorted({*state.started, *uploads}))
        server = self._server(server, state.base)
        if not isinstance(self.adapters, Lora) or not isinstance(self.method, Averaging):
            inner, metrics = self.method.update_server(state.inner, uploads, server)
            return ServerState(inner, state.base, started), metrics
        observed = Observed(uploads, self.method)
        inner, metrics = self.method.update_server(state.inner, observed, server)
        wanted = {layer: total / observed.total for layer, total in observed.sums.items()}
        made = dict(products(self.method.download(inner, min(uploads)).weights))
        if wanted:
            metrics = metrics | {"adapter_gap": gap(wanted, made)}
        return ServerState(inner, state.base, started), metrics

    def encoders(self, state: ServerState, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The method's encoders, whole and with adapters merged."""
        return {
            name: Encoder(encoder.architecture, self.adapters.merged(state.base | encoder.weights))
            for name, encoder in self.method.encoders(state.inner, clients).items()
        }

    def _task(self, task: Task, base: Weights | None = None) -> Task:
        return replace(task, adapters=self.adapters, base=base)

    def _server(self, server: Server, base: Weights) -> Server:
        return replace(server, task=self._task(server.task, base))


def adapted(method: Method, adapters: Adapters | None) -> Method:
    """Put adapters around a method and what protects it, if a run has some."""
    return method if adapters is None else Adapted(method=method, adapters=adapters)
