"""Starting, joining and leaving Ray with a time limit: what cannot work is refused in one line."""

import os
import secrets
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import ray
from ray.job_config import JobConfig

from actors.cluster.address import check_address, local_nodes, resolve_address
from actors.cluster.health import Health
from actors.cluster.machine import Node, gpu_memory
from actors.cluster.mps import MpsDaemon, is_available
from actors.cluster.private_ray import PORT, exported, free_ports, needed_processes, options
from actors.cluster.stale_sessions import MPS, SessionDirectory, kill_processes, remove_stale_sessions
from actors.errors import ClusterError, first_line
from rayfed_ssl.machine.processor import PORTABLE, is_portable
from rayfed_ssl.machine.resources import cores, free_memory

START_TIMEOUT = 120.0
"""Seconds that a private Ray may take to start; on two busy cores it takes 3 to 6, one whose process died ends at once."""

JOIN_TIMEOUT = 25.0
"""Seconds that a running Ray may take to accept this process; it takes less than one, and refuses a token after 20."""

SILENT = "RAY_BACKEND_LOG_LEVEL", "fatal"
"""A variable that keeps Ray's C++ part from writing to this process' stderr, such as of objects that a dead node held."""

BUSY = 4
"""Processes that wait for each core from which on a start that failed is put down to the load."""

POLL_INTERVAL = 0.2
"""Seconds between two checks of a start."""


@dataclass
class Cluster:
    """A connection to Ray; an `owned` one was started or joined by this object, which must leave it."""

    owned: bool
    directory: SessionDirectory | None = None
    health: Health = field(default_factory=Health)
    _left: threading.Event = field(default_factory=threading.Event)

    def nodes(self) -> list[Node]:
        """List the machines that are alive."""
        entries: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        nodes = [Node.of(entry) for entry in entries if entry["Alive"]]
        return nodes if self.directory is None else [replace(node, gpu_memory=gpu_memory()) for node in nodes]

    def stop(self) -> None:
        """Leave Ray; a private Ray ends with all its processes and files. A second call does nothing."""
        if self.owned:
            self.owned = False
            self.health.left.set()
            self.health.kill_stopped()
            ray.shutdown()
            self._clean()

    def _clean(self) -> None:
        self._left.set()
        if self.health.mps is not None:
            self.health.mps.stop()
        if self.directory is not None:
            kill_processes(self.directory.ray)  # agents outlive a raylet that was killed
            self.directory.remove()


def start(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    num_workers: int | None = None,
    timeout: float | None = None,
    on_ray_death: Callable[[str], None] | None = None,
    mps: Literal["off", "auto", "on"] = "off",
) -> Cluster:
    """Start Ray on this machine, or join a running one; a Ray that this process has already joined is used as it is.

    A private Ray requires a random token, because it listens on all interfaces. After a `ClusterError` the program should
    end: a thread that hangs inside Ray may end it later.

    Args:
        address: "host:port" or "auto", the Ray that this machine is a node of; None takes RAY_ADDRESS, or starts Ray here.
        num_cpus: Cores that Ray may assign; None takes those of this process.
        num_workers: Processes that are to be actors later and import at once what these need.
        timeout: Seconds to wait at most; None means START_TIMEOUT or JOIN_TIMEOUT.
        on_ray_death: Is called, in a thread of its own, when Ray has died or hangs, and must end this process. None checks
            only where the program waits for Ray.
        mps: Whether a Ray that is started here gets NVIDIA's MPS; where it fails, "auto" warns and "on" raises.
    """
    if address is not None and not address.strip():
        raise ClusterError("the address of Ray is empty: give host:port or auto, or leave it out to start Ray here")
    if not _ahead and ray.is_initialized():
        return Cluster(owned=False)
    if _is_local(address):
        begun = _ahead.pop() if _ahead else _begin(num_cpus or cores(), num_workers, mps)
        cluster = _finish(begun, timeout or START_TIMEOUT)
    else:
        cluster = _join_named(address, timeout or JOIN_TIMEOUT)
    if on_ray_death is not None:
        cluster.health.watch(on_ray_death)
    return cluster


def start_ahead(num_workers: int) -> None:
    """Begin to start the Ray that the next `start` without arguments waits for, while this process imports and reads data.

    A program that may end before must call `abandon`.
    """
    if not _ahead and starts_private_ray(None) and not is_available():  # MPS comes first, if the plan has it
        with suppress(ClusterError):  # `start` tries again, and says what is wrong
            _ahead.append(_begin(cores(), num_workers))
            _exit_on_sigterm()


def abandon() -> bool:
    """End a Ray that was started ahead and not taken; the process must then end by `os._exit`. Returns if there was one."""
    for start in _ahead:
        start.cluster._clean()
    return bool(_ahead)


def starts_private_ray(address: str | None) -> bool:
    """Whether a run with this address starts Ray on this machine, so that its resources are known in advance."""
    return bool(_ahead) or (not ray.is_initialized() and _is_local(address))


def memory_ahead() -> int | None:
    """Count the bytes that were free before Ray was started ahead; None if it was not."""
    return _ahead[0].memory if _ahead else None


def _is_local(address: str | None) -> bool:
    return (address or os.environ.get("RAY_ADDRESS") or "local") == "local"


@dataclass
class _Start:
    """A call of `ray.init` in a thread of its own; `memory` was free before."""

    cluster: Cluster
    memory: int = field(default_factory=free_memory)
    done: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)


_ahead: list[_Start] = []
"""At most one start that nothing has waited for yet."""


def _begin(num_cpus: int, num_workers: int | None, mps: str = "off") -> _Start:
    """Begin to start a private Ray."""
    remove_stale_sessions()
    _warn_of_clusters()
    try:
        directory = SessionDirectory.create()
    except OSError as error:
        raise ClusterError(f"Ray has no directory for its files ({error}): set TMPDIR to one with free space") from None
    cluster = Cluster(True, directory, Health(directory.ray))
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the user's home
    contexts = [exported(PORT, str(free_ports(1)[0])), needed_processes(num_workers)]
    if mps != "off":
        _start_mps(cluster, MpsDaemon(directory.path / MPS, is_required=mps == "on"))
        contexts += [cluster.health.mps.exported()] if cluster.health.mps else []
    return _init(options(directory.ray, num_cpus, num_workers), cluster, *contexts)


def _finish(start: _Start, timeout: float) -> Cluster:
    """Wait for a private Ray."""
    if reason := _wait(start, timeout):
        assert start.cluster.directory is not None
        check = f"check space in {start.cluster.directory.path.parent}, memory and `ulimit -u`"
        if (load := os.getloadavg()[0]) > BUSY * cores():
            check = f"the load of this machine is {load:.0f} on {cores()} cores, so try again when it is lower"
        raise ClusterError(
            f"Ray did not start on this machine ({reason}): {check}; single runs need no Ray with engine.executor=local"
        )
    return start.cluster


def _start_mps(cluster: Cluster, daemon: MpsDaemon) -> None:
    cluster.health.mps = daemon
    try:
        if not daemon.start():
            cluster.health.mps = None
    except BaseException:
        cluster._clean()
        raise


def _join_named(address: str | None, timeout: float) -> Cluster:
    """Join the Ray that an address or RAY_ADDRESS names; an error says which of them it was."""
    named = os.environ.get("RAY_ADDRESS") if address in (None, "auto") else None
    remedies = ["unset RAY_ADDRESS"] * bool(named) + ["leave --address out"] * bool(address)
    try:
        return _join(address or os.environ["RAY_ADDRESS"], timeout)
    except ClusterError as error:
        prefix = f"RAY_ADDRESS={named}: " if named else ""
        raise ClusterError(f"{prefix}{error}; {' and '.join(remedies)} to start Ray here") from None


def _join(address: str, timeout: float) -> Cluster:
    address = resolve_address(address)
    check_address(address)
    cluster = Cluster(owned=True)
    os.environ.setdefault(*SILENT)
    with _silent_stderr():
        reason = _wait(_init({"address": address, **_environment()}, cluster), timeout)
    if reason:
        raise ClusterError(
            f"cannot join the Ray at {address} ({reason}): compare Ray's and Python's versions, RAY_AUTH_MODE and "
            "RAY_AUTH_TOKEN_PATH, which names a copy of the token file that its nodes use"
        )
    return cluster


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Drop what Ray's C++ part writes: a line for each of twenty tries with a wrong token."""
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _environment() -> dict[str, Any]:
    """Give the workers of a running Ray the variables of `engine.cpu=portable`; those of a private one inherit them."""
    return {"runtime_env": {"env_vars": PORTABLE}} if is_portable() else {}


def _warn_of_clusters() -> None:
    """Warn on a cluster's node without --address: the run would use one machine and leave the others idle."""
    for head in sorted({node.head for node in local_nodes() if node.is_shared}):
        warnings.warn(
            f"this machine is a node of the Ray at {head}, which this run does not use: to use it, add --address {head}",
            RuntimeWarning,
            stacklevel=2,
        )


class _Job(JobConfig):
    """Keeps the working directory out of the actors' path, where its modules would hide this package's."""

    def _get_proto_job_config(self) -> Any:
        here = os.path.abspath(os.curdir)
        self._py_driver_sys_path = [path for path in self._py_driver_sys_path if path != here]
        return super()._get_proto_job_config()  # type: ignore[no-untyped-call]


def _init(arguments: dict[str, Any], cluster: Cluster, *contexts: AbstractContextManager[None]) -> _Start:
    """Call `ray.init` in these contexts in a thread."""
    start = _Start(cluster)

    def init() -> None:
        try:
            with ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context)
                ray.init(**arguments, job_config=_Job(), log_to_driver=False, logging_level="error")  # type: ignore[arg-type]
        except BaseException as error:
            start.failures.append(error)
        start.done.set()
        # Ray's processes die with the thread that started them (PR_SET_PDEATHSIG), so it must outlive them.
        cluster._left.wait()

    threading.Thread(target=init, name="ray-init", daemon=True).start()
    return start


def _wait(start: _Start, timeout: float) -> str:
    """Wait until `ray.init` returns, a process of a private Ray dies, or the time is up; returns why it failed, or ""."""
    cluster, done, failures = start.cluster, start.done, start.failures
    deadline, reason = time.monotonic() + timeout, "it was interrupted"
    try:
        while not done.wait(min(POLL_INTERVAL, timeout)) and time.monotonic() < deadline:
            cluster.health.find_processes()
            if cluster.health.failure():
                break
        cluster.health.find_processes()
        if failures:
            reason = first_line(failures[0])
        elif failure := cluster.health.failure():
            reason = f"its {failure}"
        else:
            reason = "" if done.is_set() else f"no answer within {timeout:g} s"
    finally:
        if reason:
            cluster._clean()
    _exit_on_sigterm()
    return reason


def _exit_on_sigterm() -> None:
    """Turn SIGTERM into an orderly exit, so that no process stays behind; Ray installs a handler that does not."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        on_signal = handler if handler != signal.SIG_DFL else lambda number, _: sys.exit(128 + number)
        signal.signal(signal.SIGTERM, on_signal)
