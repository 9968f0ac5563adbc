"""The settings of a private Ray, which a run starts for itself: directory, object store, workers."""

import warnings
from pathlib import Path
from typing import Any

from actors.cluster.machine import MIN_STORE, SHARED_MEMORY, free_shared_memory, object_store_size
from rayfed_ssl.resources import free_memory

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


STARTED_AT_ONCE = "worker_maximum_startup_concurrency"
"""Workers that Ray starts at a time: of one for each core that it starts with, it leaves out what goes beyond."""


def options(directory: Path, num_cpus: int, num_workers: int | None = None) -> dict[str, Any]:
    """Give the arguments of `ray.init` that start a Ray with this directory and these numbers of cores and of workers.

    So many workers, and no more than cores, import at once what actors need; those that are none within a minute end.
    None leaves it to Ray, which starts one for each core.

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
        "_system_config": QUIET if num_workers is None else QUIET | PRELOADED | {STARTED_AT_ONCE: num_workers},
    }
