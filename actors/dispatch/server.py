"""The server actor, which is created again when it dies in a call."""

from collections.abc import Callable
from typing import Any, TypeVar

from ray.exceptions import ObjectLostError, RayTaskError

from actors.dispatch.starts import kill_actor
from actors.errors import ACTOR_DEATHS, STORE_FULL, ActorError, death_reason, store_full_error

Answer = TypeVar("Answer")


class RestartedServer:
    """The server actor, which is created again whenever it dies in a call; `check` raises `ClusterError` if Ray is dead."""

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
