"""The in-process executor: reference semantics without Ray, and the same bits."""

import math
import time
from collections.abc import Sequence

from rayfed_ssl.config.sections import Engine
from rayfed_ssl.engine.arithmetic import Arithmetic
from rayfed_ssl.engine.client_scores import encoders_of_client
from rayfed_ssl.engine.contributions import Start, server_of, starts_of
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import ClientError, ClientReport, Dropped, Evaluation, Listener, ServerReport
from rayfed_ssl.engine.start_scores import score_start
from rayfed_ssl.engine.steps import Steps
from rayfed_ssl.engine.upload_store import UploadStore
from rayfed_ssl.machine.environment import compute_threads, keep_memory
from rayfed_ssl.method import Metrics
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import RunState, Stored


class LocalExecutor:
    """Runs every step in this process, clients one after the other in ascending id."""

    def __init__(self, federation: Federation) -> None:
        keep_memory()
        self.retries = 0
        self._federation, self._engine = federation, federation.config.engine
        self._steps = Steps(federation)
        self._uploads = UploadStore()
        self._starts: dict[int, Start] = {}

    def arithmetic(self) -> Arithmetic:
        """Say how this process computes."""
        return Arithmetic.of(self._federation.task, self._engine)

    def init_server(self, directory: Directory) -> Stored:
        """Make and store the server's state before round 1."""
        return self._steps.init_server(directory)

    def train_clients(
        self, state: RunState, cohort: Sequence[int], directory: Directory, listener: Listener
    ) -> tuple[ClientReport, ...]:
        """Run one round's client steps."""
        reports = []
        self._uploads.clear()
        self._starts = starts_of(self._federation, state, cohort)
        over = time.monotonic() + (self._engine.deadline or math.inf)
        with compute_threads(self._engine.threads):
            for client_id in sorted(cohort):
                if time.monotonic() > over:
                    listener.on_dropped(late(self._engine, client_id))
                    continue
                try:
                    report = self._update_client(state, client_id, directory)
                except ClientError as error:
                    if self._engine.on_failure == "stop":
                        raise
                    listener.on_dropped(Dropped(client_id, str(error)))
                else:
                    reports.append(report)
                    listener.on_client(report)
        return tuple(reports)

    def _update_client(self, state: RunState, client_id: int, directory: Directory) -> ClientReport:
        stored = state.clients.get(client_id)
        previous = None if stored is None else checkpoints.read(stored, directory)
        server = server_of(self._federation, state, state.round, client_id)
        download = self._steps.download(client_id, server, directory)
        epochs = self._federation.scheduled_epochs(state.round, client_id)
        result, report = self._steps.update_client(state.round, client_id, download, previous, directory, epochs)
        self._uploads.add(client_id, result.upload, directory)
        return report

    def update_server(self, state: RunState, cohort: Sequence[int], directory: Directory) -> ServerReport:
        """Aggregate the uploads of the clients that were just trained."""
        try:
            return self._steps.update_server(state.round, state.server, self._uploads, directory, self._starts)
        finally:
            self._uploads.clear()

    def evaluate(self, state: RunState, directory: Directory, final: bool) -> tuple[Evaluation, ...]:
        """Score every encoder that the method shows."""
        clients = checkpoints.StoredStates(state.clients, directory)
        encoders = self._steps.encoders(state.server, clients, directory)
        with compute_threads(self._engine.threads):
            return tuple(
                self._federation.evaluate(encoder, name, state.round, final) for name, encoder in encoders.items()
            )

    def score_clients(self, state: RunState, directory: Directory) -> tuple[Evaluation, ...]:
        """Score clients on their test parts."""
        if not self._federation.scored_clients:
            return ()
        encoders = self._steps.encoders(state.server, checkpoints.StoredStates(state.clients, directory), directory)
        with compute_threads(self._engine.threads):
            return tuple(
                self._steps.score_client(
                    state.round,
                    client_id,
                    encoders_of_client(encoders, client_id),
                    state.clients.get(client_id),
                    directory,
                )
                for client_id in self._federation.scored_clients
            )

    def score_start(self, architecture: str) -> Metrics:
        """Score what an architecture starts from."""
        return score_start(self._federation, architecture)

    def close(self) -> None:
        """Free the uploads."""
        self._uploads.clear()


def late(engine: Engine, client_id: int) -> Dropped:
    """Report that a client was not done before the deadline."""
    return Dropped(client_id, f"it was not done within engine.deadline={engine.deadline:g} s")
