"""How a device captures the work of a function: CUDA graphs."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Protocol, TypeAlias

import torch

Replay: TypeAlias = Callable[[], object]
"""Runs captured work again, on the same tensors."""


class Graphs(Protocol):
    """Captures work on a device."""

    def pool(self) -> Any:
        """Make a pool of memory for captures that never run at the same time and leave nothing in it."""

    def capture(self, run: Callable[[], None], pool: Any) -> Replay:
        """Record the work of a function without running it; RuntimeError where that cannot be."""

    def waits(self) -> AbstractContextManager[list[str]]:
        """List what within the block makes the host wait for the device, once the block ends."""

    def is_full(self) -> bool:
        """Whether half of the memory that this process may take is taken, after what is unused was given back."""


class CudaGraphs:
    """CUDA graphs on the current stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pool(self) -> Any:
        """Make a memory pool."""
        return torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], None], pool: Any) -> Replay:
        """Record kernels; generators of the device advance in replays as they do in eager steps."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
            run()
        return graph.replay

    @contextmanager
    def waits(self) -> Iterator[list[str]]:
        """List operations that torch knows to wait."""
        found: list[str] = []
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield found
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        for warning in caught:
            if "synchronizing" in str(warning.message):
                found.append(str(warning.message).splitlines()[0])
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    def is_full(self) -> bool:
        """Compare what the allocator has reserved with the process's share of the device."""
        share = torch.cuda.get_per_process_memory_fraction(self._device)
        limit = share * torch.cuda.get_device_properties(self._device).total_memory / 2
        if torch.cuda.memory_reserved(self._device) > limit:
            torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device) > limit


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run on a stream of its own, as capturing wants it; in order with what came before and what comes after."""
    if device.type != "cuda":
        yield
        return
    stream, outer = _stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outer.wait_stream(stream)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all local trainings: memory and workspaces of libraries are kept by stream."""
    return torch.cuda.Stream(device)
