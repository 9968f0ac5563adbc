"""The resources of a machine within a container's limits, and the size of Ray's object store on it."""

import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rayfed_ssl.resources import cores, free_memory

SHARED_MEMORY = Path("/dev/shm")
"""Where Ray keeps its object store."""

OBJECT_STORE_SHARE = 0.3
"""Fraction of the free memory that a private Ray's object store may use before it spills to disk."""

SHARED_MEMORY_SHARE = 0.9
"""Fraction of the free shared memory that the object store may use."""

MIN_STORE = 100e6
"""Bytes. With less shared memory the object store is on disk; Ray accepts no store under 75 MB."""

MAX_STORE_ON_DISK = 2e9
"""Bytes of an object store on disk at most; a larger one would only be spilled from one file to another."""

DISK_NEEDED = 200e6
"""Bytes of disk that Ray's logs, sockets and an object store on disk need."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: what Ray may assign, the bytes of its object store, and of other memory (0: unknown)."""

    id: str
    cpus: float
    gpus: float = 0.0
    store: float = 0.0
    memory: float = 0.0

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Node":
        """Read an entry of `ray.nodes()`."""
        names = ("CPU", "GPU", "object_store_memory", "memory")
        return cls(entry["NodeID"], *(entry["Resources"].get(name, 0.0) for name in names))


def this_machine() -> Node:
    """Describe this machine as a private Ray would see it."""
    memory = free_memory()
    store = object_store_size(memory, Path(tempfile.gettempdir()))
    return Node("this machine", cores(), torch.cuda.device_count(), store, max(0, memory - store))


def free_shared_memory() -> float:
    """Count the bytes of shared memory that the object store may use."""
    return shutil.disk_usage(SHARED_MEMORY).free * SHARED_MEMORY_SHARE if SHARED_MEMORY.is_dir() else math.inf


def object_store_size(memory: int, directory: Path) -> int:
    """Choose the bytes of a private Ray's object store from the free memory and, if it is on disk, Ray's directory."""
    limit = free_shared_memory()
    if limit < MIN_STORE:
        limit = min(shutil.disk_usage(directory).free - DISK_NEEDED, MAX_STORE_ON_DISK)
    return int(max(min(memory * OBJECT_STORE_SHARE, limit), MIN_STORE))
