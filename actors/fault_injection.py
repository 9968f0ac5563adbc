"""Fault injection on Ray: actors and Ray's own processes are killed by SIGKILL, objects are really lost."""

import os
import signal
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import ray
from ray import ObjectRef
from ray.exceptions import GetTimeoutError, ObjectLostError, ObjectStoreFullError

from actors.cluster.health import Health
from actors.errors import ClusterError
from rayfed_ssl.engine.fault_schedule import Fault, Faults
from rayfed_ssl.errors import ConfigError

LOSS_TIMEOUT = 60.0
"""Seconds until the death of an object's owner must be known."""


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
        deadline = time.monotonic() + LOSS_TIMEOUT
        while time.monotonic() < deadline:
            try:
                ray.get(ref, timeout=LOSS_TIMEOUT)
            except ObjectLostError:
                return ref
            except GetTimeoutError:
                break
            time.sleep(0.02)
        raise ClusterError(f"Ray did not notice within {LOSS_TIMEOUT:g} s that an actor is dead: see `ray status`")


class _Owner:
    """Owns an object."""

    def put(self) -> list[ObjectRef[Any]]:
        """Store it."""
        return [ray.put(np.zeros(1))]
