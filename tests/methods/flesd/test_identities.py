"""Settings at which FLESD is another method, bit for bit."""

from dataclasses import replace

import pytest
import torch

from rayfed_ssl.methods import FLESD, flesd
from rayfed_ssl.testing.trial import state_digests
from tests.methods.conftest import Open, Played
from tests.tensors import unit_rows


@pytest.mark.parametrize("number", [1, 4])
def test_an_ensemble_of_equal_teachers_is_that_teacher(number: int):
    matrix = flesd.sharpen(flesd.similarity(torch.eye(3, 5)), 0.1)
    assert torch.equal(flesd.ensemble([matrix.clone() for _ in range(number)]), matrix)


def test_a_student_with_the_teachers_representations_has_nothing_to_learn():
    """Student and target are the same distribution if k = q = R and tau_S = tau_T, as FLESD sets them."""
    rows = unit_rows(9, 4, 0)
    ensembled = flesd.ensemble([flesd.sharpen(flesd.similarity(rows), 0.1)])
    queries, anchors = torch.tensor([0, 3, 8]), torch.tensor([1, 3, 4, 7])
    loss = FLESD().loss(ensembled, rows[queries], queries, rows[anchors], anchors)
    assert abs(float(loss)) < 1e-14  # float64: logarithms of equal numbers computed in two ways


def test_similarities_in_full_precision_teach_as_representations_do(open_tiny: Open, played: Played):
    representing: FLESD = open_tiny("flesd").method
    comparing = replace(representing, upload="similarities")
    for upload in played("flesd")[0].uploads.values():
        rows = upload.representations.values
        matrices = [method.unpack(method.pack(rows)) for method in (representing, comparing)]
        targets = [
            flesd.target_probabilities(flesd.sharpen(matrix, 0.1), torch.arange(len(rows)), torch.arange(len(rows)))
            for matrix in matrices
        ]
        # Cosines are rounded to 2^-24 after 24 products; the temperature multiplies the error by ten.
        torch.testing.assert_close(*matrices, rtol=0, atol=1e-6)
        torch.testing.assert_close(*targets, rtol=3e-5, atol=0)


def test_keeping_all_similarities_is_sending_all():
    method = FLESD(upload="similarities", keep=0.999)
    rows = unit_rows(6, 4, 0).float()
    assert torch.equal(method.unpack(method.pack(rows)), flesd.similarity(rows))


def test_flesd_cc_is_flesd_with_one_round(played: Played):
    assert state_digests(played("flesd-cc")) == state_digests(played("flesd", "rounds=1"))


def test_refilling_once_or_in_every_epoch_is_the_same_in_one_epoch(played: Played):
    settings = ("rounds=1", "method.distil_epochs=1")
    first, epoch = (played("flesd", *settings, f"method.refill={refill}") for refill in ("first", "epoch"))
    assert state_digests(first) == state_digests(epoch)
