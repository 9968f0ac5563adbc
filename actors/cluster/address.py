"""Finding a running Ray, and refusing an address at which there is none, before Ray itself tries for a minute."""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from actors.cluster.stale_sessions import PREFIX
from actors.errors import ClusterError

CONNECT_TIMEOUT = 5.0
"""Seconds that Ray's head may take to accept a connection; without a head Ray ends this process after a minute."""


@dataclass(frozen=True)
class LocalNode:
    """A node of a Ray on this machine: the address of that Ray's head, and the node's directory."""

    head: str
    directory: str

    @property
    def is_private(self) -> bool:
        """Whether a run of this package started it for itself."""
        return Path(self.directory).parent.name.startswith(PREFIX)

    @property
    def is_shared(self) -> bool:
        """Whether `ray start` or `ray up` started it."""
        file = Path(self.directory) / "ray_current_cluster"
        return file.is_file() and file.read_text().strip() == self.head


def local_nodes() -> Iterator[LocalNode]:
    """Find the nodes of every Ray on this machine."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "raylet":
            flags = dict(text.split("=", 1) for text in process.info["cmdline"] or [] if "=" in text)
            if "--gcs-address" in flags:
                yield LocalNode(flags["--gcs-address"], flags.get("--temp_dir", ""))


def resolve_address(address: str) -> str:
    """Turn "auto" into the address of the only Ray that this machine is a node of, or raise `ClusterError`."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address != "auto":
        return address
    heads = sorted({node.head for node in local_nodes() if not node.is_private})
    if not heads:
        raise ClusterError("no Ray runs on this machine: start one with `ray up cluster.yaml` and run on its head")
    if len(heads) > 1:
        raise ClusterError(
            f"{len(heads)} Rays run on this machine, at {' and '.join(heads)}: choose one with --address"
        )
    return heads[0]


def check_address(address: str) -> None:
    """Raise `ClusterError` unless something answers at an address and its Ray has a node on this machine."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ClusterError(f"Ray's address must be host:port or auto, got {address!r}: see `ray status` on the head")
    if reason := connection_error(address):
        raise ClusterError(
            f"there is no Ray at {address} ({reason}): start it with `ray up cluster.yaml` or correct the address; "
            "the port of a head is 6379 by default"
        )
    if not any(node.head.rpartition(":")[2] == port for node in local_nodes()):
        raise ClusterError(
            f"this machine is no node of the Ray at {address}, and a driver must run on one: use `ray exec cluster.yaml` "
            "or `ray job submit`"
        )


def connection_error(address: str) -> str | None:
    """Say why no connection can be made to Ray's head; None if it can."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
    except OSError as error:
        return str(error.strerror or error).lower()
    return None
