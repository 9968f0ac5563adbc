"""Sinkhorn's iteration and spherical k-means against naive loops, against lightly, and on degenerate input."""

import pytest
import torch
from torch import Tensor

from rayfed_ssl.training.clustering import mean_directions, sinkhorn, spherical_k_means
from tests.tensors import EXACT, seeded, unit_rows
from tests.training import naive_clustering as naive


def scores(num: int, clusters: int) -> Tensor:
    return unit_rows(num, 5, 1) @ unit_rows(clusters, 5, 2).T


@pytest.mark.parametrize("iterations", [1, 3, 20])
@pytest.mark.parametrize("epsilon", [0.05, 0.5])
@pytest.mark.parametrize(("num", "clusters"), [(7, 3), (3, 5), (1, 4), (6, 1)])
def test_codes_are_those_of_swav(num: int, clusters: int, epsilon: float, iterations: int):
    cosines = scores(num, clusters)
    expected = torch.tensor(naive.sinkhorn(cosines.tolist(), epsilon, iterations), dtype=torch.float64)
    torch.testing.assert_close(sinkhorn(cosines, epsilon, iterations), expected, rtol=EXACT, atol=1e-15)


@pytest.mark.parametrize("iterations", [1, 3])
def test_codes_are_lightlys_and_have_no_gradient(iterations: int):
    lightly = pytest.importorskip("lightly.loss.swav_loss")
    cosines = scores(7, 3)
    expected = lightly.sinkhorn(cosines.clone(), iterations=iterations, epsilon=0.05)
    codes = sinkhorn(cosines.requires_grad_(), 0.05, iterations)
    assert not codes.requires_grad
    torch.testing.assert_close(codes, expected, rtol=EXACT, atol=1e-15)


@pytest.mark.parametrize("same", [torch.ones(1, 4), torch.full((5, 4), -1.0), torch.zeros(2, 1)])
def test_equal_scores_give_equal_codes(same: Tensor):
    torch.testing.assert_close(sinkhorn(same, 0.05, 3), torch.full_like(same, 1 / same.shape[1]))


@pytest.mark.parametrize("offset", [-300.0, 0.0, 300.0])
def test_no_column_underflows(offset: float):
    codes = sinkhorn(torch.tensor([[1.0, -1.0, -1.0], [0.9, -1.0, -1.0]]) + offset, 0.001, 3)
    assert bool(codes.isfinite().all())
    torch.testing.assert_close(codes.sum(1), torch.ones(2))


@pytest.mark.parametrize("iterations", [0, 1, 10])
@pytest.mark.parametrize(("num", "k"), [(11, 3), (7, 7), (9, 1)])
def test_k_means_is_that_of_deepcluster_v2(num: int, k: int, iterations: int):
    rows = unit_rows(num, 4, 3)
    first = rows[torch.randperm(num, generator=seeded(5))[:k]]
    expected, assigned = naive.spherical_k_means(rows.tolist(), first.tolist(), iterations)
    centroids, assignments = spherical_k_means(rows, k, iterations, seeded(5))
    torch.testing.assert_close(centroids, torch.tensor(expected, dtype=torch.float64), rtol=EXACT, atol=1e-14)
    assert assignments.tolist() == assigned


def test_duplicates_leave_clusters_empty_and_centroids_where_they_are():
    rows = unit_rows(1, 4, 8).expand(5, 4)
    centroids, assignments = spherical_k_means(rows, 3, 10, seeded())
    torch.testing.assert_close(centroids, rows[:3], rtol=EXACT, atol=EXACT)
    assert assignments.tolist() == [0] * 5


def test_a_cluster_whose_rows_cancel_out_keeps_its_centroid():
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]])
    centroids = torch.tensor([[0.6, 0.8], [0.0, -1.0], [0.8, 0.6]])
    moved = mean_directions(rows, torch.tensor([0, 0, 1]), centroids)
    assert moved.equal(torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.8, 0.6]]))


@pytest.mark.parametrize("k", [0, 4])
def test_more_clusters_than_rows_are_refused(k: int):
    with pytest.raises(ValueError, match=f"3 samples cannot be put into {k} clusters: ask for 1 to 3"):
        spherical_k_means(unit_rows(3, 2, 1), k, 1, seeded())
