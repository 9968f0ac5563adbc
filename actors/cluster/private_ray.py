"""The settings of a private Ray, which a run starts for itself: port, directory, object store."""

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from actors.cluster.machine import MIN_STORE, SHARED_MEMORY, free_shared_memory, object_store_size
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
    """Give the arguments of `ray.init` that start a Ray with this directory and number of cores.

    What does not fit into the object store, Ray spills to disk. Without shared memory the store itself is there.
    """
    if (shared := free_shared_memory()) < MIN_STORE:
        warnings.warn(
            f"{SHARED_MEMORY} has only {shared / 1e6:.0f} MB free, so Ray's object store is on disk in {directory}, "
            "which is slower: give Docker --shm-size=2g, or a pod an emptyDir of medium Memory",
            RuntimeWarning,
            stacklevel=2,
        )
    return {
        "address": "local",
        "num_cpus": num_cpus or cores(),
        "include_dashboard": False,
        "object_store_memory": object_store_size(free_memory()),
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": str(directory),
        "_system_config": QUIET,
    }


@contextmanager
def without_unused_processes() -> Iterator[None]:
    """Start no processes for a dashboard, for logs and for autoscaling; `ray.init` would wait for the dashboard's."""
    node: Any = ray._private.node.Node
    starts = {name: getattr(node, name) for name in ("start_api_server", "start_log_monitor", "start_monitor")}
    for name in starts:
        setattr(node, name, lambda self, **_: None)
    try:
        yield
    finally:
        for name, start in starts.items():
            setattr(node, name, start)
