"""Weighted means of weights: one order of summation, whoever computes them and however many threads it takes."""

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from rayfed_ssl.environment import compute_threads
from rayfed_ssl.trees import Weights

PIECE = 1 << 17
"""Numbers that are summed at once: a piece of the sum and of a summand in float64 stay in the processors' caches."""

SMALL = 1 << 16
"""Fewer numbers take less time than the calls that add them: such tensors are joined."""

MAX_WAITING = 8
"""Summands that are added in one pass over the sums, which then leave the cache once for all of them."""

MAX_WAITING_BYTES = 1 << 28
"""Bytes of summands that may wait for others."""

THREADS = min(4, os.cpu_count() or 1)
"""Threads that sum; clients wait for the server then, so their cores are free. All is elementwise: no bit depends on it."""

JOBS_PER_THREAD = 32
"""Pieces, 16 MB of weights, from which another thread saves more time than waiting for the interpreter's lock takes."""

_waiting_bytes = MAX_WAITING_BYTES


@contextmanager
def holding(nbytes: int) -> Iterator[None]:
    """Limit the bytes of summands that wait inside; no bit depends on it."""
    global _waiting_bytes  # noqa: PLW0603 (means are made inside methods, which know nothing of where uploads lie)
    before, _waiting_bytes = _waiting_bytes, min(nbytes, MAX_WAITING_BYTES)
    try:
        yield
    finally:
        _waiting_bytes = before


def ordered_sum(values: Iterable[float]) -> float:
    """Add numbers one after the other; the bits of the built-in `sum` depend on the version: 3.12 compensates rounding."""
    return reduce(operator.add, values, 0.0)


Form = dict[str, tuple[torch.dtype, torch.Size, torch.device]]


@dataclass(frozen=True)
class _Block:
    """Tensors that lie one after the other: one large one, or several small ones of one type.

    Attributes:
        names: The tensors.
        sizes: Numbers in each.
        total: Their sum, float64.
        joined: Buffer for a summand's numbers if they are several.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    total: Tensor
    joined: Tensor

    def add(self, terms: Sequence[tuple[float, Weights]], is_begun: bool, start: int) -> None:
        """Add factor times weights to the piece at `start`, in the order given, or begin with the first."""
        total = self.total[start : start + PIECE]
        scaled = torch.empty_like(total)
        for number, (factor, weights) in enumerate(terms):
            values = self._values(weights)[start : start + PIECE]
            if is_begun or number:
                total.add_(scaled.copy_(values).mul_(factor))
            else:
                total.copy_(values).mul_(factor)

    def _values(self, weights: Weights) -> Tensor:
        if len(self.names) == 1:
            return weights[self.names[0]].view(-1)
        return torch.cat([weights[name].view(-1) for name in self.names], out=self.joined)


class WeightedMean:
    """A running weighted mean of weights, so that several can be computed in one pass.

    Sums are float64 in the order given and rounded once at the end, so that the mean of one tree is that tree, bit for
    bit. Integer buffers (batch-norm's step counters) are averaged and rounded to the nearest integer.
    """

    def __init__(self) -> None:
        self._form: Form | None = None
        self._blocks: list[_Block] = []
        self._total = 0.0
        self._waiting: list[tuple[float, Weights]] = []
        self._bytes_left = _waiting_bytes

    def add(self, factor: float, weights: Weights) -> None:
        """Add a summand. It is read when a few have come, so nobody may write to it before `result`.

        Raises:
            ValueError: It has other names, shapes or types than the first.
        """
        form = {name: (value.dtype, value.shape, value.device) for name, value in weights.items()}
        if self._form is None:
            self._form = form
        if form != self._form:
            raise ValueError("weights of different models cannot be averaged")
        self._total += factor
        self._waiting.append((factor, {name: value.detach().contiguous() for name, value in weights.items()}))
        self._bytes_left -= sum(value.nbytes for value in weights.values())
        if len(self._waiting) == MAX_WAITING or self._bytes_left <= 0:
            self._add_up()

    def result(self) -> Weights:
        """Compute sum_k p_k w_k / sum_k p_k; nothing can be added afterwards.

        Raises:
            ValueError: Nothing to average, or the factors sum to zero.
        """
        if self._form is None or self._total <= 0:
            raise ValueError("there is nothing to average: no client sent weights with a positive factor")
        self._add_up()
        mean = {
            name: torch.empty(shape, dtype=dtype, device=device) for name, (dtype, shape, device) in self._form.items()
        }
        _side_by_side([partial(_divide, block, self._total, mean) for block in self._blocks])
        return mean

    def _add_up(self) -> None:
        assert self._form is not None, "something was added"
        is_begun, self._blocks = bool(self._blocks), self._blocks or _blocks(self._form)
        _side_by_side(
            [
                partial(block.add, self._waiting, is_begun, start)
                for block in self._blocks
                for start in range(0, len(block.total), PIECE)
            ]
        )
        self._waiting, self._bytes_left = [], _waiting_bytes


def _blocks(form: Form) -> list[_Block]:
    """Allocate sums: a large tensor has a block of its own, small ones share one."""
    groups: list[list[str]] = []
    open_groups: dict[tuple[torch.dtype, torch.device], tuple[list[str], int]] = {}
    for name, (dtype, shape, device) in form.items():
        if shape.numel() >= SMALL:
            groups.append([name])
            continue
        group, filled = open_groups.get((dtype, device), ([], 0))
        if not group or filled + shape.numel() > PIECE:
            group, filled = [], 0
            groups.append(group)
        group.append(name)
        open_groups[dtype, device] = group, filled + shape.numel()
    blocks = []
    for group in groups:
        dtype, _, device = form[group[0]]
        sizes = tuple(form[name][1].numel() for name in group)
        total = torch.empty(sum(sizes), dtype=torch.float64, device=device)
        blocks.append(
            _Block(tuple(group), sizes, total, total.new_empty(sum(sizes) if len(group) > 1 else 0, dtype=dtype))
        )
    return blocks


def _divide(block: _Block, by: float, mean: Weights) -> None:
    """Turn a block's sums into means of the summands' type, rounded to the nearest."""
    for name, total in zip(block.names, block.total.split(block.sizes), strict=True):
        for part, values in zip(total.split(PIECE), mean[name].view(-1).split(PIECE), strict=True):
            part.div_(by)
            values.copy_(part if values.dtype.is_floating_point else part.round_())


def _side_by_side(jobs: Sequence[Callable[[], None]]) -> None:
    """Run jobs in threads that wait without computing, unlike torch's own, which take the cores of other processes."""
    threads = min(THREADS, len(jobs) // JOBS_PER_THREAD)
    with compute_threads(1):
        if threads < 2:
            for job in jobs:
                job()
        else:
            with ThreadPoolExecutor(threads) as pool:
                for done in [pool.submit(job) for job in jobs]:
                    done.result()


def weighted_mean(weighted: Iterable[tuple[float, Weights]]) -> Weights:
    """Average weights, sum_k p_k w_k / sum_k p_k, holding a few summands at a time (see `WeightedMean`).

    Raises:
        ValueError: Nothing to average, the factors sum to zero, or the weights are of different models.
    """
    mean = WeightedMean()
    for factor, weights in weighted:
        mean.add(factor, weights)
    return mean.result()
