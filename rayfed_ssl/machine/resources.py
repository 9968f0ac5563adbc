"""Cores and memory of this machine within a container's limits; loads no torch."""

import os
from pathlib import Path

import psutil

CONTROL_GROUP = Path("/sys/fs/cgroup")


def cores(group: Path = CONTROL_GROUP) -> int:
    """Count the cores that this process may use; a container's quota is rounded down, as Ray does."""
    usable, quota = len(os.sched_getaffinity(0)), _fields(group / "cpu.max")
    is_limited = len(quota) == 2 and quota[0].isdigit()
    return max(1, min(usable, int(quota[0]) // int(quota[1]))) if is_limited else usable


def free_memory(group: Path = CONTROL_GROUP) -> int:
    """Count the bytes that processes may still allocate; a container's file cache counts as free."""
    free = int(psutil.virtual_memory().available)
    maximum, current = _fields(group / "memory.max"), _fields(group / "memory.current")
    if maximum and maximum[0].isdigit() and current:
        statistics = _fields(group / "memory.stat")
        cached = int(statistics[statistics.index("inactive_file") + 1]) if statistics else 0
        free = min(free, int(maximum[0]) - int(current[0]) + cached)
    return max(0, free)


def _fields(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
