"""Fault injection on Ray: actors and Ray's own processes are killed by SIGKILL, objects are really lost."""

import copy
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError, ObjectStoreFullError

from actors.client_actor import ClientActor, ClientStep
from actors.cluster.health import Health
from actors.dispatch.calls import Completed, Failed
from actors.dispatch.queue import WorkItem
from actors.executor import RayExecutor
from actors.object_store import ItemRef
from actors.server_actor import ServerActor
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import ClientReport, Listener, ServerReport
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.faults.injection import FaultySteps
from rayfed_ssl.faults.schedule import FAULT_KINDS, Fault, Faults, RandomFaults
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import RunState


class FaultyRayExecutor(RayExecutor):
    """A `RayExecutor` that injects faults; actors get them with the calls in which they are due."""

    def __init__(self, federation: Federation, *, faults: Iterable[Fault | RandomFaults] = (), **options: Any) -> None:
        self.faults = Faults(faults, federation.config.rounds, federation.cohort, FAULT_KINDS)
        self._lost = LostObject()
        super().__init__(federation, **options)

    def train_clients(
        self, state: RunState, cohort: Sequence[int], directory: Directory, listener: Listener
    ) -> tuple[ClientReport, ...]:
        """Run one round's client steps."""
        self.faults.listener = listener
        return super().train_clients(state, cohort, directory, listener)

    def _deliver(self, round: int, report: ClientReport, listener: Listener) -> None:
        super()._deliver(round, report, listener)
        fail_driver(self.faults, round, self._health)

    def _rounds_ahead(self, round: int, quarantined: Collection[int]) -> dict[int, int]:
        # A fault happens in its own round.
        ahead = super()._rounds_ahead(round, quarantined)
        return {client: later for client, later in ahead.items() if not self.faults.affects(later, client)}

    def _items(self, round: int, rounds: Mapping[int, int]) -> list[WorkItem]:
        # A step with a fault has a call of its own, so that it disturbs no other.
        items, affects = super()._items(round, rounds), self.faults.affects
        return [replace(item, seconds=None) if affects(rounds[item.key], item.key) else item for item in items]

    def _submit(self, actor: Any, steps: Sequence[ClientStep], directory: Directory) -> Sequence[ObjectRef[Any]]:
        faults = [fault for step in steps for fault in self.faults.for_step(step.round, step.client)]
        if not faults:
            return super()._submit(actor, steps, directory)
        call = actor.__ray_call__.options(num_returns=2)
        refs: Sequence[ObjectRef[Any]] = call.remote(update_clients, faults, steps, directory)
        return refs

    def _record(self, round: int, result: Completed | Failed) -> ClientReport | Failed:
        report = super()._record(round, result)
        if isinstance(report, ClientReport) and self.faults.take("lose-upload", round, result.key):
            self._uploads[result.key] = ItemRef(self._lost.ref, 0)
        return report

    def _update(self, server: Any, state: RunState, directory: Directory) -> Any:
        faults = self.faults.for_server(state.round)
        if not faults:
            return super()._update(server, state, directory)
        arguments = self._server_arguments(state, directory)
        return self._health.get(server.__ray_call__.remote(update_server, faults, *arguments))

    def update_server(self, state: RunState, cohort: Sequence[int], directory: Directory) -> ServerReport:
        """Aggregate the uploads of the clients that were just trained."""
        report = super().update_server(state, cohort, directory)
        self.faults.warn_of_missed(state.round)
        return report


def update_clients(actor: ClientActor, faults: Sequence[Fault], *arguments: Any) -> list[Any]:
    """Run clients' steps with faults, in their actor."""
    result: list[Any] = _with_faults(actor, faults).update_clients(*arguments)
    fail_actor(faults)
    return result


def update_server(actor: ServerActor, faults: Sequence[Fault], *arguments: Any) -> ServerReport:
    """Run the server's step with faults, in its actor."""
    report: ServerReport = _with_faults(actor, faults).update(*arguments)
    fail_actor(faults)
    return report


def _with_faults(actor: Any, faults: Sequence[Fault]) -> Any:
    """Copy an actor's object; the copy's steps have the faults."""
    faulty = copy.copy(actor)
    faulty.steps = FaultySteps(actor.steps.federation, faults)
    return faulty


def fail_actor(faults: Sequence[Fault]) -> None:
    """Inject what is due into this actor, after its work is done and before its result is returned."""
    for fault in faults:
        if fault.kind in ("kill-actor", "kill-server"):
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "full-store":
            raise ObjectStoreFullError(f"injected by --inject {fault}")


def fail_driver(faults: Faults, round: int, health: Health) -> None:
    """Inject what is due into Ray or this process after a client of a round is done."""
    if faults.take("kill-ray", round):
        if "raylet" not in health.vital:
            raise ConfigError("--inject kill-ray works only on a Ray that the run has started: leave --address out")
        health.vital["raylet"].kill()
    faults.signal_driver(round)


class LostObject:
    """An object whose owner is dead, as after the death of a machine."""

    @cached_property
    def ref(self) -> ObjectRef[Any]:
        """A ref to it; a whole run uses one, as losing it takes a second."""
        create: Any = ray.remote(num_cpus=0, max_restarts=0)(_Owner)
        owner = create.remote()
        ref: ObjectRef[Any] = ray.get(owner.put.remote())[0]
        ray.kill(owner)
        while True:
            try:
                ray.get(ref)
            except ObjectLostError:
                return ref
            time.sleep(0.02)


class _Owner:
    """Owns an object."""

    def put(self) -> list[ObjectRef[Any]]:
        """Store it."""
        return [ray.put(np.zeros(1))]
