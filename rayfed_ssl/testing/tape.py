"""A stand-in for CUDA graphs on the pretend device: a tape of operations that runs again without Python."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rayfed_ssl.testing.pretend_device import COPIES, INDEXING, PretendDevice, PretendTensor
from rayfed_ssl.training.graphs import Replay


class Tape(TorchDispatchMode):
    """Records operations on the device with the tensors that they read and wrote; those on the CPU happen once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record it.

        Raises:
            RuntimeError: It draws by a generator of the host, or copies between CPU and device.
        """
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(leaf, torch.Generator) for leaf in leaves):
            raise RuntimeError(f"{function}: a draw that replays would not repeat")
        result = function(*args, **kwargs)
        tensors = [leaf for leaf in (*leaves, *tree_leaves(result)) if isinstance(leaf, torch.Tensor)]
        there = [isinstance(tensor, PretendTensor) for tensor in tensors]
        if any(there):
            moved = function in COPIES or (
                function in INDEXING and any(t.dim() for t in tensors if type(t) is torch.Tensor)
            )
            if moved and not all(there):
                raise RuntimeError(f"{function}: a copy between CPU and device")
            self.operations.append((function, args, kwargs, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Run them again, without Python: each writes its result to where its first result is."""
        for function, args, kwargs, result in self.operations:
            if torch.Tag.inplace_view in function.tags or function.is_view:
                continue
            fresh = function(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(fresh), strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    old.copy_(new)


class Tapes:
    """Captures on the pretend device."""

    def __init__(self, device: PretendDevice) -> None:
        self._device = device

    def pool(self) -> None:
        """Need no memory of its own."""

    def capture(self, run: Callable[[], None], pool: None) -> Replay:
        """Record work; a graph does not run while it is captured, here it does, so the first replay has been done."""
        with Tape() as tape:
            run()
        done = iter([True])
        return lambda: next(done, False) or tape.replay()

    @contextmanager
    def waits(self) -> Iterator[list[str]]:
        """List operations that waited."""
        found: list[str] = []
        before = self._device.waits.copy()
        yield found
        found += [f"{name} waits for the device" for name in self._device.waits - before]

    def is_full(self) -> bool:
        """Have memory for all."""
        return False
