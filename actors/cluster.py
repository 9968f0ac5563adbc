"""Starting, attaching to and leaving Ray, without ever hanging: what cannot work is refused in one line."""

import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants

START_TIMEOUT = 20.0
"""Seconds that Ray may take to start or to let us in; on two busy cores it takes 3 to 6."""

HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_SETTINGS = b"\x04"
"""What a client of gRPC, which Ray's head speaks, says first, and the type of the frame that it hears back."""

OBJECT_STORE_SHARE = 0.3
"""Part of the free memory that a Ray of our own may fill with uploads and states before it spills them to disk."""


class ClusterError(ValueError):
    """Ray cannot run what was asked of it; the message says what was needed, what is there and what to do."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster.

    Attributes:
        id: Ray's name for it.
        cpus: Cores that Ray may hand out.
        gpus: GPUs that Ray may hand out.
        store: Bytes that its object store may hold.
    """

    id: str
    cpus: float
    gpus: float = 0.0
    store: float = 0.0

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Node":
        """Read Ray's description."""
        has = entry["Resources"]
        return cls(entry["NodeID"], has.get("CPU", 0.0), has.get("GPU", 0.0), has.get("object_store_memory", 0.0))


@dataclass
class Cluster:
    """A connection to Ray.

    Attributes:
        owned: Whether this object started or joined Ray and so has to leave it.
        directory: Ray's files, if this Ray is our own.
    """

    owned: bool
    directory: Path | None = None
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
            self._leave.set()
            _remove(self.directory)


def start(address: str | None = None, *, num_cpus: int | None = None, timeout: float | None = None) -> Cluster:
    """Start Ray on this machine, or attach to a running one; a Ray that this process has already is taken as it is.

    A Ray of our own asks every connection for a random token, because it listens on all interfaces whatever address it
    is given. A cluster that we attach to decides itself how it is entered.

    Args:
        address: "host:port" or "auto"; None takes RAY_ADDRESS if that is set, and else starts Ray here.
        num_cpus: Cores that Ray may hand out; None takes those of this process.
        timeout: Seconds to wait for an answer; None means START_TIMEOUT, or up to three times that on a busy machine.
            After this failure the program should end: a thread that hangs inside Ray may end it later.

    Raises:
        ClusterError: Ray does not start, or does not answer.
    """
    if ray.is_initialized():
        return Cluster(owned=False)
    _keep_uv_out()
    timeout = timeout or START_TIMEOUT * min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), 3.0)
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    cluster = Cluster(owned=True)
    if address == "local":
        cluster.directory = _own_directory()
        # Ray asks for a token on its own; given one here it writes none into the user's home.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        advice = f"see that {cluster.directory} and /dev/shm have room, or set engine.executor=local"
        _enter(_own(cluster, num_cpus), cluster, timeout, "Ray did not start on this machine", advice)
    else:
        _probe(address, timeout / 4)
        advice = "compare Ray's version, RAY_AUTH_MODE and the token"
        _enter({"address": address}, cluster, timeout, f"cannot join the Ray at {address}", advice)
    return cluster


def _keep_uv_out() -> None:
    """Repeat a setting that Ray reads while it is imported, for programs that imported it before this package."""
    if os.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV") == "0":
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False


def _own(cluster: Cluster, num_cpus: int | None) -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "address": "local",
        "num_cpus": num_cpus or (usable if usable != os.cpu_count() else None),
        "include_dashboard": False,
        "object_store_memory": int(psutil.virtual_memory().available * OBJECT_STORE_SHARE),
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": str(cluster.directory),
    }


def _own_directory() -> Path:
    """Make a directory for Ray's files, whose sockets may have paths of 107 bytes, too few for some TMPDIRs."""
    try:
        return Path(tempfile.mkdtemp(prefix="rayfed-", dir=None if len(tempfile.gettempdir()) <= 24 else "/tmp"))
    except OSError as error:
        raise ClusterError(f"Ray finds no directory for its files ({error}): set TMPDIR to one with room") from None


def _probe(address: str, timeout: float) -> None:
    """Knock at the port first: Ray itself would try for a minute and then end the process."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit() or "/" in host:
        raise ClusterError(f"Ray's address must be host:port or auto, got {address!r}: see `ray status` on the head")
    try:
        with socket.create_connection((host, int(port)), timeout) as connection:
            connection.sendall(HTTP2_GREETING)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterError(
            f"there is no Ray at {address} ({reason.lower()}): start it with `ray up cluster.yaml` or correct the address"
        ) from None
    if answer[3:4] != HTTP2_SETTINGS:
        raise ClusterError(f"what answers at {address} is not Ray: give the port of its head node, by default 6379")


def _enter(options: dict[str, Any], cluster: Cluster, timeout: float, what: str, advice: str) -> None:
    """Call `ray.init` where it can be waited for with a limit."""
    before = {child.pid for child in psutil.Process().children()}
    failures: list[BaseException] = []
    known = threading.Event()

    def enter() -> None:
        try:
            ray.init(**options, log_to_driver=False, logging_level="error")  # type: ignore[arg-type]
        except BaseException as error:
            failures.append(error)
        known.set()
        # Ray's processes die with the thread that started them (PR_SET_PDEATHSIG), so it has to outlive them.
        cluster._leave.wait()

    threading.Thread(target=enter, name="ray-init", daemon=True).start()
    try:
        in_time = known.wait(timeout)
        if failures or not in_time:
            reason = first_line(failures[0]) if failures else f"no answer within {timeout:g} s"
            raise ClusterError(f"{what} ({reason}): {advice}")
    except BaseException:
        _end_children(before)
        cluster._leave.set()
        _remove(cluster.directory)
        raise
    _end_on_sigterm()


def first_line(error: BaseException) -> str:
    """Shorten a message to its first line that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _end_on_sigterm() -> None:
    """Turn SIGTERM into an orderly exit, as `ray.init` does in the main thread, so that no process stays behind."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _end_children(before: set[int]) -> None:
    """End the processes that a start which failed left behind."""
    for child in psutil.Process().children():
        if child.pid not in before:
            for process in (*child.children(recursive=True), child):
                process.kill()


def _remove(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
