"""How faults strike on Ray: actors and Ray's own processes that die by SIGKILL, objects that are lost in earnest."""

import os
import signal
import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray import ObjectRef
from ray.exceptions import GetTimeoutError, ObjectLostError, ObjectStoreFullError

from rayfed_ssl.engine.faults import Fault, Faults
from rayfed_ssl.errors import ConfigError

if TYPE_CHECKING:
    from actors.cluster.health import Health  # a client actor has no use for it

LOSS_TIMEOUT = 60.0
"""Seconds until the death of an object's owner must be known."""


def strike_actor(faults: Sequence[Fault]) -> None:
    """Do to this actor what is due, when its work is done and nobody knows of it yet.

    Raises:
        ObjectStoreFullError: That is due.
    """
    for fault in faults:
        if fault.kind in ("kill-actor", "kill-server"):
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "full-store":
            raise ObjectStoreFullError(f"injected by --inject {fault}")


def strike_after_client(faults: Faults, round: int, health: "Health") -> None:
    """Do what is due to Ray or to this process once a client of a round is done.

    Raises:
        ConfigError: Ray shall die, and is not ours.
    """
    if faults.take("kill-ray", round):
        if "raylet" not in health.vital:
            raise ConfigError("--inject kill-ray strikes only a Ray that the run has started: leave --address out")
        health.vital["raylet"].kill()
    faults.strike_driver(round)


class LostObject:
    """An object whose owner is dead, as after the death of a machine."""

    @cached_property
    def ref(self) -> ObjectRef[Any]:
        """A ref to it; one serves for a whole run, as losing it takes a second.

        Raises:
            ClusterError: Ray does not notice that it is lost.
        """
        from actors.cluster.address import ClusterError  # a client actor has no use for it

        make: Any = ray.remote(num_cpus=0, max_restarts=0)(_Owner)
        owner = make.remote()
        ref: ObjectRef[Any] = ray.get(owner.put.remote())[0]
        ray.kill(owner)
        over = time.monotonic() + LOSS_TIMEOUT
        while not _is_lost(ref):
            if time.monotonic() > over:
                raise ClusterError(
                    f"Ray did not notice within {LOSS_TIMEOUT:g} s that an actor is dead: see `ray status`"
                )
            time.sleep(0.02)
        return ref


class _Owner:
    """Owns an object."""

    def put(self) -> list[ObjectRef[Any]]:
        """Store it."""
        return [ray.put(np.zeros(1))]


def _is_lost(ref: ObjectRef[Any]) -> bool:
    try:
        ray.get(ref, timeout=LOSS_TIMEOUT)
    except ObjectLostError:
        return True
    except GetTimeoutError:
        pass
    return False
