"""Weighted means of weights: one order of summation, whoever computes them and however many threads it takes."""

import operator
from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from rayfed_ssl.trees import Weights, groups, join

PIECE = 1 << 17
"""Numbers that are summed at once: a piece of the sum and of a summand in float64 stay in the processor's cache."""


def ordered_sum(values: Iterable[float]) -> float:
    """Add numbers one after the other; the bits of the built-in `sum` depend on the version: 3.12 compensates rounding."""
    return reduce(operator.add, values, 0.0)


class WeightedMean:
    """A running weighted mean of weights, so that several can be computed in one pass; it holds no summand.

    Sums are float64 in the order given and rounded once at the end, so that the mean of one tree is that tree, bit for
    bit. Integer buffers (batch-norm's step counters) are averaged and rounded to the nearest integer.
    """

    def __init__(self) -> None:
        self._form: dict[str, tuple[torch.dtype, torch.Size]] | None = None
        self._groups: list[list[str]] = []
        self._sums: list[Tensor] = []
        self._total = 0.0

    @torch.no_grad()
    def add(self, factor: float, weights: Weights) -> None:
        """Add a summand.

        Raises:
            ValueError: It has other names, shapes or types than the first.
        """
        form = {name: (value.dtype, value.shape) for name, value in weights.items()}
        if self._form is None:
            names = list(weights)
            self._form, self._groups = form, [[names[i] for i in group] for group in groups(weights.values())]
            self._sums = [join([weights[name] for name in group]).double() * factor for group in self._groups]
        elif form != self._form:
            raise ValueError("weights of different models cannot be averaged")
        else:
            for total, group in zip(self._sums, self._groups, strict=True):
                _add_scaled(total, join([weights[name] for name in group]), factor)
        self._total += factor

    @torch.no_grad()
    def result(self) -> Weights:
        """Compute sum_k p_k w_k / sum_k p_k; nothing can be added afterwards.

        Raises:
            ValueError: Nothing to average, or the factors sum to zero.
        """
        if self._form is None or self._total <= 0:
            raise ValueError("there is nothing to average: no client sent weights with a positive factor")
        means: Weights = {}
        for total, group in zip(self._sums, self._groups, strict=True):
            parts = total.div_(self._total).split([self._form[name][1].numel() for name in group])
            means |= {name: part.view(self._form[name][1]) for name, part in zip(group, parts, strict=True)}
        return {
            name: (means[name] if dtype.is_floating_point else means[name].round_()).to(dtype, copy=True)
            for name, (dtype, _) in self._form.items()
        }


def _add_scaled(total: Tensor, value: Tensor, factor: float) -> None:
    """Add factor times value to a sum, in place, one rounding after the other: a fused step would round once."""
    scaled = total.new_empty(min(PIECE, total.numel()))
    for part, summand in zip(total.split(PIECE), value.split(PIECE), strict=True):
        part.add_(scaled[: len(part)].copy_(summand).mul_(factor))


def weighted_mean(weighted: Iterable[tuple[float, Weights]]) -> Weights:
    """Average weights, sum_k p_k w_k / sum_k p_k, holding one summand at a time.

    Raises:
        ValueError: Nothing to average, the factors sum to zero, or the weights are of different models.
    """
    mean = WeightedMean()
    for factor, weights in weighted:
        mean.add(factor, weights)
    return mean.result()
