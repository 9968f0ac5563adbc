"""What a process does with the memory of large tensors."""

import ctypes
import resource

import pytest
import torch

from rayfed_ssl.machine.environment import keep_memory


def faults() -> int:
    """Pages that were faulted in while a tensor of 64 MB was filled, which has 16,384 of 4 kB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone has mallopt")
def test_large_tensors_come_to_reuse_the_memory_of_freed_ones():
    keep_memory()
    assert min(faults() for _ in range(30)) < 1000
