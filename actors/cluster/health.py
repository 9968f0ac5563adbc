"""Whether Ray still runs, so that no process waits for an answer that cannot come."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import ObjectRef
from ray.exceptions import GetTimeoutError

from actors.cluster.address import connection_error
from actors.cluster.mps import MpsDaemon
from actors.errors import ClusterError

CHECK_INTERVAL = 5.0
"""Seconds to wait for an answer before checking whether Ray still runs."""

WATCH_INTERVAL = 2.0
"""Seconds between two looks at a Ray that may hang; a process that dies is noticed at once."""

MAX_LOOKS = 4
"""Looks in a row at a stopped process, or at a head that does not answer, after which Ray counts as dead."""

VITAL = {
    "gcs_server": "gcs_server",
    "raylet": "raylet",
    "ray::DashboardAgent": "dashboard_agent",
    "ray::RuntimeEnvAgent": "runtime_env_agent",
}
"""Ray's processes without which it cannot run, as the raylet ends with its agents, and the names of their logs; a start that
lacks one takes Ray half a minute to give up."""


@dataclass
class Health:
    """Checks the Ray that this process has joined; of a private Ray it knows the directory, the vital processes and MPS."""

    directory: Path | None = None
    vital: dict[str, psutil.Process] = field(default_factory=dict)
    left: threading.Event = field(default_factory=threading.Event)
    mps: MpsDaemon | None = None
    _older: set[int] = field(default_factory=lambda: {child.pid for child in psutil.Process().children(recursive=True)})
    _last_check: float = field(default_factory=time.monotonic)
    _watcher: threading.Thread | None = None

    def find_processes(self) -> None:
        """Look for the vital processes that a private Ray has started below this process; agents come last."""
        if self.directory is None or len(self.vital) == len(VITAL):
            return
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if child.pid not in self._older and child.name() in VITAL:
                    self.vital[VITAL[child.name()]] = child

    def watch(self, on_death: Callable[[str], None]) -> None:
        """Call a function, in a thread of its own, once Ray has died or hangs for several looks, until `left` is set.

        It must end this process: Ray itself ends it without a message when the main thread next asks a dead raylet for
        anything, and the main thread may wait for a stopped one, or inside Ray Tune for a head, without end.
        """
        address = ray.get_runtime_context().gcs_address

        def watch() -> None:
            looks, reason = 0, ""
            while looks < MAX_LOOKS and not self.left.is_set():
                self._sleep()
                if died := self.failure():
                    looks, reason = MAX_LOOKS, _advice(died)
                elif stopped := self._stopped():
                    looks, reason = looks + 1, _advice(f"{stopped[0]} was stopped by a signal")
                elif refused := connection_error(address):
                    looks, reason = looks + 1, _no_answer(address, refused)
                else:
                    looks = 0
            if not self.left.is_set():
                on_death(reason)

        self._watcher = threading.Thread(target=watch, daemon=True)
        self._watcher.start()

    def _sleep(self) -> None:
        """Wait for the next look, or for the death of a vital process."""
        self.find_processes()
        files = []
        for process in self.vital.values():
            with suppress(OSError):  # it has died just now, or the kernel has no such files
                files.append(os.pidfd_open(process.pid))
        wait(files, WATCH_INTERVAL)
        for file in files:
            os.close(file)

    def kill_stopped(self) -> None:
        """Kill vital processes that a signal has stopped: `ray.shutdown` waits for them without end."""
        for name in self._stopped():
            with suppress(psutil.Error):
                self.vital[name].kill()

    def _stopped(self) -> list[str]:
        return [name for name, process in self.vital.items() if _status(process) == psutil.STATUS_STOPPED]

    def failure(self) -> str | None:
        """Say which vital processes have died, as one takes others with it; None if all live."""
        dead = [name for name in VITAL.values() if name in self.vital and _is_dead(self.vital[name])]
        return f"{' and '.join(dead)} died" if dead else None

    def check_regularly(self) -> None:
        """Check if the last check is a while ago; for loops that never wait, as Ray runs for a minute without its head."""
        if time.monotonic() > self._last_check + CHECK_INTERVAL:
            self._last_check = time.monotonic()
            self.check()

    def check(self) -> None:
        """Raise `ClusterError` unless Ray's processes live, its head answers, and this machine is still a node of it."""
        self.find_processes()
        if failure := self.failure():
            if self._watcher is not None:
                self._watcher.join()
            raise ClusterError(_advice(failure))
        if self.mps is not None:
            self.mps.check()
        context = ray.get_runtime_context()
        if reason := connection_error(context.gcs_address):
            raise ClusterError(_no_answer(context.gcs_address, reason))
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if not any(node["Alive"] and node["NodeID"] == context.get_node_id() for node in nodes):
            advice = "see `ray status`" if self.directory is None else "check memory and the load"
            raise ClusterError(f"Ray's node on this machine is dead: {advice}, then resume the run")

    def get(self, ref: ObjectRef[Any]) -> Any:
        """Wait for an answer as long as Ray runs; raises what the call raised, or `ClusterError`."""
        while True:
            try:
                return ray.get(ref, timeout=CHECK_INTERVAL)
            except GetTimeoutError:
                self.check()

    def collect(self, generator: Iterable[ObjectRef[Any]]) -> list[ObjectRef[Any]]:
        """Wait for all refs of a generator as long as Ray runs; what the call raised is in the last ref."""
        refs = []
        while True:
            ready, _ = ray.wait([generator], num_returns=1, timeout=CHECK_INTERVAL, fetch_local=False)
            if not ready:
                self.check()
                continue
            try:
                refs.append(next(iter(generator)))
            except StopIteration:
                return refs


def _advice(failure: str) -> str:
    return f"Ray's {failure}: check memory and `ulimit -u` of this machine, then resume the run"


def _no_answer(address: str, reason: str | None) -> str:
    return f"Ray's head at {address} does not answer ({reason}): start it again, then resume the run"


def _is_dead(process: psutil.Process) -> bool:
    return _status(process) in (None, psutil.STATUS_ZOMBIE)


def _status(process: psutil.Process) -> str | None:
    try:
        return str(process.status())
    except psutil.Error:
        return None
