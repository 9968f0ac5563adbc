"""What a Ray of our own is started with: its port, its directory, its object store."""

import math
import os
import shutil
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.cluster.address import ClusterError
from actors.cluster.limits import free_memory
from actors.cluster.stale_sessions import OwnDirectory

OBJECT_STORE_SHARE = 0.3
"""Part of the free memory that a Ray of our own may fill with uploads and states before it spills them to disk."""

SHARED_MEMORY = Path("/dev/shm")
"""Where Ray keeps its object store."""

SHARED_MEMORY_SHARE = 0.9
"""Part of the free shared memory that the object store may take."""

SMALLEST_STORE = 100e6
"""Bytes below which shared memory is of no use; Ray takes no store under 75 MB."""

LARGEST_STORE_ON_DISK = 2e9
"""Bytes of a store on disk at most; more of them would only be spilled from one file to another."""

DISK_NEEDED = 200e6
"""Bytes that Ray's logs and sockets and a store that is on disk must find, or it fails in stranger ways."""

PORT = "RAY_GCS_SERVER_PORT"
"""Where Ray reads the port of a head that it starts."""


@contextmanager
def own_port() -> Iterator[None]:
    """Choose the port of Ray's head: waiting for Ray's own choice holds Python's lock, and this process stands still."""
    if PORT in os.environ:
        yield
        return
    with socket.socket() as free:
        free.bind(("", 0))
        os.environ[PORT] = str(free.getsockname()[1])
    try:
        yield
    finally:
        del os.environ[PORT]


def options(directory: Path, num_cpus: int | None) -> dict[str, Any]:
    """Say what `ray.init` shall start, with this directory for its files and so many cores."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "address": "local",
        "num_cpus": num_cpus or (usable if usable != os.cpu_count() else None),
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": str(directory),
        **object_store(directory),
    }


@dataclass(frozen=True)
class Store:
    """An object store.

    Attributes:
        size: Bytes that it may hold.
        shared: Bytes that shared memory leaves it.
        on_disk: Whether that is too little, so that it lies on disk.
    """

    size: int
    shared: float
    on_disk: bool


def store_of(memory: int, directory: Path) -> Store:
    """Choose size and place of the object store.

    Args:
        memory: Bytes that are free here.
        directory: Where Ray's files lie.
    """
    wanted = memory * OBJECT_STORE_SHARE
    shared = shutil.disk_usage(SHARED_MEMORY).free * SHARED_MEMORY_SHARE if SHARED_MEMORY.is_dir() else math.inf
    if shared >= SMALLEST_STORE:
        return Store(int(max(min(wanted, shared), SMALLEST_STORE)), shared, on_disk=False)
    room = shutil.disk_usage(directory).free - DISK_NEEDED
    return Store(int(max(min(wanted, room, LARGEST_STORE_ON_DISK), SMALLEST_STORE)), shared, on_disk=True)


def object_store(directory: Path) -> dict[str, Any]:
    """Say what Ray shall make its object store of; what finds no room in it, Ray spills to disk."""
    store = store_of(free_memory(), directory)
    if not store.on_disk:
        return {"object_store_memory": store.size}
    warnings.warn(
        f"{SHARED_MEMORY} has only {store.shared / 1e6:.0f} MB free, so Ray's object store lies on disk in {directory}, "
        "which is slower: give Docker --shm-size=2g, or a pod an emptyDir of medium Memory there",
        RuntimeWarning,
        stacklevel=2,
    )
    return {"object_store_memory": store.size, "_plasma_directory": str(directory)}


def own_directory() -> OwnDirectory:
    """Make the directory.

    Raises:
        ClusterError: There is no room for it.
    """
    try:
        directory = OwnDirectory.make()
    except OSError as error:
        raise ClusterError(f"Ray finds no directory for its files ({error}): set TMPDIR to one with room") from None
    free = shutil.disk_usage(directory.path).free
    if free < DISK_NEEDED:
        directory.remove()
        raise ClusterError(
            f"Ray needs {DISK_NEEDED / 1e6:.0f} MB for its files, but {directory.path.parent} has {free / 1e6:.0f} MB free: "
            "set TMPDIR to one with room"
        )
    return directory
