"""Operations of one local step and waits for its device, by objective: what limits a GPU that is faster than Python.

A step is everything from one change of the weights to the next: batch, views, loss, backward pass, optimizer and the
objective's memory. Counted are

- aten: operations that torch dispatches for a step in bf16 and channels_last, as on a GPU, on the plain CPU, which makes
  the views of a large batch in several passes: with --batch 8 it makes one, as a GPU does;
- device: operations of the same step in fp32 on the pretend device. Some are none on a GPU: a tensor made empty for each
  batch-norm layer, which CUDA's does not need, and two `detach` for each result that autograd keeps, such as a ReLU's, which
  torch dispatches only while something counts;
- kernels: those of them that compute or copy something: neither views, `detach` included, nor tensors made empty;
- waits: how often the processor waits for the device, by copies to the CPU and shapes that depend on values;
- copies: how often it copies to the device.

    uv run python benchmarks/step_operations.py [--encoder resnet18 --batch 64 --size 32] [--by-name]
"""

import argparse
from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.data.view_recipes import VIEWS
from rayfed_ssl.models import Model
from rayfed_ssl.models.precision import Precision
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.seeds import generator
from rayfed_ssl.testing.pretend_device import DEVICE, PretendDevice
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Objective, StepOutput
from rayfed_ssl.training.optimizers import OPTIMIZERS
from rayfed_ssl.training.task import Task

aten = torch.ops.aten

EMULATED = frozenset({aten.convolution.default, aten.convolution_backward.default})
"""Operations that a CPU without bfloat16 takes minutes for."""


class Operations(TorchDispatchMode):
    """Counts operations by name; convolutions in bfloat16 are computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the operation and run it."""
        self.operations[str(op)] += 1
        if op not in EMULATED or args[0].dtype != torch.bfloat16:
            return op(*args, **(kwargs or {}))
        results = op(*(arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args))
        single = isinstance(results, torch.Tensor)
        narrow = [result if result is None else result.bfloat16() for result in ([results] if single else results)]
        return narrow[0] if single else tuple(narrow)


@dataclass(frozen=True)
class Counts:
    """What was counted until some point of a local training, or between two."""

    operations: Counter[str]
    waits: Counter[str]
    copies: int

    def since(self, earlier: "Counts") -> "Counts":
        """Count what came after an earlier point."""
        return Counts(self.operations - earlier.operations, self.waits - earlier.waits, self.copies - earlier.copies)


def second_step(objective: Objective, counter: Any, device: torch.device, options: argparse.Namespace) -> Counts:
    """Count the second of two steps, in which optimizers have their moments."""
    ends: list[Counts] = []

    class Watched(type(objective)):  # type: ignore[misc]
        def finish_step(self, context: Context, model: Model, state: nn.Module, output: StepOutput) -> None:
            super().finish_step(context, model, state, output)
            waits, copies = getattr(counter, "waits", Counter()), getattr(counter, "copies", 0)
            ends.append(Counts(counter.operations.copy(), waits.copy(), copies))

    on_cpu = device.type == "cpu"
    task = Task(
        encoder=options.encoder,
        channels=3,
        size=options.size,
        views=VIEWS[options.views],
        rounds=1,
        epochs=1,
        batch=options.batch,
        objective=Watched(**{field.name: getattr(objective, field.name) for field in fields(objective)}),
        optimizer=OPTIMIZERS[options.optimizer](),
        device=device,
        precision=Precision("bf16" if on_cpu else "fp32", channels_last=True),
        seed=0,
    )
    num = 2 * options.batch
    images = np.random.default_rng(0).integers(0, 256, (num, 3, options.size, options.size), dtype=np.uint8)
    with counter:
        data = Shard.of(images, np.arange(num), device, np.arange(num) % 10 if objective.needs_labels else None)
        task.fit(task.model(task.initial_weights()), data, generator(0))
    return ends[-1].since(ends[-2])


def main() -> None:
    """Print a line for each objective."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES), choices=list(OBJECTIVES))
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--views", default="flesd-cifar", choices=list(VIEWS))
    parser.add_argument("--optimizer", default="adam", choices=list(OPTIMIZERS))
    parser.add_argument("--by-name", action="store_true", help="list the device's operations and waits by name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'objective':<12}{'aten':>7}{'device':>8}{'kernels':>9}{'waits':>7}{'copies':>8}", flush=True)
    for name in options.objectives:
        objective = OBJECTIVES[name](**({"num_classes": 10} if name == "supervised" else {}))
        plain = second_step(objective, Operations(), torch.device("cpu"), options)
        there = second_step(objective, PretendDevice(), DEVICE, options)
        kernels = sum(count for op, count in there.operations.items() if not _launches_nothing(op))
        print(
            f"{name:<12}{plain.operations.total():>7,}{there.operations.total():>8,}{kernels:>9,}"
            f"{there.waits.total():>7}{there.copies:>8}",
            flush=True,
        )
        if options.by_name:
            print(f"  waits: {dict(there.waits)}\n  operations: {dict(there.operations.most_common())}", flush=True)


def _launches_nothing(name: str) -> bool:
    packet, _, overload = name.partition(".")
    op: OpOverload = getattr(getattr(aten, packet), overload)
    return op.is_view or packet.startswith(("empty", "new_empty")) or torch.Tag.inplace_view in op.tags


if __name__ == "__main__":
    main()
