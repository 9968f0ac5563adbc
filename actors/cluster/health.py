"""Whether Ray still runs: nothing waits for an answer that cannot come any more."""

import socket
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import ObjectRef
from ray.exceptions import GetTimeoutError

from actors.cluster.address import ClusterError
from actors.cluster.start_watch import VITAL, has_ended, last_words

LOOK_EVERY = 5.0
"""Seconds to wait for an answer before looking whether Ray still runs."""

KNOCK_TIMEOUT = 5.0
"""Seconds that the head may take to accept a connection; without it Ray ends this process after a minute."""


@dataclass
class Health:
    """Looks after a Ray that this process is connected to.

    Attributes:
        directory: Ray's files, if this Ray is our own.
        vital: The processes of our own Ray without which it is dead, by name.
        others: What they have started: agents that outlive them where they are killed.
    """

    directory: Path | None = None
    vital: dict[str, psutil.Process] = field(default_factory=dict)
    others: list[psutil.Process] = field(default_factory=list)
    _looked: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, directory: Path | None) -> "Health":
        """Find the processes of our own Ray, which were started with this directory."""
        found, others = {}, []
        for child in psutil.Process().children() if directory else ():
            with suppress(psutil.Error):
                if child.name() in VITAL and any(str(directory) in word for word in child.cmdline()):
                    found[child.name()] = child
                    others += child.children(recursive=True)
        return cls(directory, found, others)

    def end_others(self) -> None:
        """Kill what our own Ray has left behind."""
        for process in self.others:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def look(self) -> None:
        """Check from time to time, for who is never kept waiting: without its head Ray goes on, and then ends this process.

        Raises:
            ClusterError: As `check`.
        """
        if time.monotonic() > self._looked + LOOK_EVERY:
            self._looked = time.monotonic()
            self.check()

    def check(self) -> None:
        """See that Ray's processes live, that its head answers, and that this machine is still a node of it.

        Raises:
            ClusterError: Not so.
        """
        self.check_processes()
        if not ray.is_initialized():
            raise ClusterError("Ray was shut down under this run: resume it")
        context = ray.get_runtime_context()
        _knock(context.gcs_address)
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if not any(node["Alive"] and node["NodeID"] == context.get_node_id() for node in nodes):
            raise ClusterError("Ray's node on this machine is dead: see `ray status`, then resume the run")

    def check_processes(self) -> None:
        """See that the processes of our own Ray live; asks Ray nothing, and so may be asked in any thread.

        Raises:
            ClusterError: Not so.
        """
        for name, process in self.vital.items():
            if has_ended(process):
                said = last_words(self.directory, name) if self.directory else ""
                raise ClusterError(
                    f"Ray's {name} on this machine died{said}: see that memory and `ulimit -u` suffice, then resume the run"
                )

    def get(self, ref: ObjectRef[Any]) -> Any:
        """Wait for an answer as long as Ray runs.

        Raises:
            ClusterError: It does not.
            Exception: What the call raised.
        """
        while True:
            try:
                return ray.get(ref, timeout=LOOK_EVERY)
            except GetTimeoutError:
                self.check()

    def collect(self, parts: Iterable[ObjectRef[Any]]) -> list[ObjectRef[Any]]:
        """Wait for all that a generator yields as long as Ray runs; what the call raised is in the last ref."""
        found = []
        while True:
            ready, _ = ray.wait([parts], num_returns=1, timeout=LOOK_EVERY, fetch_local=False)
            if not ready:
                self.check()
                continue
            try:
                found.append(next(iter(parts)))
            except StopIteration:
                return found


def _knock(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        with closing(socket.create_connection((host.strip("[]"), int(port)), KNOCK_TIMEOUT)):
            pass
    except OSError as error:
        raise ClusterError(
            f"the head of Ray at {address} does not answer ({error}): start it again, then resume the run"
        ) from None
