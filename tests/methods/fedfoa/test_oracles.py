"""FedFoA's relation matrices and mutual understanding against loops over Python floats."""

import math

import pytest
import torch
from torch import Tensor

from rayfed_ssl.aggregation.compression import from_triangle
from rayfed_ssl.methods.fedfoa import (
    Understanding,
    best_basis,
    factorize,
    filled,
    recreation_error,
)
from rayfed_ssl.models import Model
from tests.methods.fedfoa import naive
from tests.naive import unit
from tests.tensors import EXACT, rows

SHAPES = [(7, 3), (5, 4), (4, 4), (3, 5), (1, 3), (2, 1)]


def relation_of(num: int, dim: int, seed: int) -> Tensor:
    return factorize(filled(rows(num, dim, seed)))[1]


def no_model() -> Model:
    return Model(torch.nn.Identity(), torch.nn.Identity(), 1)


def close(first: Tensor, second: list[list[float]]) -> None:
    torch.testing.assert_close(first, torch.tensor(second, dtype=torch.float64), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_the_factors_are_gram_schmidts(num: int, dim: int):
    values = rows(num, dim, 1)
    basis, relation = factorize(filled(values))
    expected_basis, expected_relation = naive.gram_schmidt(values.tolist())
    close(basis[:num, : min(num, dim)], expected_basis)
    close(relation[:num], expected_relation)
    assert relation.shape == (dim, dim)
    assert not relation[num:].any(), "rows of zeros bring nothing new"


@pytest.mark.parametrize(("num", "dim"), SHAPES)
def test_the_best_basis_is_found_by_turning_pairs_of_rows(num: int, dim: int):
    values, other = rows(num, dim, 1), relation_of(dim + 2, dim, 2)
    ours = best_basis(*factorize(filled(values)), other)
    theirs = torch.tensor(naive.best_basis(values.tolist(), other.tolist()), dtype=torch.float64)
    # The angle is where a derivative vanishes, so rounding errors enter through their roots. Rows of zeros are free.
    torch.testing.assert_close(ours[:num], theirs[:num], rtol=0, atol=1e-7)
    expected = naive.recreation_error(values.tolist(), other.tolist())
    assert float(recreation_error(filled(values), ours, other)) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(("num", "dim"), [(6, 3), (4, 4), (3, 5)])
def test_holding_the_best_basis_constant_does_not_change_the_gradient(num: int, dim: int):
    """The envelope theorem, against central differences of the least error that the loops find."""
    values, other = rows(num, dim, 1).requires_grad_(), relation_of(dim + 2, dim, 2)
    basis = best_basis(*factorize(filled(values.detach())), other)
    recreation_error(filled(values), basis, other).backward()
    assert values.grad is not None
    step = 1e-5
    for i in range(num):
        for j in range(dim):
            ends = []
            for sign in (1, -1):
                moved = values.detach().clone()
                moved[i, j] += sign * step
                ends.append(naive.recreation_error(moved.tolist(), other.tolist()))
            # Central differences are off by step^2, and rounding by 1e-16 / step.
            assert float(values.grad[i, j]) == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


def test_only_clients_of_a_higher_trace_are_listened_to():
    values = rows(6, 3, 1)
    own = factorize(values)[1]
    others = [own * 0.5, own, relation_of(60, 3, 2), relation_of(50, 3, 3), relation_of(2, 3, 4)]
    expected = naive.regularization(values.tolist(), [other.tolist() for other in others], 0.25)
    listened = [other for other in others if float(other.trace()) > float(own.trace())]
    assert len(listened) == 2
    assert float(Understanding(others, 0.25)(no_model(), values)) == pytest.approx(expected, rel=EXACT)


def test_normalized_features_are_rows_of_unit_length():
    values = rows(6, 3, 1) * torch.tensor([[5.0], [0.1], [1.0], [2.0], [7.0], [0.3]], dtype=torch.float64)
    units = [unit(row) for row in values.tolist()]
    others = [relation_of(60, 3, 2), relation_of(50, 3, 3)]
    expected = naive.regularization(units, [other.tolist() for other in others], 0.25)
    assert expected > 0
    assert float(Understanding(others, 0.25, normalize=True)(no_model(), values)) == pytest.approx(expected, rel=EXACT)


def test_the_round_average_is_eq_12_over_batches_of_different_sizes():
    understanding, relations = Understanding([], 0.01), []
    for seed, num in enumerate((6, 5, 2)):
        values = rows(num, 3, seed)
        understanding(no_model(), values)
        relations.append(naive.gram_schmidt(values.tolist())[1])
    packed = understanding.mean()
    assert packed is not None
    expected = torch.tensor(naive.round_average(relations), dtype=torch.float64)
    torch.testing.assert_close(from_triangle(packed), expected.float(), rtol=1e-6, atol=1e-6)  # sent as float32


def test_a_round_without_steps_has_no_average():
    assert Understanding([], 0.01).mean() is None


DEGENERATE = {
    "zeros": torch.zeros(6, 4),
    "one sample": rows(1, 4, 1),
    "equal samples": rows(1, 4, 1).expand(6, 4),
    "a duplicate": rows(5, 4, 1)[[0, 1, 2, 3, 4, 4]],
    "equal columns": rows(6, 1, 1).expand(6, 4),
    "fewer samples than columns": rows(3, 4, 1),
    "tiny": rows(6, 4, 1) * 1e-30,
    "huge": rows(6, 4, 1) * 1e15,
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_features_have_a_finite_term_and_gradient(name: str):
    values = DEGENERATE[name].float().clone(memory_format=torch.contiguous_format).requires_grad_()
    others = [relation_of(9, 4, 2).float() * 1e16, torch.eye(4) * 1e16, torch.zeros(4, 4)]
    understanding = Understanding(others, 0.01)
    term = understanding(no_model(), values)
    assert bool(term.isfinite())
    assert term.requires_grad, "a client of a higher trace has been passed over"
    term.backward()
    assert values.grad is not None
    assert bool(values.grad.isfinite().all())
    packed = understanding.mean()
    assert packed is not None
    assert bool(packed.isfinite().all())


def test_perfect_understanding_has_a_finite_gradient():
    values, basis = torch.zeros(3, 2, requires_grad=True), torch.eye(3, 2)
    recreation_error(values, basis, torch.zeros(2, 2)).backward()
    assert torch.equal(values.grad, torch.zeros(3, 2))


def test_features_that_are_not_numbers_reach_the_loss_instead_of_an_svd():
    values = torch.full((3, 2), math.nan, requires_grad=True)
    assert float(Understanding([torch.eye(2)], 1.0)(no_model(), values).detach()) == 0
