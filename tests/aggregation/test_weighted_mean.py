"""Weighted means: the order of summation, and what cannot be averaged."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl import trees
from rayfed_ssl.aggregation.weighted_mean import PIECE, ordered_sum, weighted_mean
from rayfed_ssl.evaluation import representation_metrics
from rayfed_ssl.methods import fedsc
from rayfed_ssl.trees import Weights
from tests.tensors import seeded

SHAPES = {
    "scalar": (),
    "empty": (0, 3),
    "small": (3, 5),
    "images": (4, 3, 8, 8),
    "a piece": (PIECE,),
    "pieces": (2 * PIECE + 7,),
}


def drawn(seed: int) -> Weights:
    random = seeded(seed)
    weights = {name: torch.randn(shape, generator=random) * 10.0 ** (seed % 5) for name, shape in SHAPES.items()}
    weights["images"] = weights["images"].to(memory_format=torch.channels_last)
    weights["turned"] = torch.randn(200, 300, generator=random).T
    weights["half"] = torch.randn(40, generator=random).half()
    weights["steps"] = torch.tensor(2**53 - seed)
    weights["counts"] = torch.randint(0, 1000, (50,), generator=random)
    return weights


def one_by_one(parts: list[tuple[float, Weights]]) -> Weights:
    """The definition, in numpy: each number's summands one after the other in float64, rounded once."""
    mean = {}
    for name, like in parts[0][1].items():
        total = None
        for factor, weights in parts:
            term = weights[name].numpy().astype(np.float64) * factor
            total = term if total is None else total + term
        total = np.asarray(total / np.add.accumulate([factor for factor, _ in parts])[-1])
        rounded = total if like.dtype.is_floating_point else np.rint(total)
        mean[name] = torch.from_numpy(np.asarray(rounded, like.numpy().dtype)).reshape(like.shape)
    return mean


@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_mean_has_the_bits_of_adding_one_summand_after_the_other(number: int):
    parts = [(1.0 + 0.1 * seed, drawn(seed)) for seed in range(number)]
    assert trees.digest(weighted_mean(parts)) == trees.digest(one_by_one(parts))


TENTHS = [0.1] * 10


def length() -> float:
    return representation_metrics.Drift().add({str(i): torch.tensor([v]) for i, v in enumerate([1e8, 1.0, 1.0, 3.0])})


def mean_cosine() -> float:
    drift, update = representation_metrics.Drift(), {str(i): torch.tensor([1.0 / (i + 3)]) for i in range(40)}
    for added in (update, {name: 1 - value for name, value in update.items()}):
        drift.add(added)
    return drift.cosine(update)


def others() -> float:
    halfway = {k: torch.tensor([1 + k % 2 * 2.0**-23]) for k in range(11)}  # between two float32
    mean = fedsc.mean_of_others(halfway, dict(enumerate([*TENTHS, 0.1])), 10)
    assert mean is not None
    return float(mean)


def compensated(values: Any) -> Any:
    """What the built-in sum of floats gives since Python 3.12."""
    listed = list(values)
    return math.fsum(listed) if all(isinstance(value, float) for value in listed) else sum(listed)


@pytest.mark.parametrize("value", [length, mean_cosine, others])
def test_no_bit_depends_on_the_built_in_sum(monkeypatch: pytest.MonkeyPatch, value: Callable[[], float]):
    before = value()
    for module in (representation_metrics, fedsc):
        monkeypatch.setattr(module, "sum", compensated, raising=False)
    assert value() == before


def test_numbers_are_added_one_after_the_other():
    assert (ordered_sum(TENTHS), math.fsum(TENTHS)) == (0.9999999999999999, 1.0)
    assert ordered_sum([]) == 0.0


def test_weights_that_carry_gradients_are_averaged():
    weights = {"w": torch.ones(3, requires_grad=True)}
    assert not weighted_mean([(1.0, weights), (2.0, weights)])["w"].requires_grad


def test_negative_zeros_stay():
    zeros = {"w": torch.full((5,), -0.0)}
    assert trees.digest(weighted_mean([(2.0, zeros)])) == trees.digest(zeros)


@pytest.mark.parametrize(
    "other",
    [{"v": torch.ones(2)}, {"w": torch.ones(3)}, {"w": torch.ones(2).double()}, {}],
    ids=["name", "shape", "type", "nothing"],
)
def test_weights_of_different_models_are_refused(other: Weights):
    with pytest.raises(ValueError, match="different models"):
        weighted_mean([(1.0, {"w": torch.ones(2)}), (1.0, other)])


def test_weighted_mean_does_not_write_to_its_input():
    parts = [(2.0, {"w": torch.ones(3, dtype=torch.float64)}), (1.0, {"w": torch.zeros(3, dtype=torch.float64)})]
    before = [trees.digest(weights) for _, weights in parts]
    weighted_mean(parts)
    assert [trees.digest(weights) for _, weights in parts] == before


@pytest.mark.parametrize("parts", [[], [(0.0, {"w": torch.ones(1)})]], ids=["nobody", "weight zero"])
def test_a_mean_of_nothing_is_refused(parts: list[Any]):
    with pytest.raises(ValueError, match="nothing to average"):
        weighted_mean(parts)
