"""What fails on Ray, and how Ray's exceptions become one line."""

import re

from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    NodeDiedError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

ACTOR_DEATHS = (RayActorError, ActorUnschedulableError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""What Ray raises when an actor is dead or unreachable."""

STORE_FULL = (ObjectStoreFullError, OutOfDiskError)
"""What Ray raises when the object store is full and the disk that it spills to is full too."""

JOINED_LINES = 8
"""Messages of at most this many lines are joined into one; Ray describes a version mismatch in six."""


class ClusterError(ValueError):
    """Ray cannot run what is asked of it; the message says what is needed, what is available and what to do."""


class ActorError(RuntimeError):
    """An actor died in every attempt; the run can be resumed from its last committed round."""


class UploadLostError(RuntimeError):
    """An upload was lost with the machine that held it; its client must be trained again."""

    def __init__(self, client_id: int) -> None:
        super().__init__(client_id)
        self.client_id = client_id


def first_line(error: BaseException) -> str:
    """Shorten a message to its first non-empty line, with what follows if that line ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines) if lines[0].endswith(":") and len(lines) <= JOINED_LINES else lines[0]


def failed_to_start(error: BaseException) -> bool:
    """Whether an exception ended an actor while it was created; it is the last line of Ray's message."""
    return "creation task" in str(error)


def death_reason(error: BaseException) -> str:
    """Extract the reason of an actor's death from Ray's message of many lines."""
    text = str(error)
    if failed_to_start(error):
        return text.strip().splitlines()[-1].strip()
    match = re.search(r"exit detail: (.+?)\. Some common", text, re.DOTALL) or re.search(r"because (.+)", text)
    return match[1].strip(" .") if match else first_line(error)


def is_machine_failure(error: BaseException) -> bool:
    """Whether an actor died because its machine died or is unreachable, which is not the fault of its work."""
    if isinstance(error, (NodeDiedError, ActorUnschedulableError, ActorUnavailableError)):
        return True
    return isinstance(error, RayActorError) and (error.preempted or "because its node" in str(error))


def store_full_error(error: BaseException) -> ClusterError:
    """Describe a full object store and what to do about it."""
    error = getattr(error, "cause", None) or error  # Ray prepends the actor's name and a traceback
    return ClusterError(
        f"Ray's object store is full, and so is the disk that it spills to ({first_line(error)}): free disk space where Ray "
        "keeps its files (TMPDIR) or memory, or lower engine.actors, then resume the run"
    )
