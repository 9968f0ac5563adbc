"""L-DAWA's mean of layers against naive loops."""

import pytest
import torch

from rayfed_ssl.methods.ldawa import angle, layerwise_mean
from rayfed_ssl.trees import Weights, digest
from tests.methods.ldawa import naive
from tests.tensors import EXACT

SHAPES = {"conv": (3, 2, 3, 3), "bias": (4,), "fc": (2, 5), "var": (4,)}


def weights(seed: int, near: Weights | None = None) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
    return drawn if near is None else {name: near[name] + 0.7 * value for name, value in drawn.items()}


def mean_of(trees: list[Weights], reference: Weights, renormalize: bool = False) -> Weights:
    return layerwise_mean(trees, reference, renormalize)[0]


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_layers_are_scaled_by_their_cosine(number: int, renormalize: bool, near: bool):
    reference = weights(0)
    trees = [weights(seed, reference if near else None) for seed in range(1, number + 1)]
    mean = mean_of(trees, reference, renormalize)
    for name in SHAPES:
        expected = naive.layer(
            [tree[name].flatten().tolist() for tree in trees],
            reference[name].flatten().tolist(),
            renormalize=renormalize,
        )
        torch.testing.assert_close(
            mean[name].flatten(), torch.tensor(expected, dtype=torch.float64), rtol=EXACT, atol=EXACT
        )


def test_cosines_are_cut_off_at_one():
    for seed in range(200):
        vector = torch.randn(7, generator=torch.Generator().manual_seed(seed))
        assert abs(angle(vector, vector * 3)) <= 1
        assert abs(angle(vector, -vector)) <= 1


@pytest.mark.parametrize("renormalize", [False, True])
def test_a_layer_without_direction_is_averaged_as_it_is(renormalize: bool):
    zero, some = {"w": torch.zeros(3)}, {"w": torch.tensor([1.0, 2.0, 3.0])}
    torch.testing.assert_close(mean_of([some, zero], zero, renormalize)["w"], some["w"] / 2)
    torch.testing.assert_close(mean_of([some, zero], some, renormalize)["w"], some["w"] / 2)


def test_a_layer_at_right_angles_vanishes_or_stays_when_renormalized():
    reference, across = {"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}
    assert torch.equal(mean_of([across], reference)["w"], torch.zeros(2))
    assert torch.equal(mean_of([across], reference, renormalize=True)["w"], reference["w"])


def test_scalars_and_integers_are_averaged_without_scaling():
    reference = {"steps": torch.tensor(1), "scalar": torch.tensor(-1.0), "table": torch.tensor([1, -1])}
    trees = [
        {"steps": torch.tensor(4), "scalar": torch.tensor(2.0), "table": torch.tensor([4, 6])},
        {"steps": torch.tensor(7), "scalar": torch.tensor(4.0), "table": torch.tensor([6, 8])},
    ]
    mean = mean_of(trees, reference)
    assert (int(mean["steps"]), mean["steps"].dtype) == (6, torch.int64)  # 5.5 is rounded to the even neighbor
    assert float(mean["scalar"]) == 3
    assert mean["table"].tolist() == [5, 7]


def test_clients_that_have_not_moved_give_the_global_bits():
    reference = {name: value.float() for name, value in weights(3).items()} | {"steps": torch.tensor(5)}
    assert digest(mean_of([reference] * 3, reference)) == digest(reference)
    assert digest(mean_of([reference] * 3, reference, renormalize=True)) == digest(reference)


def test_a_round_without_uploads_is_refused():
    with pytest.raises(ValueError, match="L-DAWA has nothing to average"):
        mean_of([], weights(0))
