"""The actor that runs the server's steps and holds its state; any call finds the state on disk if the actor is new."""

from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from actors.cluster.version_check import Versions, hardware, refuse_others
from actors.fault_injection import strike_actor
from actors.objects.client_states import Memories, Memory
from actors.objects.object_store import KEPT_BYTES, Parcel, Uploads, park
from rayfed_ssl.aggregation import weighted_mean as averaging
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.fault_injection import fill_disk
from rayfed_ssl.engine.faults import Fault
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.gpu_memory import release
from rayfed_ssl.engine.local_executor import server_file
from rayfed_ssl.engine.round_loop import ServerReport
from rayfed_ssl.engine.server_init_cache import first_state
from rayfed_ssl.environment import compute_threads
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import Stored
from rayfed_ssl.trees import Tree, to_numpy


class ServerActor:
    """Runs the server's steps. It names the state it goes on from in every call, so a new actor can take over at once.

    Args:
        config: The run's configuration as plain data.
        versions: The driver's; None compares nothing.
        room: Bytes of uploads that it may hold at a time.
    """

    def __init__(self, config: dict[str, Any], versions: Versions | None = None, room: int = KEPT_BYTES) -> None:
        self._versions = versions or {}
        self._config = Config.load(config)
        torch.set_num_threads(self._config.engine.server_threads)
        self._room = room
        self._live: tuple[Stored, Any] | None = None

    @cached_property
    def _federation(self) -> Federation:
        refuse_others(self._versions)
        return Federation.open(self._config)

    def ready(self) -> str:
        """Open the data, so that what is wrong with it is told before the first round.

        Returns:
            The hardware that it computes on.
        """
        return hardware(self._federation.task.device)

    def init(self, directory: Directory) -> Stored:
        """Make and store the state before round 1."""
        return self._keep(first_state(self._federation), directory, 0)

    def downloads(self, cohort: Sequence[int], state: Stored, directory: Directory) -> Generator[Tree, None, None]:
        """Select what each client of a cohort receives.

        A generator's values belong to the caller and so outlive this actor; what `ray.put` stores would not.

        Yields:
            Each distinct part once, as numpy, and at last the downloads by client id with slots for the parts.
        """
        current = self._recall(state, directory)
        with compute_threads(self._config.engine.threads):
            downloads = {client_id: self._federation.method.download(current, client_id) for client_id in cohort}
        yield from _in_parts(downloads)

    def update(
        self,
        round: int,
        state: Stored,
        uploads: Mapping[int, Parcel],
        directory: Directory,
        faults: Sequence[Fault] = (),
    ) -> ServerReport:
        """Aggregate a round's uploads, a few held at a time, and store the next state."""
        with averaging.holding(self._room):
            result = self._federation.update_server(round, self._recall(state, directory), Uploads(uploads, self._room))
        strike_actor(faults)
        fill_disk(faults, server_file(round))
        return ServerReport(self._keep(result.state, directory, round), result.metrics, result.seconds)

    def encoders(
        self, state: Stored, clients: Mapping[int, Memory], directory: Directory
    ) -> Generator[Tree, None, None]:
        """Select the encoders that evaluation shall see.

        Yields:
            Each distinct part once, as numpy, and at last the encoders by name with slots for the parts.
        """
        with compute_threads(self._config.engine.threads):
            found = self._federation.method.encoders(self._recall(state, directory), Memories(clients, directory))
        yield from _in_parts(found)

    def _keep(self, state: Any, directory: Directory, round: int) -> Stored:
        stored = checkpoints.store(state, directory, server_file(round))
        self._live = stored, state
        release()
        return stored

    def _recall(self, stored: Stored, directory: Directory) -> Any:
        if self._live is None or self._live[0] != stored:
            self._live = stored, checkpoints.read(stored, directory)
        return self._live[1]


def _in_parts(messages: Mapping[Any, Any]) -> Generator[Tree, None, None]:
    parts, plan = park(messages)
    for part in parts:
        yield to_numpy(part)
    yield plan
