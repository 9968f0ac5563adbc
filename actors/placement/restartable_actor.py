"""An actor that is created again when it dies (the server actor), and waiting until new actors are ready."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from actors.cluster.health import CHECK_INTERVAL
from actors.errors import (
    ACTOR_DEATHS,
    STORE_FULL,
    ActorError,
    ClusterError,
    death_reason,
    failed_to_start,
    first_line,
    store_full_error,
)

READY_TIMEOUT = 120.0
"""Seconds that actors may take to be placed and start, and as many again for every 20 of them; importing torch takes
2 to 5 each. A run that has no actor any more ends after this time."""

OPEN_TIMEOUT = 6 * 3600.0
"""Seconds that an actor may take to open its data, which the first one on a machine decodes."""

Answer = TypeVar("Answer")


class RestartableActor:
    """One actor, which is created again whenever it dies in a call; `check` raises `ClusterError` if Ray is dead."""

    def __init__(self, create: Callable[[], Any], attempts: int, check: Callable[[], None]) -> None:
        self._create, self._attempts, self._check = create, attempts, check
        self.actor = create()

    def call(self, function: Callable[[Any], Answer]) -> Answer:
        """Apply a function to the actor, and again to a new one if it dies; after all attempts, raise `ActorError`."""
        reason, full = "", None
        for _ in range(self._attempts):
            try:
                return function(self.actor)
            except STORE_FULL as error:
                full = store_full_error(error)
            except RayTaskError as error:
                raise error.cause from error
            except (*ACTOR_DEATHS, ObjectLostError) as error:
                self._check()
                reason, full = death_reason(error), None
                self.actor = self._create()
        raise full or ActorError(
            f"the server actor died in {self._attempts} of {self._attempts} attempts ({reason}): check memory, "
            "then resume the run"
        )

    def close(self) -> None:
        """Kill the actor."""
        kill_actor(self.actor)


def kill_actor(actor: Any) -> None:
    """Kill an actor; it may be dead already, or its Ray shut down."""
    with suppress(RayError):
        if ray.is_initialized():
            ray.kill(actor)


def wait_until_ready(actors: Sequence[Any], check: Callable[[], None] = lambda: None) -> list[Any]:
    """Wait until new actors are placed and have opened their data, and return the results of their `ready`."""
    placed = [actor.__ray_ready__.remote() for actor in actors]
    opened = [actor.ready.remote() for actor in actors]
    limit = READY_TIMEOUT * (1 + len(actors) / 20)
    message = f"{len(actors)} actors were not ready within {limit:g} s: see `ray status`, or lower engine.actors"
    _wait_for_all(placed, limit, message, check)
    message = f"actors had not opened their data after {OPEN_TIMEOUT:g} s: check their disk"
    _wait_for_all(opened, OPEN_TIMEOUT, message, check)
    return list(ray.get(opened))


def _wait_for_all(answers: list[ObjectRef[Any]], limit: float, message: str, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + limit
    while answers:
        ended, answers = ray.wait(answers, num_returns=1, timeout=min(CHECK_INTERVAL, limit))
        try:
            ray.get(ended)
        except RayTaskError as error:
            raise ClusterError(
                f"an actor cannot open the run ({first_line(error.cause)}): every machine needs the same package and data"
            ) from error
        except ACTOR_DEATHS as error:
            check()  # it dies with Ray as well
            advice = "every machine needs the same package" if failed_to_start(error) else "check memory"
            raise ClusterError(f"an actor died while it started ({death_reason(error)}): {advice}") from None
        if not ended:
            check()
            if time.monotonic() > deadline:
                raise ClusterError(message)
