"""The Ray layer: client actors, a server actor, and an executor with the same results as the local one.

from actors import run

result = run(Config.load("digits"))
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run` Ray would pack the working directory and start every actor through uv again, half a minute each.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Without it raylet messages reach stdout even with log_to_driver=False, and break JSON output.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "PYTHON worker processes have been started|A worker died or was killed"
    "|has been marked dead|Raylet is terminated",
    # Ray's default of 15 lets any other process on the machine starve the actors.
    "RAY_worker_niceness": "0",
    # Large arrays on large pages of memory that stays with the process: fewer faults, and up to a third of the time of a
    # step that changes 60 MB of state.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=1073741824",
    # Freed uploads leave the object store within milliseconds; the default of a second let 3 GB of them pile up.
    "RAY_free_objects_period_milliseconds": "20",
    "RAY_free_objects_batch_size": "1",
    # Ray's agent measures every process of the machine for a dashboard.
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
    # On a busy machine Ray's agents start slowly.
    "RAY_agent_register_timeout_ms": "120000",
    # Ray would print a traceback for each result of a failed call that nobody reads.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # The server actor reserves no GPU and yet distils on one, so its CUDA_VISIBLE_DEVICES must stay as it is.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Settings that Ray reads from the environment while it is imported or started; the user's own take precedence."""

for _name, _value in RAY_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

# A token that is here before is that of a cluster. Ray would not send it, and reads this while it is imported.
if "ray" not in sys.modules and (
    {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or Path("~/.ray/auth_token").expanduser().is_file()
):
    os.environ.setdefault("RAY_AUTH_MODE", "token")

_EXPORTS = {
    "ActorError": "actors.errors",
    "ClusterError": "actors.errors",
    "RayExecutor": "actors.executor",
    "resume": "actors.runs",
    "run": "actors.runs",
}

__all__ = ["RAY_ENVIRONMENT", "ActorError", "ClusterError", "RayExecutor", "resume", "run"]


def __getattr__(name: str) -> Any:
    """Import lazily: Ray takes half a second, and must not be loaded before the settings above."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'actors' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value
