"""FLESD's equations 4 to 10 against naive loops."""

import math

import pytest
import torch
from torch import Tensor

from rayfed_ssl.methods import FLESD, flesd
from tests import naive
from tests.tensors import unit_rows

EXACT = {"rtol": 1e-12, "atol": 1e-15}
"""float64 keeps 16 digits; sums of a dozen terms and exponents of up to 20 lose two or three. Absolute: for zeros."""

NUM_PUBLIC, DIMS = 7, (3, 5, 4)
"""P, and d_k of three clients, which need not agree."""

ANCHORS = torch.tensor([4, 0, 6, 2, 4])
QUERIES = torch.tensor([6, 1, 4])
"""The fourth sample is an anchor twice; the sixth and the fourth are query and anchor."""


def similarities() -> list[Tensor]:
    return [flesd.similarity(unit_rows(NUM_PUBLIC, dim, dim)) for dim in DIMS]


def ensembled(tau: float) -> Tensor:
    return flesd.ensemble(flesd.sharpen(matrix, tau) for matrix in similarities())


def matrix(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("dim", DIMS)
def test_eq_4(dim: int):
    representations = unit_rows(NUM_PUBLIC, dim, dim)
    found = flesd.similarity(representations)
    torch.testing.assert_close(found, matrix(naive.similarity(representations.tolist())), **EXACT)
    torch.testing.assert_close(found.diagonal(), torch.ones(NUM_PUBLIC, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
def test_eq_5_up_to_a_factor_that_is_the_same_everywhere(tau: float):
    (first, *_) = similarities()
    expected = matrix([[math.exp(value / tau) for value in row] for row in first.tolist()])
    torch.testing.assert_close(flesd.sharpen(first, tau) * math.exp(1 / tau), expected, **EXACT)


def test_sharpening_never_overflows():
    assert bool(flesd.sharpen(torch.tensor([[1.0, -1.0]]), 1e-3).isfinite().all())


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
def test_eq_6_up_to_the_same_factor(tau: float):
    expected = matrix(naive.ensemble([m.tolist() for m in similarities()], tau))
    torch.testing.assert_close(ensembled(tau) * math.exp(1 / tau), expected, **EXACT)


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
def test_eq_7(tau: float):
    queries, anchors = unit_rows(3, 4, 1), unit_rows(6, 4, 2)
    expected = naive.student(queries.tolist(), anchors.tolist(), tau)
    torch.testing.assert_close(flesd.student_log_probabilities(queries, anchors, tau).exp(), matrix(expected), **EXACT)


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
def test_eq_8_in_which_the_factor_cancels(tau: float):
    found = flesd.target_probabilities(ensembled(tau), QUERIES, ANCHORS)
    papers = naive.ensemble([m.tolist() for m in similarities()], tau)
    torch.testing.assert_close(found, matrix(naive.target(papers, QUERIES.tolist(), ANCHORS.tolist())), **EXACT)
    torch.testing.assert_close(found.sum(1), torch.ones(3, dtype=torch.float64), **EXACT)


def test_eq_9():
    target = flesd.target_probabilities(ensembled(0.2), QUERIES, ANCHORS)
    queries, anchors = unit_rows(3, 4, 1), unit_rows(5, 4, 2)
    log_student = flesd.student_log_probabilities(queries, anchors, 0.3)
    expected = naive.divergence(target.tolist(), naive.student(queries.tolist(), anchors.tolist(), 0.3))
    assert float(flesd.distillation_loss(target, log_student)) == pytest.approx(expected, rel=1e-12)


def test_the_divergence_is_zero_exactly_where_student_and_target_agree():
    target = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]], dtype=torch.float64)
    log_student = torch.tensor([[0.5, 0.25, 0.25], [1e-9, 0.5, 0.5]], dtype=torch.float64).log()
    assert float(flesd.distillation_loss(target, log_student)) == 0.0


@pytest.mark.parametrize("student_temperature", [None, 0.4])
def test_a_batchs_loss_is_eq_7_to_9_and_tau_s_is_tau_t_unless_set(student_temperature: float | None):
    anchors = unit_rows(5, 4, 2)
    queries = unit_rows(3, 4, 1)
    method = FLESD(temperature=0.2, student_temperature=student_temperature)
    papers = naive.ensemble([m.tolist() for m in similarities()], 0.2)
    expected = naive.divergence(
        naive.target(papers, QUERIES.tolist(), ANCHORS.tolist()),
        naive.student(queries.tolist(), anchors.tolist(), student_temperature or 0.2),
    )
    assert float(method.loss(ensembled(0.2), queries, QUERIES, anchors, ANCHORS)) == pytest.approx(expected, rel=1e-12)


def test_exclude_self_leaves_a_sample_out_of_its_own_anchors():
    """As if the sample had fewer anchors: each query by itself, on the anchors that are other samples."""
    anchors = unit_rows(5, 4, 2)
    queries = unit_rows(3, 4, 1)
    papers = naive.ensemble([m.tolist() for m in similarities()], 0.2)
    losses = []
    for row, sample in enumerate(QUERIES.tolist()):
        others = [position for position, anchor in enumerate(ANCHORS.tolist()) if anchor != sample]
        target = naive.target(papers, [sample], [ANCHORS.tolist()[position] for position in others])
        keys = [anchors[position].tolist() for position in others]
        losses.append(naive.divergence(target, naive.student([queries[row].tolist()], keys, 0.2)))
    found = FLESD(temperature=0.2, exclude_self=True).loss(ensembled(0.2), queries, QUERIES, anchors, ANCHORS)
    assert float(found) == pytest.approx(sum(losses) / 3, rel=1e-12)


def test_a_sample_without_similar_anchors_teaches_nothing_when_it_is_left_out():
    ensembled = flesd.sharpen(2 * torch.eye(4) - 1, 0.01)
    method, anchors = FLESD(exclude_self=True, temperature=0.01), torch.eye(4)
    loss = method.loss(ensembled, anchors[:2], torch.arange(2), anchors, torch.arange(4))
    assert float(loss) == 0


def test_the_ensemble_leaves_the_first_matrix_as_it_was():
    first = torch.ones(2, 2)
    assert flesd.ensemble([first, 3 * torch.ones(2, 2)]).eq(2).all()
    assert first.eq(1).all()
