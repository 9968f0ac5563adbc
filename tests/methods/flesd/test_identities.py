"""Settings at which FLESD is another method, bit for bit."""

from collections.abc import Callable
from dataclasses import replace

import torch

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods import FLESD, flesd
from rayfed_ssl.testing.trial import play, state_digests
from rayfed_ssl.training.sample_queue import SampleQueue

Tiny = Callable[..., Config]


def played(config: Config):
    return play(Federation.open(config))


def test_an_ensemble_of_one_teacher_is_that_teacher():
    matrix = flesd.sharpen(flesd.similarity(torch.eye(3, 5)), 0.1)
    assert torch.equal(flesd.ensemble([matrix.clone()]), matrix)


def test_an_ensemble_of_equal_teachers_is_that_teacher():
    matrix = flesd.sharpen(flesd.similarity(torch.eye(3, 5)), 0.1)
    assert torch.equal(flesd.ensemble([matrix.clone() for _ in range(4)]), matrix)


def test_a_student_with_the_teachers_representations_has_nothing_to_learn():
    """Student and target are the same distribution if k = q = R and tau_S = tau_T, as FLESD sets them."""
    rows = torch.nn.functional.normalize(
        torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    ensembled = flesd.ensemble([flesd.sharpen(flesd.similarity(rows), 0.1)])
    queries, anchors = torch.tensor([0, 3, 8]), torch.tensor([1, 3, 4, 7])
    loss = FLESD().loss(ensembled, rows[queries], queries, SampleQueue(rows[anchors], anchors))
    assert abs(float(loss)) < 1e-14  # float64: logarithms of equal numbers computed in two ways


def test_similarities_in_full_precision_teach_as_representations_do(tiny: Tiny):
    federation = Federation.open(tiny("flesd"))
    representing: FLESD = federation.method
    comparing = replace(representing, upload="similarities")
    (first, *_) = play(federation, 1)
    for upload in first.uploads.values():
        rows = upload.representations.values
        matrices = [method.unpack(method.pack(rows), len(rows)) for method in (representing, comparing)]
        targets = [
            flesd.target_probabilities(flesd.sharpen(matrix, 0.1), torch.arange(len(rows)), torch.arange(len(rows)))
            for matrix in matrices
        ]
        # Cosines are rounded to 2^-24 after 24 products; the temperature multiplies the error by ten.
        torch.testing.assert_close(*matrices, rtol=0, atol=1e-6)
        torch.testing.assert_close(*targets, rtol=3e-5, atol=0)


def test_keeping_all_similarities_is_sending_all(tiny: Tiny):
    method = FLESD(upload="similarities", keep=0.999)
    rows = torch.nn.functional.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    assert torch.equal(method.unpack(method.pack(rows), 6), flesd.similarity(rows))


def test_flesd_cc_is_flesd_with_one_round(tiny: Tiny):
    assert state_digests(played(tiny("flesd-cc"))) == state_digests(played(tiny("flesd", "rounds=1")))


def test_refilling_once_or_in_every_epoch_is_the_same_in_one_epoch(tiny: Tiny):
    first, epoch = (
        played(tiny("flesd", "rounds=1", "method.distil_epochs=1", f"method.refill={refill}"))
        for refill in ("first", "epoch")
    )
    assert state_digests(first) == state_digests(epoch)
