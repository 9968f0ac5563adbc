"""The settings of a private Ray, which a run starts for itself: port, directory, object store."""

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

import ray
from ray._raylet import DASHBOARD_AGENT_LISTEN_PORT_NAME, persist_port  # type: ignore[attr-defined]

from actors.cluster.machine import MIN_STORE, SHARED_MEMORY, free_shared_memory, object_store_size
from rayfed_ssl.machine.resources import free_memory

PORT = "RAY_GCS_SERVER_PORT"
"""Where Ray reads the port of a head that it starts: while it waits for a port of its own choice it blocks all threads."""

QUIET = {
    "enable_metrics_collection": False,
    "task_events_report_interval_ms": 0,
    "raylet_report_resources_period_milliseconds": 1000,
    "raylet_check_gc_period_milliseconds": 1000,
    "kill_idle_workers_interval_ms": 2000,
    "gcs_pull_resource_loads_period_milliseconds": 10000,
}
"""Reports of a private Ray that nobody reads, and checks of what one run hardly changes: half a percent of two cores."""

PRELOADED: dict[str, Any] = {
    "preload_python_modules": ["actors.worker_imports"],
    "num_workers_soft_limit": 0,
    "idle_worker_killing_time_threshold_ms": 60_000,
}
"""Workers import before they are asked, and end after a minute without work; else Ray would keep one for each core."""


@contextmanager
def exported(name: str, value: str) -> Iterator[None]:
    """Set a variable that Ray reads while it starts, unless the user has set it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


AGENT_PORTS = ("metrics_agent_port", "runtime_env_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
"""Where the agents of a raylet listen. It dies if it does not learn of one within 15 s, in which agents on a busy machine
have not been imported yet: so all are chosen beforehand."""


def free_ports(number: int) -> list[int]:
    """Find ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for free in sockets:
            free.bind(("", 0))
        return [free.getsockname()[1] for free in sockets]


def options(directory: Path, num_cpus: int, num_workers: int | None = None) -> dict[str, Any]:
    """Give the arguments of `ray.init` that start a Ray with this directory and these numbers of cores and of workers.

    So many workers import at once what actors need, and those that are none within a minute end; None leaves it to Ray.

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
        "num_cpus": num_cpus,
        "include_dashboard": False,
        "object_store_memory": object_store_size(free_memory()),
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": str(directory),
        "_system_config": QUIET if num_workers is None else QUIET | PRELOADED,
    }


@contextmanager
def needed_processes(num_workers: int | None) -> Iterator[None]:
    """Let `ray.init` start so many workers if not None, and no process for a dashboard, for logs and for autoscaling.

    It has no settings for these: it would start a worker for each core, and wait for the dashboard's process; nor for the
    ports of agents, which are chosen here.
    """
    services: Any = ray._private.services
    start_raylet, ports = services.start_raylet, dict(zip(AGENT_PORTS, free_ports(len(AGENT_PORTS)), strict=True))
    start_process, flag = services.start_ray_process, "--num_prestart_python_workers="

    def start_fewer(command: list[str], *arguments: Any, **options: Any) -> Any:
        if num_workers is not None:
            command = [f"{flag}{num_workers}" if text.startswith(flag) else text for text in command]
        return start_process(command, *arguments, **options)

    @wraps(start_raylet)
    def start_with_ports(*given: Any, **more: Any) -> Any:
        arguments = signature(start_raylet).bind(*given, **more | ports).arguments
        session, node = arguments["session_dir"], arguments["node_id"]
        persist_port(session, node, DASHBOARD_AGENT_LISTEN_PORT_NAME, ports["dashboard_agent_listen_port"])
        return start_raylet(**arguments)

    changed: list[tuple[Any, str, Any]] = [
        (ray._private.node.Node, name, lambda self, **_: None)
        for name in ("start_api_server", "start_log_monitor", "start_monitor")
    ]
    changed.append((services, "start_ray_process", start_fewer))
    changed.append((services, "start_raylet", start_with_ports))
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in changed]
    for owner, name, value in changed:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in originals:
            setattr(owner, name, value)
