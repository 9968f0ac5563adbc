"""Assignments of unit vectors to clusters: balanced by Sinkhorn's iteration, or by spherical k-means.

Cuturi: Sinkhorn Distances, NIPS 2013. Caron et al.: Unsupervised Learning of Visual Features by Contrasting Cluster
Assignments, NeurIPS 2020 (SwAV; DeepCluster-v2 is in its appendix). Hornik et al.: Spherical k-Means Clustering, 2012.

Symbols: N samples; K clusters; S scores [N, K]; Q codes [N, K]; eps entropy weight.

Deviations: Sinkhorn's scaling factors are kept as logarithms, where the authors' code multiplies exp(S / eps): the same
numbers, but no row or column can underflow to 0 / 0. Clusters that no sample chose keep their centroid, as in
DeepCluster-v2's code; so do those whose samples cancel out, which the code would turn into zero vectors.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.randomness.draws import draw


@torch.no_grad()
def sinkhorn(
    scores: Tensor, epsilon: float, iterations: int, tolerance: float = 0.0, counted: Tensor | None = None
) -> Tensor:
    """Spread samples over clusters so that clusters are equally full and scores are high (SwAV, Eq. 3 and 5).

    Args:
        scores: S, usually cosines, [N, K]; N may be 1 and rows may be equal.
        epsilon: eps, above 0; the lower, the closer are rows to one-hot.
        iterations: How often columns are scaled to sum 1 / K and then rows to sum 1 / N, at most.
        tolerance: Stop once the rows' factors change by less than this share, summed over rows (Orchestra, code); looked at
            in every tenth iteration, from the first on. 0 never stops.
        counted: Which samples there are, bool [N]; None for all. Rows of others mean nothing.

    Returns:
        Q, [N, K]: rows sum to 1 and, after enough iterations, columns to N / K. No gradients.
    """
    logits, (num, clusters) = scores / epsilon, scores.shape
    columns = logits.new_zeros(1, clusters)
    share = logits.new_full((num, 1), -math.log(num))
    if counted is not None:
        share = torch.where(counted.unsqueeze(1), -counted.sum().log(), float("-inf"))
    rows, done = share, share.new_zeros((), dtype=torch.bool)
    for iteration in range(iterations):
        before = columns, rows
        columns = -math.log(clusters) - torch.logsumexp(logits + rows, dim=0, keepdim=True)
        rows = share - torch.logsumexp(logits + columns, dim=1, keepdim=True)
        if tolerance:  # a GPU goes on without moving, as asking it whether to stop would wait
            columns, rows = (torch.where(done, *pair) for pair in zip(before, (columns, rows), strict=True))
            if iteration % 10 == 0:
                done = done | ((before[1] - rows).expm1().abs().sum() < tolerance)
                if done.device.type == "cpu" and done:
                    break
    return F.softmax(logits + columns, dim=1)


@torch.no_grad()
def spherical_k_means(rows: Tensor, k: int, iterations: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Cluster unit vectors [N, D] by cosine, starting from k of them that the generator chooses (DeepCluster-v2, code).

    Returns:
        Unit centroids, [k, D], and the nearest centroid of each row, int64 [N].

    Raises:
        ValueError: k does not fit the number of rows.
    """
    if not 1 <= k <= len(rows):
        raise ValueError(f"{len(rows)} samples cannot be put into {k} clusters: ask for 1 to {len(rows)}")
    centroids = rows[draw(torch.randperm, len(rows), generator=generator, device=rows.device)[:k]]
    for _ in range(iterations):
        centroids = mean_directions(rows, (rows @ centroids.T).argmax(dim=1), centroids)
    return centroids, (rows @ centroids.T).argmax(dim=1)


def mean_directions(rows: Tensor, assignments: Tensor, centroids: Tensor) -> Tensor:
    """Move each unit centroid [K, D] to the direction of its rows' sum; without rows, or if they cancel out, it stays."""
    # A product with one-hot rows adds up in a fixed order, which scattered additions on a GPU do not.
    sums = F.one_hot(assignments, len(centroids)).to(rows.dtype).T @ rows
    lengths = sums.norm(dim=1, keepdim=True)
    least = 1e-6  # a sum of unit vectors that is this short is rounding noise
    return torch.where(lengths > least, sums / lengths.clamp_min(least), centroids)
