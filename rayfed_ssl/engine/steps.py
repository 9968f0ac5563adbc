"""The steps of a round as every executor runs them: compute, store the next state, report."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from rayfed_ssl.engine.client_scores import score_client
from rayfed_ssl.engine.contributions import Rebased, Start
from rayfed_ssl.engine.federation import ClientResult, Federation
from rayfed_ssl.engine.round_loop import ClientReport, Evaluation, ServerReport
from rayfed_ssl.engine.server_init_cache import first_state
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.method import Encoder
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import Stored
from rayfed_ssl.trees import Tree, Weights


class Steps:
    """Steps of one process, which keeps the server's last state; another one is read from its checkpoint."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self._threads = federation.config.engine.threads
        self._server_threads = federation.config.engine.server_threads
        self._server: tuple[Stored, Any] | None = None

    def update_client(
        self,
        round: int,
        client_id: int,
        download: Any,
        state: Any | None,
        directory: Directory,
        epochs: int | None = None,
    ) -> tuple[ClientResult, ClientReport]:
        """Run one client's step; `state` is None before its first, and `epochs` where they are the run's."""
        result = self.federation.update_client(round, client_id, download, state, epochs)
        stored = self.store(result.state, directory, f"client-{client_id:06d}-{round:06d}")
        return result, ClientReport(client_id, stored, result.metrics, result.ledger, result.seconds)

    def init_server(self, directory: Directory) -> Stored:
        """Make the server's state before round 1."""
        with compute_threads(self._server_threads):
            return self._store_server(first_state(self.federation), directory, 0)

    def download(self, client_id: int, server: Stored, directory: Directory) -> Any:
        """Select what a client receives."""
        with compute_threads(self._threads):
            return self.federation.method.download(self._read_server(server, directory), client_id)

    def update_server(
        self,
        round: int,
        server: Stored,
        uploads: Mapping[int, Any],
        directory: Directory,
        starts: Mapping[int, Start] = MappingProxyType({}),
    ) -> ServerReport:
        """Aggregate a round; `uploads` is in ascending client id, and `starts` says which began from older states."""
        with compute_threads(self._server_threads):
            if starts:
                self._read_server(server, directory)
                uploads = Rebased(uploads, starts, server, partial(self._weights, directory))
            result = self.federation.update_server(round, self._read_server(server, directory), uploads)
            stored = self._store_server(result.state, directory, round)
        return ServerReport(stored, result.metrics, result.seconds)

    def encoders(self, server: Stored, clients: Mapping[int, Any], directory: Directory) -> dict[str, Encoder]:
        """Select the encoders to evaluate; `clients` are their states."""
        with compute_threads(self._threads):
            return self.federation.method.encoders(self._read_server(server, directory), clients)

    def score_client(
        self,
        round: int,
        client_id: int,
        encoders: Mapping[str, Encoder],
        stored: Stored | None,
        directory: Directory,
    ) -> Evaluation:
        """Score a client on its test part; `stored` is its state, if it has one."""
        kept = {} if stored is None else self.federation.method.local_parts(checkpoints.read(stored, directory))
        return score_client(self.federation, round, client_id, encoders, kept)

    def store(self, state: Tree, directory: Directory, name: str) -> Stored:
        """Write a state."""
        return checkpoints.store(state, directory, name)

    def _weights(self, directory: Directory, stored: Stored) -> Weights:
        """Give the weights that clients receive of a state; the last state stays in memory."""
        assert self._server is not None, "it is read before the first upload"
        state = self._server[1] if self._server[0] == stored else checkpoints.read(stored, directory)
        weights: Weights = self.federation.method.download(state, self.federation.client_ids[0]).weights
        return weights

    def _store_server(self, state: Any, directory: Directory, round: int) -> Stored:
        stored = self.store(state, directory, f"server-{round:06d}")
        self._server = stored, state
        return stored

    def _read_server(self, stored: Stored, directory: Directory) -> Any:
        if self._server is None or self._server[0] != stored:
            self._server = stored, checkpoints.read(stored, directory)
        return self._server[1]
