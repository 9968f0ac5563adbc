"""The actor that runs the server's steps and holds its state; a new actor reads the state from the checkpoint."""

from collections.abc import Generator, Mapping
from typing import Any

import torch

from actors.federation_actor import FederationActor, Versions, ending_without_gpu
from actors.object_store import ItemRef, Uploads, pack
from rayfed_ssl.engine.contributions import Start
from rayfed_ssl.engine.gpu_memory import release
from rayfed_ssl.engine.round_loop import ServerReport
from rayfed_ssl.engine.upload_store import UPLOAD_BYTES
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import Stored, StoredStates
from rayfed_ssl.trees import Tree, flatten


class ServerActor(FederationActor):
    """Runs the server's steps. Every call names the state that it starts from, so a new actor can take over at once.

    At most `cache_bytes` of uploads are in memory at a time.
    """

    def __init__(
        self,
        config: dict[str, Any],
        versions: Versions | None = None,
        working_directory: str = "",
        cache_bytes: int = UPLOAD_BYTES,
    ) -> None:
        super().__init__(config, versions, working_directory)
        torch.set_num_threads(self._config.engine.server_threads)
        self._cache_bytes = cache_bytes

    @ending_without_gpu()
    def init(self, directory: Directory) -> Stored:
        """Make and store the state before round 1."""
        try:
            return self.steps.init_server(directory)
        finally:
            release()

    def downloads(self, states: Mapping[int, Stored], directory: Directory) -> Generator[Tree, None, None]:
        """Select what each client of a cohort receives, of which state of the server.

        Yields each distinct part once, as arrays, and at last the downloads by client id with placeholders for the parts.
        A generator's values belong to the caller and so outlive this actor; what `ray.put` stores would not.
        """
        yield from _parts(
            {client_id: self.steps.download(client_id, states[client_id], directory) for client_id in states}
        )

    @ending_without_gpu()
    def update(
        self,
        round: int,
        state: Stored,
        uploads: Mapping[int, ItemRef],
        directory: Directory,
        starts: Mapping[int, Start],
    ) -> ServerReport:
        """Aggregate a round's uploads, a few in memory at a time, and store the next state."""
        try:
            return self.steps.update_server(round, state, Uploads(uploads, self._cache_bytes), directory, starts)
        finally:
            release()

    def encoders(
        self, state: Stored, clients: Mapping[int, Stored], directory: Directory
    ) -> Generator[Tree, None, None]:
        """Select the encoders to evaluate, and yield them by name as `downloads` does."""
        yield from _parts(self.steps.encoders(state, StoredStates(clients, directory), directory))


def _parts(messages: Mapping[Any, Any]) -> Generator[Tree, None, None]:
    parts, packed = pack(messages)
    for part in parts:
        yield flatten(part)
    yield packed
