"""Actors that die: how it is noticed, told, and made good."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from actors.cluster.connect import ClusterError, first_line
from actors.cluster.health import LOOK_EVERY
from actors.placement.allocation import Placement

READY_TIMEOUT = 120.0
"""Seconds that actors may take to be placed and to begin, and as many again for every 20 of them; importing torch takes
2 to 5 each. A run that has no actor any more ends after so many."""

OPEN_TIMEOUT = 6 * 3600.0
"""Seconds that an actor may take to open its data, which the first one on a machine decodes; a start that is given up
in the middle would begin from nothing the next time."""

ROOM_TIMEOUT = 10.0
"""Seconds to wait for room that others, such as a run that is just ending, may free."""

DEATHS = (RayActorError, ActorUnschedulableError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""What Ray raises when an actor is gone."""

FULL = (ObjectStoreFullError, OutOfDiskError)
"""What Ray raises when the object store has no room and nowhere to spill to."""

Answer = TypeVar("Answer")


class ActorError(RuntimeError):
    """An actor died in every attempt; the run can be resumed from its last committed round."""


class Keeper:
    """One actor, made anew whenever it dies.

    Args:
        make: Makes the actor; it must be able to answer any question at once.
        attempts: How often a question is asked.
        check: Raises `ClusterError` if Ray is dead, so that nobody waits for it.
    """

    def __init__(self, make: Callable[[], Any], attempts: int, check: Callable[[], None]) -> None:
        self._make, self._attempts, self._check = make, attempts, check
        self.actor = make()

    def ask(self, question: Callable[[Any], Answer]) -> Answer:
        """Call the actor, with a new one if it dies.

        Raises:
            ActorError: It died in every attempt.
            ClusterError: Ray is dead, or its object store was full in every attempt.
            Exception: What the actor's method raised.
        """
        reason, full = "", None
        for _ in range(self._attempts):
            try:
                return question(self.actor)
            except FULL as error:
                full = store_is_full(error)
            except RayTaskError as error:
                raise error.cause from error
            except (*DEATHS, ObjectLostError) as error:
                self._check()
                reason, full = why_dead(error), None
                self.actor = self._make()
        raise full or ActorError(
            f"the server actor died in {self._attempts} of {self._attempts} attempts ({reason}): see that memory suffices, "
            "then resume the run"
        )

    def close(self) -> None:
        """End the actor, whatever it is doing."""
        end_actor(self.actor)


def end_actor(actor: Any) -> None:
    """End an actor, whatever it is doing; one that is gone already, or whose Ray is, is fine."""
    with suppress(RayError):
        if ray.is_initialized():
            ray.kill(actor)


def await_room(placement: Placement) -> None:
    """Wait a little until Ray has room for the client actors, which it would wait for in silence.

    Raises:
        ClusterError: Something else holds it.
    """
    each = {"CPU": placement.cpus, "GPU": placement.gpus, "memory": placement.memory}
    needs = {name: placement.num_actors * amount for name, amount in each.items()}
    deadline = time.monotonic() + ROOM_TIMEOUT
    while True:
        resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        free = {name: resources.get(name, 0.0) for name in needs}
        if all(free[name] + 1e-6 >= needs[name] for name in needs):
            return
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{placement.num_actors} client actors need {_lacking(needs, free)} on this Ray: wait for what "
                "runs there, or lower engine.actors"
            )
        time.sleep(0.1)


def _lacking(needs: Mapping[str, float], free: Mapping[str, float]) -> str:
    if free["memory"] + 1e-6 < needs["memory"]:
        return f"{needs['memory'] / 1e9:.1f} GB of memory, but only {free['memory'] / 1e9:.1f} GB are free"
    return f"{needs['CPU']:g} CPUs and {needs['GPU']:g} GPUs, but only {free['CPU']:g} and {free['GPU']:g} are free"


def await_ready(actors: Sequence[Any], check: Callable[[], None] = lambda: None) -> list[Any]:
    """Wait until actors are placed and have opened their data.

    Args:
        actors: Just made.
        check: Raises `ClusterError` if Ray is dead, so that nobody waits for it.

    Returns:
        What each says of itself.

    Raises:
        ClusterError: One of them is not, or cannot.
    """
    placed = [actor.__ray_ready__.remote() for actor in actors]
    opened = [actor.ready.remote() for actor in actors]
    limit = READY_TIMEOUT * (1 + len(actors) / 20)
    late = f"{len(actors)} actors were not all there within {limit:g} s: see `ray status`, or lower engine.actors"
    _await_all(placed, limit, late, check)
    _await_all(
        opened, OPEN_TIMEOUT, f"actors had not opened their data after {OPEN_TIMEOUT:g} s: see their disk", check
    )
    told: list[Any] = ray.get(opened)
    return told


def _await_all(answers: list[ObjectRef[Any]], limit: float, late: str, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + limit
    while answers:
        ended, answers = ray.wait(answers, num_returns=1, timeout=min(LOOK_EVERY, limit))
        try:
            ray.get(ended)
        except RayTaskError as error:
            raise ClusterError(
                f"an actor cannot open the run ({first_line(error.cause)}): every machine needs the same package and data"
            ) from error
        except DEATHS as error:
            raise ClusterError(
                f"an actor died while it started ({why_dead(error)}): see that memory suffices"
            ) from None
        if not ended:
            check()
            if time.monotonic() > deadline:
                raise ClusterError(late)


def store_is_full(error: BaseException) -> ClusterError:
    """Say that the object store is full, and what to do."""
    error = getattr(error, "cause", None) or error  # Ray puts the actor's name first, and a trace
    return ClusterError(
        f"Ray's object store is full, and so is the disk that it spills to ({first_line(error)}): free disk space where Ray "
        "keeps its files (TMPDIR) or memory, or lower engine.actors, then resume the run"
    )


def is_of_machine(error: BaseException) -> bool:
    """Whether an actor is gone because its machine is, or is out of reach: no fault of what it was doing."""
    if isinstance(error, (NodeDiedError, ActorUnschedulableError, ActorUnavailableError)):
        return True
    return isinstance(error, RayActorError) and (error.preempted or "because its node" in str(error))


def why_dead(error: BaseException) -> str:
    """Find the reason in the many lines that Ray writes."""
    text = str(error)
    found = re.search(r"exit detail: (.+?)\. Some common", text, re.DOTALL) or re.search(r"because (.+)", text)
    return found[1].strip(" .") if found else first_line(error)
