"""The executor on Ray: client actors, a server actor, and a driver that holds refs and never a state or an upload."""

import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray
from ray import ObjectRef

from actors.client_actor import ClientActor, Step
from actors.cluster.connect import ClusterError, start
from actors.cluster.version_check import difference, own_versions
from actors.dispatch.calls import Done, Failed
from actors.dispatch.pool import ActorPool
from actors.dispatch.queue import Job, expect, settle
from actors.fault_injection import LostObject, strike_after_client
from actors.objects.client_states import MemoryCache, is_mapped
from actors.objects.object_store import KEPT_BYTES, KEPT_SHARE, Parcel, UploadLostError, fill
from actors.placement.plan import actor_config, beside_gpu, check_share, claim, gpus_of, refuse_early, reservation
from actors.placement.restarts import ActorError, Keeper, await_ready
from actors.server_actor import ServerActor
from rayfed_ssl.engine.faults import KINDS, Fault, Faults, RandomFaults
from rayfed_ssl.engine.federation import Federation, client_error
from rayfed_ssl.engine.ledger import total
from rayfed_ssl.engine.local_executor import late
from rayfed_ssl.engine.round_loop import ClientError, ClientReport, Dropped, Evaluation, Listener, ServerReport
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import RunState, Stored
from rayfed_ssl.trees import Tree

MEMORY_SHARE = 0.25
"""Part of the object store that client states may fill; those beyond are read from the checkpoint."""

CALL_SECONDS = 0.5
"""Clients' steps that are shorter go together in one call, up to this sum: little is lost when an actor dies in it."""

RELEASE_TIMEOUT = 10.0
"""Seconds that client actors have to give back GPU memory; one that is gone does not hold up the round."""

ONE_LIFE: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0}
"""Ray repeats calls out of order and on actors without state; here the driver repeats them."""


class RayExecutor:
    """Runs steps in actors; the number of actors, their order and their deaths change no bit of any result.

    Args:
        federation: The federation whose steps are run; each actor opens its own from the same configuration.
        address: A Ray to attach to, "host:port" or "auto"; None starts one, unless this process has one already.
        faults: What shall go wrong.

    Attributes:
        retries: Client steps that were repeated because their actor died.
        placement: The client actors and what they reserve.

    Raises:
        ClusterError: Ray does not start, or the actors find no room on it.
    """

    def __init__(
        self, federation: Federation, *, address: str | None = None, faults: Iterable[Fault | RandomFaults] = ()
    ) -> None:
        self.retries = 0
        self.faults = Faults(faults, federation.config.rounds, federation.cohort, KINDS)
        self._federation = federation
        self._engine = federation.config.engine
        self._uploads: dict[int, Parcel] = {}
        self._downloads: dict[int, Any] = {}
        self._ahead: tuple[Any, Stored, Sequence[int], Any] | None = None
        self._seconds: dict[int, float] = {}
        self._sent: dict[int, int] = {}
        self._sizes = {client_id: len(rows) for client_id, rows in federation.shards.items()}
        self._lost = LostObject()
        self._closing = ExitStack()
        refuse_early(federation, address)
        self._cluster = start(address)
        self._closing.callback(self._cluster.stop)
        try:
            self._health = self._cluster.health
            self._make_actors()
        except BaseException:
            self.close()
            raise

    def _make_actors(self) -> None:
        nodes = self._cluster.nodes()
        self.placement = claim(self._federation, nodes)
        cards = gpus_of(nodes) if self.placement.gpus else ()
        config, versions = actor_config(self._federation, self.placement), own_versions()
        attempts = self._engine.attempts

        room = min(KEPT_BYTES, int(KEPT_SHARE * min(node.store for node in nodes)))

        def make_server() -> Any:
            place = beside_gpu(self._cluster.nodes())  # the machine of the last one may be gone
            server = ray.remote(num_cpus=0, scheduling_strategy=place, **ONE_LIFE)(ServerActor)
            return server.remote(config, versions, room)

        self._keeper = Keeper(make_server, attempts, self._health.check)
        self._closing.callback(self._keeper.close)
        client = ray.remote(**reservation(self.placement), **ONE_LIFE)(ClientActor)
        self._pool = ActorPool(
            lambda: client.remote(config, versions), self.placement.num_actors, attempts, self._health.check
        )
        self._closing.callback(self._pool.close)
        self._homes = settle(self._sizes, self.placement.num_actors)
        self._memories = MemoryCache(int(MEMORY_SHARE * sum(node.store for node in nodes)))
        if told := difference(await_ready([self._keeper.actor, *self._pool.actors.values()], self._health.check)):
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        check_share(self.placement, self._federation, next(iter(self._pool.actors.values())), cards, self._health.get)

    def init_server(self, directory: Directory) -> Stored:
        """Make and store the server's state before round 1."""
        stored: Stored = self._keeper.ask(lambda server: self._health.get(server.init.remote(directory.resolve())))
        return stored

    def train_clients(
        self, state: RunState, cohort: Sequence[int], directory: Directory, listener: Listener
    ) -> tuple[ClientReport, ...]:
        """Run one round's client steps; uploads and states stay where they were made."""
        self._uploads = {}
        reports = []
        for result in self._train(state, cohort, directory.resolve(), deadline=self._engine.deadline):
            self._health.look()
            if isinstance(result, Failed):
                listener.on_dropped(self._dropped(state.round, result))
            else:
                reports.append(result)
                listener.on_client(result)
                strike_after_client(self.faults, state.round, self._health)
        return tuple(sorted(reports, key=lambda report: report.client))

    def _train(
        self, state: RunState, cohort: Sequence[int], directory: Directory, deadline: float | None = None
    ) -> Iterator[ClientReport | Failed]:
        def park() -> None:
            self._downloads = self._keeper.ask(
                lambda server: self._collect(
                    self._prepared(state, cohort) or server.downloads.remote(cohort, state.server, directory)
                )
            )

        def submit(actor: Any, jobs: Sequence[Job]) -> Sequence[ObjectRef[Any]]:
            steps = [self._step(state, job.key) for job in jobs]
            call = actor.update_clients.options(num_returns=2 + (0 if is_mapped(directory) else len(jobs)))
            refs: Sequence[ObjectRef[Any]] = call.remote(state.round, steps, directory)
            return refs

        over = None if deadline is None else time.monotonic() + deadline
        park()
        before = self._pool.retries
        try:
            for done in self._pool.run(
                self._jobs(state.round, cohort),
                submit,
                homes=self._homes,
                call_seconds=CALL_SECONDS,
                deadline=over,
                store_again=park,
            ):
                yield self._keep(state.round, done)
        finally:
            self.retries += self._pool.retries - before
            self._downloads = {}

    def _prepare(self, round: int, server: Stored, directory: Directory) -> None:
        """Let the server select what it will send in the next round while this one is recorded and scored."""
        if round <= self._federation.config.rounds:
            actor, cohort = self._keeper.actor, self._federation.cohort(round)
            self._ahead = actor, server, cohort, actor.downloads.remote(cohort, server, directory)

    def _prepared(self, state: RunState, cohort: Sequence[int]) -> Any | None:
        """Take what the present server actor prepared, once, if it is for these clients and from this state."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        actor, server, known, parts = ahead
        return parts if actor is self._keeper.actor and server == state.server and set(cohort) <= set(known) else None

    def _step(self, state: RunState, client_id: int) -> Step:
        own = state.clients.get(client_id)
        memory = None if own is None else self._memories.find(client_id, own)
        if memory is not None and self.faults.take("lose-state", state.round, client_id):
            memory = replace(memory, parcel=Parcel(self._lost.ref, 0))
        faults = self.faults.for_step(state.round, client_id)
        return Step(client_id, self._downloads[client_id], memory, faults)

    def _keep(self, round: int, done: Done | Failed) -> ClientReport | Failed:
        """Take note of what a client left in the object store."""
        if isinstance(done, Failed):
            return done
        if isinstance(done.value, ClientError):
            return Failed(done.key, str(done.value), done.value)
        report: ClientReport = done.value
        upload, *states = done.refs
        self._uploads[done.key] = Parcel(upload, done.place)
        if self.faults.take("lose-upload", round, done.key):
            self._uploads[done.key] = Parcel(self._lost.ref, 0)
        self._memories.keep(done.key, report.state, Parcel(states[done.place], 0) if states else None)
        self._seconds[done.key] = report.seconds
        self._sent[done.key] = total(report.ledger, "up")
        return report

    def _dropped(self, round: int, failed: Failed) -> Dropped:
        """Give the reason for going on without a client, or stop the run.

        Raises:
            ClientError: Its step failed, and that is not to be lived with.
        """
        if failed.late:
            return late(self._engine, failed.key)
        error = self._failure(round, failed)
        if self._engine.on_failure == "stop" or not isinstance(error, ClientError):
            raise error
        return Dropped(failed.key, str(error), quarantined=failed.deadly)

    def _failure(self, round: int, failed: Failed) -> BaseException:
        return failed.cause or client_error(self._federation.config, round, failed.key, failed.reason)

    def _jobs(self, round: int, cohort: Sequence[int]) -> list[Job]:
        jobs = expect(cohort, self._sizes, self._seconds, self._sent)
        # A step that something goes wrong in has its call for itself, so that no other suffers from it.
        return [replace(job, seconds=None) if self.faults.strikes(round, job.key) else job for job in jobs]

    def update_server(self, state: RunState, cohort: Sequence[int], directory: Directory) -> ServerReport:
        """Aggregate the uploads of the clients that were just trained."""
        directory = directory.resolve()
        self._release_gpus()
        again: dict[int, ClientReport | Dropped] = {}
        losses = Counter[int]()
        while True:
            try:
                report: ServerReport = self._keeper.ask(
                    lambda server: self._health.get(
                        server.update.remote(
                            state.round, state.server, self._uploads, directory, self.faults.for_server(state.round)
                        )
                    )
                )
                break
            except UploadLostError as error:
                lost = error.client_id
            losses[lost] += 1
            if losses[lost] >= self._engine.attempts:
                raise ClusterError(
                    f"the upload of client {lost} was lost {losses[lost]} times: see `ray status`, then resume the run"
                )
            again[lost] = self._train_again(state, lost, directory)
        self._uploads = {}
        self._prepare(state.round + 1, report.state, directory)
        reports = tuple(one for one in again.values() if isinstance(one, ClientReport))
        return replace(report, again=reports, dropped=tuple(one for one in again.values() if isinstance(one, Dropped)))

    def _train_again(self, state: RunState, client_id: int, directory: Directory) -> ClientReport | Dropped:
        """Make an upload anew, or go on without it.

        Raises:
            ClientError: The step failed, and that is not to be lived with, or nobody is left.
        """
        self.retries += 1
        (result,) = self._train(state, [client_id], directory)
        if not isinstance(result, Failed):
            return result
        del self._uploads[client_id]
        if not self._uploads:
            raise self._failure(state.round, result)
        return self._dropped(state.round, result)

    def _release_gpus(self) -> None:
        """Let the client actors give back the GPU memory that torch keeps for them, before the server works there."""
        asked = [actor.release.remote() for actor in self._pool.idle] if self.placement.gpus else []
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=RELEASE_TIMEOUT)

    def evaluate(self, state: RunState, directory: Directory, final: bool) -> tuple[Evaluation, ...]:
        """Score every encoder that the method shows, several at a time."""
        memories = {client_id: self._memories.find(client_id, own) for client_id, own in state.clients.items()}
        encoders: dict[str, Any] = {}

        def show() -> None:
            encoders.update(
                self._keeper.ask(
                    lambda server: self._collect(server.encoders.remote(state.server, memories, directory.resolve()))
                )
            )

        def submit(actor: Any, jobs: Sequence[Job]) -> Sequence[ObjectRef[Any]]:
            (job,) = jobs
            return [actor.evaluate.remote(encoders[job.key], job.key, state.round, final)]

        show()
        scores = {}
        for done in self._pool.run([Job(name) for name in encoders], submit, store_again=show):
            if isinstance(done, Failed):
                if done.cause is not None:
                    raise done.cause
                raise ActorError(f"scoring encoder {done.key} after round {state.round} failed: {done.reason}")
            scores[done.key] = done.value
        return tuple(scores[name] for name in encoders)

    def _collect(self, parts: Iterable[ObjectRef[Any]]) -> Tree:
        """Join what `park` took apart: refs to the parts, and at last the plan."""
        *refs, plan = self._health.collect(parts)
        return fill(self._health.get(plan), refs)

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        self._closing.close()
