"""Starting, attaching to and leaving Ray, without ever hanging: what cannot work is refused in one line."""

import os
import secrets
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private import ray_constants

from actors.cluster.address import ClusterError, knock, local_nodes, resolve, use_token
from actors.cluster.health import Health
from actors.cluster.private_ray import options, own_directory, own_port
from actors.cluster.stale_sessions import OwnDirectory, clear_leftovers
from actors.cluster.start_watch import StartWatch

START_TIMEOUT = 180.0
"""Seconds that a Ray of our own may take to start while its processes work; on two busy cores it takes 3 to 6."""

JOIN_TIMEOUT = 20.0
"""Seconds that a running Ray may take to let us in; it takes less than one."""

LOOK = 0.2
"""Seconds between two looks at a start."""

SHORT = 8
"""Lines of a message that may become one: Ray tells of two versions in six."""

__all__ = ["Cluster", "ClusterError", "Node", "first_line", "start"]


@dataclass(frozen=True)
class Node:
    """A machine of the cluster.

    Attributes:
        id: Ray's name for it.
        cpus: Cores that Ray may hand out.
        gpus: GPUs that Ray may hand out.
        store: Bytes that its object store may hold.
        memory: Bytes that processes may take beside it; 0 if unknown.
    """

    id: str
    cpus: float
    gpus: float = 0.0
    store: float = 0.0
    memory: float = 0.0

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Node":
        """Read Ray's description."""
        names = ("CPU", "GPU", "object_store_memory", "memory")
        return cls(entry["NodeID"], *(entry["Resources"].get(name, 0.0) for name in names))


@dataclass
class Cluster:
    """A connection to Ray.

    Attributes:
        owned: Whether this object started or joined Ray and so has to leave it.
        directory: Ray's files, if this Ray is our own.
        health: Says whether it still runs.
    """

    owned: bool
    directory: OwnDirectory | None = None
    health: Health = field(default_factory=Health)
    _leave: threading.Event = field(default_factory=threading.Event)

    def nodes(self) -> list[Node]:
        """List the machines that are alive."""
        listed: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return [Node.of(entry) for entry in listed if entry["Alive"]]

    def stop(self) -> None:
        """Leave Ray; a Ray of our own ends with all its processes and files. A second call does nothing."""
        if self.owned:
            self.owned = False
            ray.shutdown()
            self.health.end_others()
            self._forget()

    def _forget(self) -> None:
        self._leave.set()
        if self.directory is not None:
            self.directory.remove()


def start(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    timeout: float | None = None,
    otherwise: str = ", or set engine.executor=local",
) -> Cluster:
    """Start Ray on this machine, or attach to a running one; a Ray that this process has already is taken as it is.

    A Ray of our own asks every connection for a random token, because it listens on all interfaces whatever address it
    is given. A cluster that we attach to decides itself how it is entered.

    Args:
        address: "host:port" or "auto", the Ray that this machine is a node of; None takes RAY_ADDRESS if that is set, and
            else starts Ray here.
        num_cpus: Cores that Ray may hand out; None takes those of this process.
        timeout: Seconds to wait at most; None means START_TIMEOUT or JOIN_TIMEOUT. A start that cannot succeed any more
            is given up much earlier. After a failure the program should end: a thread that hangs inside Ray may end it
            later.
        otherwise: What else the caller's user could do where Ray does not start here; ends that message.

    Raises:
        ClusterError: Ray does not start, or does not answer.
    """
    if address is not None and not address.strip():
        raise ClusterError("the address of Ray is empty: give host:port or auto, or leave it out to start Ray here")
    if ray.is_initialized():
        return Cluster(owned=False)
    _keep_uv_out()
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        return _start(num_cpus, timeout or START_TIMEOUT, otherwise)
    return _join(address, timeout or JOIN_TIMEOUT)


def _start(num_cpus: int | None, timeout: float, otherwise: str) -> Cluster:
    clear_leftovers()
    _point_at_clusters()
    directory = own_directory()
    cluster = Cluster(True, directory)
    # Given a token here, Ray writes none into the user's home.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if "RAY_AUTH_MODE" not in os.environ:
        use_token()
    watch = StartWatch(directory.path)
    try:
        with own_port():
            _enter(options(directory.path, num_cpus), cluster, timeout, watch.trouble)
        cluster.health = Health.of(directory.path)
    except _EntryError as error:
        _end(watch)
        raise ClusterError(
            f"Ray did not start on this machine ({error}): see that {directory.path.parent}, memory and `ulimit -u` leave "
            f"room{otherwise}"
        ) from None
    except BaseException:
        _end(watch)
        raise
    return cluster


def _join(address: str, timeout: float) -> Cluster:
    address = resolve(address)
    knock(address, timeout / 4)
    cluster = Cluster(owned=True)
    try:
        _enter({"address": address}, cluster, timeout, lambda: None)
    except _EntryError as error:
        advice = "compare Ray's and Python's versions, RAY_AUTH_MODE and the token"
        raise ClusterError(f"cannot join the Ray at {address} ({error}): {advice}") from None
    return cluster


def _keep_uv_out() -> None:
    """Repeat a setting that Ray reads while it is imported, for programs that imported it before this package."""
    if os.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV") == "0":
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False


def _point_at_clusters() -> None:
    """Tell who forgot --address on a cluster's node: the run would keep one machine busy and leave the others idle."""
    for head in sorted({node.head for node in local_nodes() if node.is_shared}):
        warnings.warn(
            f"this machine is a node of the Ray at {head}, which this run leaves alone: --address {head} would use it",
            RuntimeWarning,
            stacklevel=2,
        )


class _EntryError(RuntimeError):
    """Ray was not entered; the message says why."""


def _enter(init: dict[str, Any], cluster: Cluster, timeout: float, trouble: Callable[[], str | None]) -> None:
    """Call `ray.init` where it can be waited for with a limit, and given up as soon as there is trouble."""
    failures: list[BaseException] = []
    known = threading.Event()

    def enter() -> None:
        try:
            ray.init(**init, log_to_driver=False, logging_level="error")  # type: ignore[arg-type]
        except BaseException as error:
            failures.append(error)
        known.set()
        # Ray's processes die with the thread that started them (PR_SET_PDEATHSIG), so it has to outlive them.
        cluster._leave.wait()

    threading.Thread(target=enter, name="ray-init", daemon=True).start()
    deadline = time.monotonic() + timeout
    try:
        while not known.wait(min(LOOK, timeout)):
            reason = trouble()
            if reason is None and time.monotonic() > deadline:
                reason = f"no answer within {timeout:g} s"
            if reason and not known.is_set():
                raise _EntryError(reason)
        if failures:
            raise _EntryError(first_line(failures[0]))
    except BaseException:
        cluster._forget()
        raise
    _end_on_sigterm()


def first_line(error: BaseException) -> str:
    """Shorten a message to its first line that says something, and what that line introduces with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines) if lines[0].endswith(":") and len(lines) <= SHORT else lines[0]


def _end_on_sigterm() -> None:
    """Turn SIGTERM into an orderly exit, so that no process stays behind: Ray has put a handler of its own in the way."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        leave = handler if handler != signal.SIG_DFL else lambda number, _: sys.exit(128 + number)
        signal.signal(signal.SIGTERM, leave)


def _end(watch: StartWatch) -> None:
    """End the processes that a start which failed left behind."""
    for child in watch.children():
        for process in (*child.children(recursive=True), child):
            process.kill()
