"""The settings of a private Ray, which a run starts for itself: port, directory, object store."""

import os
import shutil
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from actors.cluster.machine import (
    DISK_NEEDED,
    MIN_STORE,
    SHARED_MEMORY,
    free_shared_memory,
    object_store_size,
)
from actors.cluster.stale_sessions import SessionDirectory
from actors.errors import ClusterError
from rayfed_ssl.resources import cores, free_memory

PORT = "RAY_GCS_SERVER_PORT"
"""Where Ray reads the port of a head that it starts."""

QUIET = {
    "enable_metrics_collection": False,
    "task_events_report_interval_ms": 0,
    "raylet_report_resources_period_milliseconds": 1000,
    "raylet_check_gc_period_milliseconds": 1000,
    "kill_idle_workers_interval_ms": 2000,
    "gcs_pull_resource_loads_period_milliseconds": 10000,
}
"""Reports of a private Ray that nobody reads, and checks of what one run hardly changes: half a percent of two cores."""


def starts_private_ray(address: str | None) -> bool:
    """Whether a run with this address starts Ray on this machine, so that its resources are known in advance."""
    return not ray.is_initialized() and (address or os.environ.get("RAY_ADDRESS") or "local") == "local"


@contextmanager
def free_port() -> Iterator[None]:
    """Choose the port of Ray's head: while Ray waits for a port of its own choice it blocks all threads."""
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
    """Give the arguments of `ray.init` that start a Ray with this directory and number of cores."""
    return {
        "address": "local",
        "num_cpus": num_cpus or cores(),
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": str(directory),
        "_system_config": QUIET,
        **object_store(directory),
    }


def stop_unused_processes() -> None:
    """Stop what a private Ray starts for its dashboard, for logs and for autoscaling: one percent of two cores."""
    node: Any = ray._private.worker._global_node
    node.kill_log_monitor(check_alive=False)
    node.kill_dashboard(check_alive=False)
    node.kill_monitor(check_alive=False)


def object_store(directory: Path) -> dict[str, Any]:
    """Give the arguments of `ray.init` for the object store; what does not fit into it, Ray spills to disk."""
    size = {"object_store_memory": object_store_size(free_memory(), directory)}
    shared = free_shared_memory()
    if shared >= MIN_STORE:
        return size
    warnings.warn(
        f"{SHARED_MEMORY} has only {shared / 1e6:.0f} MB free, so Ray's object store is on disk in {directory}, "
        "which is slower: give Docker --shm-size=2g, or a pod an emptyDir of medium Memory",
        RuntimeWarning,
        stacklevel=2,
    )
    return size | {"_plasma_directory": str(directory)}


def session_directory() -> SessionDirectory:
    """Create Ray's directory, or raise `ClusterError` if the disk has no space for it."""
    try:
        directory = SessionDirectory.create()
    except OSError as error:
        raise ClusterError(f"Ray has no directory for its files ({error}): set TMPDIR to one with free space") from None
    free = shutil.disk_usage(directory.path).free
    if free < DISK_NEEDED:
        directory.remove()
        raise ClusterError(
            f"Ray needs {DISK_NEEDED / 1e6:.0f} MB for its files, but {directory.path.parent} has {free / 1e6:.0f} MB free: "
            "set TMPDIR to one with free space"
        )
    return directory
