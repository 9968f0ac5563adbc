"""The executor on Ray: client actors, a server actor, and a driver that holds refs and never a state or an upload."""

import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray
from ray import ObjectRef

from actors.client_actor import ClientActor, ClientStep
from actors.cluster.connect import start
from actors.dispatch.calls import Completed, Failed
from actors.dispatch.pool import ActorPool
from actors.dispatch.queue import WorkItem, assign_clients, client_items
from actors.dispatch.server import RestartedServer
from actors.dispatch.starts import wait_for_all, wait_until_ready
from actors.errors import ActorError, ClusterError, UploadLostError
from actors.federation_actor import hardware_warning, local_versions
from actors.injection import Kill, due_kills
from actors.object_store import UPLOAD_CACHE_SHARE, ItemRef, insert_refs
from actors.placement import plan
from actors.server_actor import ServerActor
from rayfed_ssl.engine.arithmetic import Arithmetic
from rayfed_ssl.engine.client_scores import encoders_of_client
from rayfed_ssl.engine.contributions import server_of, starts_of
from rayfed_ssl.engine.federation import Federation, client_error
from rayfed_ssl.engine.ledger import total
from rayfed_ssl.engine.local_executor import late
from rayfed_ssl.engine.round_loop import ClientError, ClientReport, Dropped, Evaluation, Listener, ServerReport
from rayfed_ssl.engine.upload_store import UPLOAD_BYTES
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Metrics
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import RunState, Stored
from rayfed_ssl.trees import Tree

CALL_SECONDS = 0.5
"""Shorter steps share a call up to this sum: little is lost when an actor dies in it."""

RELEASE_TIMEOUT = 10.0
"""Seconds that client actors have to free GPU memory; a dead one does not delay the round."""

NO_RESTARTS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0}
"""Ray repeats calls out of order and on actors without state, so the driver repeats them."""


class RayExecutor:
    """Runs steps in actors; the number of actors, their order and their deaths change no bit of any result.

    Each actor opens its own federation from the same configuration. Arguments are those of `actors.run` and `connect.start`.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        address: str | None = None,
        kills: Iterable[Kill] = (),
        on_ray_death: Callable[[str], None] | None = None,
    ) -> None:
        self.retries = 0
        self._federation, self._engine = federation, federation.config.engine
        self.kills = due_kills(kills, federation)
        self._uploads: dict[int, ItemRef] = {}
        self._ahead: dict[tuple[int, int], tuple[ClientReport, ItemRef]] = {}
        self._failed = set[int]()
        self._downloads: dict[int, Any] = {}
        self._seconds: dict[int, float] = {}
        self._sent: dict[int, int] = {}
        self._sizes = {client_id: len(rows) for client_id, rows in federation.shards.items()}
        self._exit_stack = ExitStack()
        self._mps, num_workers = plan.check_fits(federation, address)
        own_mps = "off" if self._mps == "joined" else self._mps
        self._cluster = start(address, num_workers=num_workers, on_ray_death=on_ray_death, mps=own_mps)
        self._exit_stack.callback(self._cluster.stop)
        try:
            self._health = self._cluster.health
            self._create_actors()
        except BaseException:
            self.close()
            raise

    def _create_actors(self) -> None:
        nodes = self._cluster.nodes()
        self.placement = plan.plan(self._federation, nodes, mps=self._mps != "off")
        arguments = plan.actor_config(self._federation, self.placement), local_versions(), os.getcwd()
        attempts, check = self._engine.attempts, self._health.check
        cache_bytes = min(UPLOAD_BYTES, int(UPLOAD_CACHE_SHARE * min(node.store for node in nodes)))

        def create_server() -> Any:
            strategy = plan.server_strategy(self._cluster.nodes())  # the machine of the last one may be dead
            server = ray.remote(num_cpus=0, scheduling_strategy=strategy, **NO_RESTARTS)(ServerActor)
            return server.remote(*arguments, cache_bytes)

        self._server = RestartedServer(create_server, attempts, check)
        self._exit_stack.callback(self._server.close)
        client = ray.remote(**plan.actor_options(self.placement), **NO_RESTARTS)(ClientActor)
        self._pool = ActorPool(lambda: client.remote(*arguments), self.placement.num_actors, attempts, check)
        self._exit_stack.callback(self._pool.close)
        self._assigned = assign_clients(self._sizes, self.placement.num_actors)
        self._arithmetic = self._take_arithmetic([self._server.actor, *self._pool.actors.values()])

    def _take_arithmetic(self, actors: Sequence[Any]) -> Arithmetic:
        """Ask one actor of each kind of hardware how it computes, and warn of other bits; gives that of the last actor."""
        check = self._health.check
        descriptions = wait_until_ready(actors, check)
        asked = dict(zip(descriptions, actors, strict=True))
        answers = wait_for_all([actor.arithmetic.remote() for actor in asked.values()], math.inf, check)
        by_hardware: dict[str, Arithmetic] = dict(zip(asked, answers, strict=True))
        fingerprints = {name: arithmetic.fingerprint for name, arithmetic in by_hardware.items()}
        if warning := hardware_warning(descriptions, fingerprints):
            warnings.warn(warning, RuntimeWarning, stacklevel=3)
        return by_hardware[descriptions[-1]]

    def arithmetic(self) -> Arithmetic:
        """Say how a client actor computes: the driver may have no GPU."""
        return self._arithmetic

    def init_server(self, directory: Directory) -> Stored:
        """Make and store the server's state before round 1."""
        stored: Stored = self._server.call(lambda server: self._health.get(server.init.remote(directory.resolve())))
        return stored

    def train_clients(
        self, state: RunState, cohort: Sequence[int], directory: Directory, listener: Listener
    ) -> tuple[ClientReport, ...]:
        """Run one round's client steps; uploads and states stay where they were made.

        With a clock, each actor may also run a step of a later round that starts from a state which is there. Its result is
        kept for that round; one that failed runs again there.
        """
        done = {client: self._ahead[state.round, client] for client in cohort if (state.round, client) in self._ahead}
        self._ahead = {key: kept for key, kept in self._ahead.items() if key[0] > state.round}
        self._uploads = {client: upload for client, (_, upload) in done.items()}
        reports = [report for report, _ in done.values()]
        for report in reports:
            listener.on_client(report)
        rounds = {client: state.round for client in cohort if client not in done}
        if rounds:
            rounds = {**self._rounds_ahead(state.round, listener.quarantined), **rounds}
        results = self._train(state, rounds, directory.resolve(), timeout=self._engine.deadline) if rounds else ()
        for result in results:
            self._health.check_regularly()
            if isinstance(result, Failed):
                self._failed.add(result.key)
                if rounds[result.key] == state.round:
                    listener.on_dropped(self._drop(state.round, result))
            elif (round := rounds[result.client]) == state.round:
                reports.append(result)
                listener.on_client(result)
            else:
                self._ahead[round, result.client] = result, self._uploads.pop(result.client)
        return tuple(sorted(reports, key=lambda report: report.client))

    def _rounds_ahead(self, round: int, quarantined: Collection[int]) -> dict[int, int]:
        """Choose later rounds' steps, one for each actor, as all that is not committed is lost when the run ends."""
        schedule = self._federation.schedule
        if schedule is None or self._engine.deadline is not None or self.placement.num_actors == 1:
            return {}
        left_out = {*self._failed, *quarantined, *(client for _, client in self._ahead)}
        ahead = [(client, later) for client, later in schedule.ahead_of(round).items() if client not in left_out]
        return dict(ahead[: self.placement.num_actors])

    def _train(
        self, state: RunState, rounds: Mapping[int, int], directory: Directory, timeout: float | None = None
    ) -> Iterator[ClientReport | Failed]:
        """Run steps of clients, each of a round of its own, and yield what becomes of each."""

        def select_downloads() -> None:
            self._downloads = self._server.call(
                lambda server: self._collect(server.downloads.remote(servers, directory))
            )

        def submit(actor: Any, items: Sequence[WorkItem]) -> Sequence[ObjectRef[Any]]:
            steps = [self._step(state, rounds[item.key], item.key) for item in items]
            refs: Sequence[ObjectRef[Any]] = actor.update_clients.options(num_returns=2).remote(steps, directory)
            return refs

        servers = {client: server_of(self._federation, state, round, client) for client, round in rounds.items()}
        deadline = None if timeout is None else time.monotonic() + timeout
        select_downloads()
        before = self._pool.retries
        try:
            for result in self._pool.run(
                self._items(state.round, rounds),
                submit,
                assigned=self._assigned,
                call_seconds=CALL_SECONDS,
                deadline=deadline,
                restore_inputs=select_downloads,
            ):
                yield self._record(rounds[result.key], result)
        finally:
            self.retries += self._pool.retries - before
            self._downloads = {}

    def _step(self, state: RunState, round: int, client_id: int) -> ClientStep:
        download, client_state = self._downloads[client_id], state.clients.get(client_id)
        epochs, is_killed = self._federation.scheduled_epochs(round, client_id), self.kills[round, client_id] > 0
        self.kills[round, client_id] -= is_killed
        return ClientStep(round, client_id, download, client_state, epochs, is_killed)

    def _record(self, round: int, result: Completed | Failed) -> ClientReport | Failed:
        """Keep the ref to the upload, which stays in the object store."""
        if isinstance(result, Failed):
            return result
        if isinstance(result.value, ClientError):
            return Failed(result.key, str(result.value), result.value)
        report: ClientReport = result.value
        self._uploads[result.key] = ItemRef(result.refs[0], result.index)
        self._seconds[result.key] = report.seconds
        self._sent[result.key] = total(report.ledger, "up")
        return report

    def _drop(self, round: int, failed: Failed) -> Dropped:
        """Give the reason for dropping a client from the round, or stop the run if the configuration says so."""
        if failed.is_late:
            return late(self._engine, failed.key)
        error = self._error(round, failed)
        if self._engine.on_failure == "stop" or not isinstance(error, ClientError):
            raise error
        return Dropped(failed.key, str(error), quarantined=failed.killed_actors)

    def _error(self, round: int, failed: Failed) -> BaseException:
        return failed.cause or client_error(self._federation.config, round, failed.key, failed.reason)

    def _items(self, round: int, rounds: Mapping[int, int]) -> list[WorkItem]:
        items = client_items(rounds, self._sizes, self._seconds, self._sent)
        # A later round's step, or one whose actor is killed, shares no call with others, which would fail with it.
        apart = {client for client, later in rounds.items() if later != round or self.kills[later, client]}
        return [replace(item, seconds=None) if item.key in apart else item for item in items]

    def update_server(self, state: RunState, cohort: Sequence[int], directory: Directory) -> ServerReport:
        """Aggregate the uploads of the clients that were just trained."""
        directory = directory.resolve()
        self._release_gpus()
        again: dict[int, ClientReport | Dropped] = {}
        losses = Counter[int]()
        while True:
            try:
                report: ServerReport = self._server.call(lambda server: self._update(server, state, directory))
                break
            except UploadLostError as error:
                client_id = error.client_id
            losses[client_id] += 1
            if losses[client_id] >= self._engine.attempts:
                raise ClusterError(
                    f"the upload of client {client_id} was lost {losses[client_id]} times: see `ray status`, "
                    "then resume the run"
                )
            again[client_id] = self._train_again(state, client_id, directory)
        self._uploads = {}
        reports = tuple(result for result in again.values() if isinstance(result, ClientReport))
        dropped = tuple(result for result in again.values() if isinstance(result, Dropped))
        return replace(report, again=reports, dropped=dropped)

    def _update(self, server: Any, state: RunState, directory: Directory) -> Any:
        starts = starts_of(self._federation, state, sorted(self._uploads))
        return self._health.get(server.update.remote(state.round, state.server, self._uploads, directory, starts))

    def _train_again(self, state: RunState, client_id: int, directory: Directory) -> ClientReport | Dropped:
        """Compute a lost upload again, or drop its client as `_drop` does, unless no other is left."""
        self.retries += 1
        (result,) = self._train(state, {client_id: state.round}, directory)
        if not isinstance(result, Failed):
            return result
        del self._uploads[client_id]
        if not self._uploads:
            raise self._error(state.round, result)
        return self._drop(state.round, result)

    def _release_gpus(self) -> None:
        """Let idle client actors free the GPU memory that torch caches, before the server computes."""
        if self.placement.gpus and (released := [actor.release.remote() for actor in self._pool.idle]):
            ray.wait(released, num_returns=len(released), timeout=RELEASE_TIMEOUT)

    def evaluate(self, state: RunState, directory: Directory, final: bool) -> tuple[Evaluation, ...]:
        """Score every encoder that the method gives, several at a time."""

        def submit(actor: Any, encoders: Mapping[str, Any], name: str) -> ObjectRef[Any]:
            ref: ObjectRef[Any] = actor.evaluate.remote(encoders[name], name, state.round, final)
            return ref

        return self._score(state, directory, None, submit)

    def score_clients(self, state: RunState, directory: Directory) -> tuple[Evaluation, ...]:
        """Score clients on their test parts, several at a time."""

        def submit(actor: Any, encoders: Mapping[str, Any], client_id: int) -> ObjectRef[Any]:
            seen, stored = encoders_of_client(encoders, client_id), state.clients.get(client_id)
            ref: ObjectRef[Any] = actor.score_client.remote(state.round, client_id, seen, stored, directory.resolve())
            return ref

        scored = self._federation.scored_clients
        return self._score(state, directory, scored, submit) if scored else ()

    def _score(
        self,
        state: RunState,
        directory: Directory,
        keys: Sequence[Any] | None,
        submit: Callable[[Any, Mapping[str, Any], Any], ObjectRef[Any]],
    ) -> tuple[Evaluation, ...]:
        """Have actors score by the encoders of a round, once for each key; None is for each encoder by its name."""
        encoders: dict[str, Any] = {}

        def read_encoders(server: Any) -> Tree:
            return self._collect(server.encoders.remote(state.server, state.clients, directory.resolve()))

        def select_encoders() -> None:
            encoders.update(self._server.call(read_encoders))

        def submit_first(actor: Any, items: Sequence[WorkItem]) -> Sequence[ObjectRef[Any]]:
            return [submit(actor, encoders, items[0].key)]

        select_encoders()
        items = [WorkItem(key) for key in (encoders if keys is None else keys)]
        evaluations = {}
        for result in self._pool.run(items, submit_first, restore_inputs=select_encoders):
            if isinstance(result, Failed):
                what = f"encoder {result.key}" if keys is None else f"client {result.key}"
                message = f"scoring {what} after round {state.round} failed: {result.reason}"
                raise result.cause or ActorError(message)
            evaluations[result.key] = result.value
        return tuple(evaluations[item.key] for item in items)

    def score_start(self, architecture: str) -> Metrics:
        """Score what an architecture starts from, in a client actor."""
        (result,) = self._pool.run([WorkItem(architecture)], lambda actor, _: [actor.score_start.remote(architecture)])
        if isinstance(result, Failed):
            raise result.cause or ConfigError(result.reason)
        return dict(result.value)

    def _collect(self, generator: Iterable[ObjectRef[Any]]) -> Tree:
        """Put the refs of a generator's parts into the packed messages that it yields at last."""
        *refs, packed = self._health.collect(generator)
        return insert_refs(self._health.get(packed), refs)

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        self._exit_stack.close()
