"""Starting and killing actors: waiting until new ones are placed and have opened their data."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError

from actors.cluster.health import CHECK_INTERVAL
from actors.errors import ACTOR_DEATHS, ClusterError, death_reason, failed_to_start, first_line

READY_TIMEOUT = 120.0
"""Seconds that actors may take to be placed and start, and as many again for every 20 of them; importing torch takes
2 to 5 each. A run that has no actor any more ends after this time."""


def kill_actor(actor: Any) -> None:
    """Kill an actor; it may be dead already, or its Ray shut down."""
    with suppress(RayError):
        if ray.is_initialized():
            ray.kill(actor)


def wait_until_ready(actors: Sequence[Any], check: Callable[[], None] = lambda: None) -> list[Any]:
    """Wait until new actors are placed, and until they have opened their data, and return the results of their `ready`.

    The first actor on a machine decodes the data, which may take hours.
    """
    placed = [actor.__ray_ready__.remote() for actor in actors]
    opened = [actor.ready.remote() for actor in actors]
    wait_for_all(placed, READY_TIMEOUT * (1 + len(actors) / 20), check)
    return wait_for_all(opened, math.inf, check)


def wait_for_all(answers: Sequence[ObjectRef[Any]], limit: float, check: Callable[[], None]) -> list[Any]:
    """Wait for what new actors answer, at most `limit` seconds."""
    left, deadline = list(answers), time.monotonic() + limit
    while left:
        ended, left = ray.wait(left, num_returns=1, timeout=min(CHECK_INTERVAL, limit))
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
                raise ClusterError(
                    f"{len(answers)} actors were not ready within {limit:g} s: see `ray status`, as others may hold CPUs or "
                    "memory, or lower engine.actors"
                )
    return list(ray.get(list(answers)))
