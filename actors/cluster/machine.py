"""This machine as Ray would see it: cores, memory and GPUs that a process may use, within a container's limits."""

import os
import tempfile
from pathlib import Path

import ray
import torch

from actors.cluster.connect import Node
from actors.cluster.limits import cores, free_memory
from actors.cluster.private_ray import store_of

__all__ = ["cores", "free_memory", "starts_own", "store_size", "this_machine"]


def this_machine() -> Node:
    """Describe this machine to those who place actors before a Ray of our own is there."""
    memory = free_memory()
    store = store_size(memory)
    return Node("this machine", cores(), torch.cuda.device_count(), store, max(0, memory - store))


def starts_own(address: str | None) -> bool:
    """Whether a run starts Ray on this machine, so that what it finds there can be known before."""
    return not ray.is_initialized() and (address or os.environ.get("RAY_ADDRESS") or "local") == "local"


def store_size(memory: int) -> int:
    """Work out the object store that a Ray of our own takes of so much free memory."""
    return store_of(memory, Path(tempfile.gettempdir())).size
