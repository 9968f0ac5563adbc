"""The executor on Ray: client actors, a server actor, and a driver that holds refs and never a state or an upload."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import ray
from ray import ObjectRef
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.client_actor import ClientActor
from actors.cluster import Node, start
from actors.memories import MemoryCache
from actors.parking import UploadLostError, fill
from actors.placement import Placement, place
from actors.pool import ActorPool, Job, JobError
from actors.server_actor import ServerActor
from actors.supervision import ActorError, Keeper, await_ready, await_room
from rayfed_ssl.checkpoints import RunState, Stored
from rayfed_ssl.federation import Federation, client_error
from rayfed_ssl.places import Directory
from rayfed_ssl.rounds import ClientError, ClientReport, Evaluation, ServerReport
from rayfed_ssl.trees import Tree

MEMORY_SHARE = 0.25
"""Part of the object store that client states may fill; those beyond are read from the checkpoint."""

ONE_LIFE: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0}
"""Ray repeats calls out of order and on actors without state; here the driver repeats them."""


class RayExecutor:
    """Runs steps in actors; the number of actors, their order and their deaths change no bit of any result.

    Args:
        federation: The federation whose steps are run; each actor opens its own from the same configuration.
        address: A Ray to attach to, "host:port" or "auto"; None starts one, unless this process has one already.

    Attributes:
        retries: Client steps that were repeated because their actor died.
        placement: The client actors and what they reserve.

    Raises:
        ClusterError: Ray does not start, or the actors find no room on it.
    """

    def __init__(self, federation: Federation, *, address: str | None = None) -> None:
        self.retries = 0
        self._federation = federation
        self._engine = federation.config.engine
        self._uploads: dict[int, ObjectRef[Any]] = {}
        self._downloads: dict[int, Any] = {}
        self._seconds: dict[int, float] = {}
        self._closing: list[Callable[[], None]] = []
        self._cluster = start(address)
        try:
            self._make_actors()
        except BaseException:
            self.close()
            raise

    def _make_actors(self) -> None:
        nodes = self._cluster.nodes()
        self.placement = self._place(nodes)
        config = self._federation.config.dump()
        config["engine"]["device"] = self.placement.device
        attempts = self._engine.attempts
        server = ray.remote(num_cpus=0, scheduling_strategy=_beside_gpu(nodes), **ONE_LIFE)(ServerActor)
        self._keeper = Keeper(lambda: server.remote(config), attempts)
        self._closing.append(self._keeper.close)
        client = ray.remote(num_cpus=self.placement.cpus, num_gpus=self.placement.gpus, **ONE_LIFE)(ClientActor)
        self._pool = ActorPool(lambda: client.remote(config), self.placement.num_actors, attempts)
        self._closing.append(self._pool.close)
        self._memories = MemoryCache(int(MEMORY_SHARE * sum(node.store for node in nodes)))
        await_ready([self._keeper.actor, *self._pool.actors])

    def _place(self, nodes: Sequence[Node]) -> Placement:
        has_gpu = any(node.gpus for node in nodes)
        # On one machine the driver knows whether torch can use the GPU; on others Ray's word has to do.
        usable = self._federation.task.device.type == "cuda" or len(nodes) > 1
        use_gpu = self._engine.device.startswith("cuda") or (self._engine.device == "auto" and has_gpu and usable)
        placement = place(self._engine, len(self._federation.client_ids), nodes, use_gpu=use_gpu)
        if get_current_placement_group() is None:
            await_room(placement)
        return placement

    def init_server(self, directory: Directory) -> Stored:
        """Make and store the server's state before round 1."""
        stored: Stored = self._keeper.ask(lambda server: ray.get(server.init.remote(directory.resolve())))
        return stored

    def train_clients(
        self, state: RunState, cohort: Sequence[int], directory: Directory, on_client: Callable[[ClientReport], None]
    ) -> tuple[ClientReport, ...]:
        """Run one round's client steps; uploads and states stay where they were made."""
        self._uploads = {}
        reports = []
        for report in self._train(state, cohort, directory.resolve()):
            reports.append(report)
            on_client(report)
        return tuple(sorted(reports, key=lambda report: report.client))

    def _train(self, state: RunState, cohort: Sequence[int], directory: Directory) -> Iterator[ClientReport]:
        def park() -> None:
            self._downloads = self._keeper.ask(
                lambda server: _collect(server.downloads.remote(cohort, state.server, directory))
            )

        park()
        before = self._pool.retries
        jobs = [self._client_job(state, client_id, directory) for client_id in cohort]
        try:
            for done in self._pool.run(jobs, store_again=park):
                report: ClientReport = done.value
                self._uploads[report.client], memory = done.refs
                self._memories.keep(report.client, report.state, memory, directory)
                self._seconds[report.client] = report.seconds
                yield report
        except JobError as error:
            raise self._client_error(state.round, error) from error
        finally:
            self.retries += self._pool.retries - before
            self._downloads = {}

    def _client_job(self, state: RunState, client_id: int, directory: Directory) -> Job:
        own = state.clients.get(client_id)
        memory = None if own is None else self._memories.find(client_id, own)

        def submit(actor: Any) -> Sequence[ObjectRef[Any]]:
            download = self._downloads[client_id]
            refs: Sequence[ObjectRef[Any]] = actor.update_client.remote(
                state.round, client_id, download, memory, directory
            )
            return refs

        return Job(client_id, submit, self._expected_seconds(client_id))

    def _expected_seconds(self, client_id: int) -> float:
        """Take the client's last step for its next, and before its first the shard's size at the others' speed."""
        if client_id in self._seconds:
            return self._seconds[client_id]
        sizes = {k: len(shard) for k, shard in self._federation.shards.items()}
        measured = sum(sizes[k] for k in self._seconds)
        return sizes[client_id] * (sum(self._seconds.values()) / measured if measured else 1.0)

    def _client_error(self, round: int, error: JobError) -> ClientError:
        if isinstance(error.cause, ClientError):
            return error.cause
        return client_error(self._federation.config, round, error.key, error.reason)

    def update_server(self, state: RunState, cohort: Sequence[int], directory: Directory) -> ServerReport:
        """Aggregate the uploads of the clients that were just trained."""
        directory = directory.resolve()
        while True:
            try:
                report: ServerReport = self._keeper.ask(
                    lambda server: ray.get(server.update.remote(state.round, state.server, self._uploads, directory))
                )
            except UploadLostError as lost:
                list(self._train(state, [lost.client_id], directory))
                self.retries += 1
            else:
                self._uploads = {}
                return report

    def evaluate(self, state: RunState, directory: Directory, final: bool) -> tuple[Evaluation, ...]:
        """Score every encoder that the method shows, several at a time."""
        memories = {client_id: self._memories.find(client_id, own) for client_id, own in state.clients.items()}
        encoders = self._keeper.ask(
            lambda server: _collect(server.encoders.remote(state.server, memories, directory.resolve()))
        )
        jobs = [_evaluation_job(encoder, name, state.round, final) for name, encoder in encoders.items()]
        try:
            scores = {done.key: done.value for done in self._pool.run(jobs)}
        except JobError as error:
            if error.cause is not None:
                raise error.cause from error
            raise ActorError(f"scoring encoder {error.key} after round {state.round} failed: {error.reason}") from None
        return tuple(scores[name] for name in encoders)

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        while self._closing and ray.is_initialized():
            self._closing.pop()()
        self._cluster.stop()


def _collect(parts: Iterable[ObjectRef[Any]]) -> Tree:
    """Join what `park` took apart: refs to the parts, and at last the plan."""
    *refs, plan = list(parts)
    return fill(ray.get(plan), refs)


def _evaluation_job(encoder: Any, name: str, round: int, final: bool) -> Job:
    return Job(name, lambda actor: [actor.evaluate.remote(encoder, name, round, final)])


def _beside_gpu(nodes: Sequence[Node]) -> Any:
    """Put the server, which reserves nothing, on a machine with a GPU if there is one."""
    with_gpu = [node.id for node in nodes if node.gpus]
    return NodeAffinitySchedulingStrategy(with_gpu[0], soft=False) if with_gpu else None
