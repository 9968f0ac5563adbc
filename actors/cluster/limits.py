"""What processes here may use of this machine, within a container's limits."""

import os
from pathlib import Path

import psutil

CONTROL_GROUP = Path("/sys/fs/cgroup")


def cores(group: Path = CONTROL_GROUP) -> int:
    """Count the cores that this process may use; a container's quota is rounded down, as Ray does."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _words(group / "cpu.max") or _words(group / "cpu/cpu.cfs_quota_us") + _words(
        group / "cpu/cpu.cfs_period_us"
    )
    limited = len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0
    return max(1, min(usable, int(quota[0]) // int(quota[1]))) if limited else usable


def free_memory(group: Path = CONTROL_GROUP) -> int:
    """Count the bytes that processes here may still take; of a container's, file caches do not count as taken."""
    free = int(psutil.virtual_memory().available)
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, taken = _words(group / limit), _words(group / used)
        if most and most[0].isdigit() and taken:
            words = _words((group / used).with_name("memory.stat"))
            cached = int(words[words.index(cache) + 1]) if cache in words else 0
            free = min(free, int(most[0]) - int(taken[0]) + cached)
    return max(0, free)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
