"""Diagnostics against naive loops, against lightly, and on degenerate input."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rayfed_ssl.evaluation.representation_metrics import (
    Drift,
    alignment,
    angles,
    centered_gram,
    cka,
    effective_rank,
    false_negatives,
    feature_std,
    nearest,
    neighbors_in_common,
    relation,
    relation_distance,
    uniformity,
)
from tests.evaluation import naive_representation_metrics as naive
from tests.methods.fedfoa.naive import frobenius, gram_schmidt, minus, with_zeros

EXACT = 1e-12  # both sides in float64, sums of a few dozen terms
SHAPES = [(9, 4), (4, 9), (7, 7), (2, 3)]


def rows(num: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3


@pytest.mark.parametrize("shape", SHAPES)
def test_measures_of_features_are_the_papers(shape: tuple[int, int]):
    first, second = rows(*shape), rows(*shape, seed=1)
    assert feature_std(first) == pytest.approx(naive.feature_std(first.tolist()), rel=EXACT)
    assert effective_rank(first) == pytest.approx(naive.effective_rank(first.tolist()), rel=1e-10)  # SVD
    assert alignment(first, second) == pytest.approx(naive.alignment(first.tolist(), second.tolist()), rel=EXACT)
    assert uniformity(first) == pytest.approx(naive.uniformity(first.tolist()), rel=EXACT)


@pytest.mark.slow
def test_measures_of_features_are_lightlys():
    debug = pytest.importorskip("lightly.utils.debug")
    loss = pytest.importorskip("lightly.loss.hypersphere_loss").HypersphereLoss
    first, second = rows(9, 4), rows(9, 4, 1)
    # lightly divides by N - 1 and leaves out sqrt(d).
    expected = float(debug.std_of_l2_normalized(first)) * math.sqrt(4) * math.sqrt(8 / 9)
    assert feature_std(first) == pytest.approx(expected, rel=EXACT)
    assert alignment(first, second) == pytest.approx(float(loss(lam=0)(first, second)), rel=EXACT)
    assert uniformity(first) == pytest.approx(float(loss(t=2, lam=1)(first, first)), rel=EXACT)


@pytest.mark.parametrize(("num", "first", "second"), [(9, 4, 4), (5, 8, 3), (3, 2, 7)])
def test_cka_is_the_papers_also_for_different_widths(num: int, first: int, second: int):
    one, other = rows(num, first), rows(num, second, 1)
    found = cka(centered_gram(one), centered_gram(other))
    assert found == pytest.approx(naive.cka(one.tolist(), other.tolist()), rel=EXACT)


def test_cka_is_one_up_to_rotation_scale_and_shift():
    features = rows(9, 4)
    turned = 3 * features @ torch.linalg.qr(rows(4, 4, 1))[0] + rows(1, 4, 2)
    assert cka(centered_gram(features), centered_gram(turned)) == pytest.approx(1, rel=EXACT)
    # The same under a turn of single dimensions against each other is what CKA shall tell apart.
    assert cka(centered_gram(features), centered_gram(features * torch.tensor([1.0, 0, 0, 0]))) < 0.9


@pytest.mark.parametrize(("num", "first", "second", "count"), [(9, 4, 4, 3), (12, 8, 3, 5), (14, 2, 7, 10)])
def test_neighbors_in_common_are_counted_also_for_different_widths(num: int, first: int, second: int, count: int):
    one, other = rows(num, first), rows(num, second, 1)
    found = neighbors_in_common(nearest(one, count), nearest(other, count))
    assert found == pytest.approx(naive.neighbors_in_common(one.tolist(), other.tolist(), count), rel=EXACT)
    turned = 3 * one @ torch.linalg.qr(rows(first, first, 1))[0]
    assert neighbors_in_common(nearest(one, count), nearest(turned, count)) == 1


def test_constant_features_have_no_neighbors_and_copies_of_an_image_the_same():
    features = rows(12, 4)
    for constant in (torch.ones(12, 4), torch.zeros(12, 4)):
        assert neighbors_in_common(nearest(constant), nearest(constant)) == 0
        assert neighbors_in_common(nearest(features), nearest(constant)) == 0
    copies = features[:6].repeat(2, 1)
    turned = copies @ torch.linalg.qr(rows(4, 4, 1))[0]
    assert neighbors_in_common(nearest(copies, 3), nearest(turned, 3)) == 1


def test_angles_are_those_between_the_rows():
    first, second = rows(8, 3), rows(8, 3, 1)
    degrees = [naive.angle(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    expected = [naive.quartile(degrees, share) for share in (0.25, 0.5, 0.75)]
    assert list(angles(first, second)) == pytest.approx(expected, rel=1e-9)  # the oracle's arccos loses digits


@pytest.mark.parametrize("degrees", [0.0, 1e-6, 30.0, 90.0, 179.0, 180.0])
def test_small_and_large_angles_are_exact(degrees: float):
    radians = math.radians(degrees)
    found = angles(
        torch.tensor([[2.0, 0.0]]), torch.tensor([[math.cos(radians), math.sin(radians)]], dtype=torch.float64)
    )
    assert list(found) == pytest.approx([degrees] * 3, rel=1e-9, abs=1e-9)  # cos and sin are rounded to 1e-16


@pytest.mark.parametrize("shape", [(9, 4), (4, 6)])
def test_relation_distance_is_that_of_the_matrices_of_a_qr_factorization(shape: tuple[int, int]):
    first, second = rows(*shape), rows(*shape, seed=1)
    matrices = [with_zeros(gram_schmidt(features.tolist())[1]) for features in (first, second)]
    expected = frobenius(minus(*matrices))
    assert relation_distance(relation(first), relation(second)) == pytest.approx(expected, rel=1e-6)  # sent as float32


def split(vectors: Tensor) -> list[dict[str, Tensor]]:
    return [{"a": vector[:2], "b": vector[2:].reshape(-1, 1)} for vector in vectors]


@pytest.mark.parametrize("num", [2, 3, 5])
def test_mean_cosines_of_updates_need_no_pair_of_them(num: int):
    vectors, drift = rows(num, 7), Drift()
    lengths = [drift.add(update) for update in split(vectors)]
    assert lengths == pytest.approx([math.sqrt(naive.dot(v, v)) for v in vectors.tolist()], rel=EXACT)
    found = [drift.cosine(update) for update in split(vectors)]
    assert found == pytest.approx(
        [naive.mean_cosine(vectors.tolist(), i) for i in range(num)], rel=1e-10
    )  # differences


def test_an_update_of_nothing_has_no_direction():
    drift = Drift()
    vectors = torch.stack([torch.zeros(4), torch.ones(4), torch.ones(4)])
    assert [drift.add(update) for update in split(vectors)] == [0, 2, 2]
    assert [drift.cosine(update) for update in split(vectors)] == pytest.approx([0, 0.5, 0.5], rel=EXACT)


def brute_force(labels: Sequence[Sequence[int]], client: int, banks: Sequence[int]) -> float:
    """Share of same-class negatives over all samples of a client; each bank counts the same, however many samples it has."""
    per_sample = []
    for own in labels[client]:
        per_bank = [sum(own == other for other in labels[bank]) / len(labels[bank]) for bank in banks]
        per_sample.append(math.fsum(per_bank) / len(per_bank))
    return math.fsum(per_sample) / len(per_sample)


def counts(labels: Sequence[Sequence[int]], num_classes: int) -> Tensor:
    return torch.tensor([[list(own).count(label) for label in range(num_classes)] for own in labels])


def test_false_negatives_are_what_counting_them_gives():
    labels = [[0, 0, 1, 3], [1, 2, 2], [3, 3, 3, 0, 1]]
    for client, ratios in enumerate(false_negatives(counts(labels, 5))):
        others = [i for i in range(3) if i != client]
        assert ratios.local == pytest.approx(brute_force(labels, client, [client]), rel=EXACT)
        assert ratios.fused == pytest.approx(brute_force(labels, client, [client, *others]), rel=EXACT)
        assert ratios.remote == pytest.approx(brute_force(labels, client, others), rel=EXACT)


@pytest.mark.parametrize(
    "present", [({0, 1}, {2, 3}, {4, 5}), ({0, 1}, {1, 2}, {0, 3}), ({0, 1}, {0, 1}, {0, 1}), ({0, 1}, {0, 2})]
)
def test_false_negatives_are_fcls_for_balanced_classes(present: tuple[set[int], ...]):
    labels = [[label for label in sorted(classes) for _ in range(3)] for classes in present]
    for client, ratios in enumerate(false_negatives(counts(labels, 6))):
        fused = [naive.fused_ratio(present, client, label, m=2, bank=8) for label in sorted(present[client])]
        remote = [naive.remote_ratio(present, client, label, m=2) for label in sorted(present[client])]
        assert ratios.local == pytest.approx(0.5, rel=EXACT)
        assert ratios.fused == pytest.approx(naive.mean(fused), rel=EXACT)
        assert ratios.remote == pytest.approx(naive.mean(remote), rel=EXACT)


def test_one_client_has_no_remote_negatives():
    (ratios,) = false_negatives(torch.tensor([[3, 1]]))
    assert (ratios.local, ratios.fused, ratios.remote) == (0.625, 0.625, None)


@pytest.mark.parametrize("row", [[0.3, 0.1, 0.7], [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("num", [1, 6])
def test_constant_features_are_collapsed_and_give_no_nan(row: list[float], num: int):
    features = torch.tensor([row] * num)
    assert feature_std(features) == pytest.approx(0, abs=1e-15)  # rounding of the mean
    assert effective_rank(features) == pytest.approx(1, rel=EXACT)
    assert alignment(features, features) == 0
    assert uniformity(features) == pytest.approx(0, abs=1e-15)  # rounding of distances
    assert cka(centered_gram(features), centered_gram(rows(num, 2))) == 0
    assert list(angles(features, features)) == [0, 0, 0]
    assert relation_distance(relation(features), relation(features)) == 0


def test_a_zero_feature_is_at_right_angles_and_one_sample_is_a_point():
    assert angles(torch.zeros(1, 3), torch.ones(1, 3)).median == pytest.approx(90, rel=EXACT)
    sample = rows(1, 5)
    assert (feature_std(sample), uniformity(sample)) == (0, 0)
    assert effective_rank(sample) == pytest.approx(1, rel=EXACT)
    assert cka(centered_gram(sample), centered_gram(sample)) == 0
