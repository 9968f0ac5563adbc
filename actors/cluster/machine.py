"""The resources of a machine within a container's limits, and the size of Ray's object store on it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfed_ssl.machine.resources import cores, free_memory

SHARED_MEMORY = Path("/dev/shm")
"""Where Ray keeps its object store."""

OBJECT_STORE_SHARE = 0.3
"""Fraction of the free memory that a private Ray's object store may use before it spills to disk."""

SHARED_MEMORY_SHARE = 0.9
"""Fraction of the free shared memory that the object store may use."""

MIN_STORE = 100e6
"""Bytes. With less shared memory Ray puts the object store on disk; it accepts no store under 75 MB."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: what Ray may assign, and bytes of its object store, of other memory, of its smallest GPU.

    They are 0 where they are unknown, as a GPU's are on other machines than this one.
    """

    id: str
    cpus: float
    gpus: float = 0.0
    store: float = 0.0
    memory: float = 0.0
    gpu_memory: float = 0.0

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Node":
        """Read an entry of `ray.nodes()`."""
        names = ("CPU", "GPU", "object_store_memory", "memory")
        return cls(entry["NodeID"], *(entry["Resources"].get(name, 0.0) for name in names))


def this_machine(memory: int | None = None) -> Node:
    """Describe this machine as a private Ray would see it that finds so many bytes free; None counts them."""
    import torch  # a start of Ray does without it

    memory = free_memory() if memory is None else memory
    store = object_store_size(memory)
    return Node("this machine", cores(), torch.cuda.device_count(), store, max(0, memory - store), gpu_memory())


def gpu_memory() -> int:
    """Count the bytes of this machine's smallest GPU, in use or not; 0 without one."""
    import torch

    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return min((gpu.total_memory for gpu in gpus), default=0)


def free_shared_memory() -> float:
    """Count the bytes of shared memory that are free."""
    return shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0.0


def object_store_size(memory: int) -> int:
    """Choose the bytes of a private Ray's object store from the free memory."""
    return int(max(min(memory * OBJECT_STORE_SHARE, free_shared_memory() * SHARED_MEMORY_SHARE), MIN_STORE))
