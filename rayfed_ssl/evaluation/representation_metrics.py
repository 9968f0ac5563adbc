"""Measures, without labels, of collapsed features and of how far clients' models have come apart.

Sources:
- Chen, He: Exploring Simple Siamese Representation Learning, CVPR 2021, section 4.1 (standard deviation of features).
- Roy, Vetterli: The Effective Rank, EUSIPCO 2007.
- Wang, Isola: Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere,
  ICML 2020, section 4.1.
- Kornblith, Norouzi, Lee, Hinton: Similarity of Neural Network Representations Revisited, ICML 2019, section 3.
- Huh, Cheung, Wang, Isola: The Platonic Representation Hypothesis, ICML 2024, section 2.1 (neighbors in common).
- FedCA, Figure 4 (angles); FedFoA, Figure 6 (distances of relation matrices); FCL, Eq. 4 and 5 (false negatives).

Symbols: N samples, d feature width, f = feature at unit length, K clients, C classes. Everything is float64 on the CPU.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.aggregation.compression import upper_triangle
from rayfed_ssl.aggregation.weighted_mean import ordered_sum
from rayfed_ssl.methods.fedfoa import factorize, filled
from rayfed_ssl.training.batching import spread
from rayfed_ssl.trees import Weights


def feature_std(features: Tensor) -> float:
    """Mean over dimensions of the standard deviation of unit-length features, relative to 1 / sqrt(d) (Chen & He, 4.1).

    In [0, 1]: 0 if all samples of [N, d] share one direction, 1 if directions are spread evenly about 0. Features after a
    ReLU stay below 1.
    """
    return float(spread(_exact(features)))


def effective_rank(features: Tensor) -> float:
    """Exponential of the entropy of the singular values, which are normalized to sum to 1 (Roy & Vetterli, Definition 1).

    In [1, min(N, d)]: how many directions the features [N, d] use, neither centered nor normalized.
    """
    values = torch.linalg.svdvals(_exact(features))
    if not values.sum() > 0:
        return 1.0
    return float(torch.special.entr(values / values.sum()).sum().exp())


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance of two views' unit-length features [N, d], in [0, 4] (Wang & Isola, L_align with alpha = 2)."""
    units = F.normalize(_exact(first), dim=1), F.normalize(_exact(second), dim=1)
    return float((units[0] - units[1]).square().sum(dim=1).mean())


def uniformity(features: Tensor) -> float:
    """Log of the mean over pairs of exp(-2 ||f_i - f_j||^2) (Wang & Isola, L_uniform with t = 2).

    In (-8, 0]: the lower, the more evenly the features [N, d] fill the sphere.
    """
    if len(features) < 2:
        return 0.0
    distances = torch.pdist(F.normalize(_exact(features), dim=1))
    return float((-2 * distances.square()).exp().mean().log())


def centered_gram(features: Tensor) -> Tensor:
    """Prepare features for `cka`: H F F^T H with H = I - 1/N, at unit Frobenius norm, [N, N]; 0 if they are constant."""
    centered = _exact(features) - _exact(features).mean(dim=0)
    gram = centered @ centered.T
    norm = torch.linalg.matrix_norm(gram)
    # Rounding leaves constant features about 1e-16 of their size away from their mean: that is no structure.
    floor = 1e-24 * float(_exact(features).square().sum())
    return gram / norm if norm > floor else torch.zeros_like(gram)


def cka(first: Tensor, second: Tensor) -> float:
    """Linear CKA of two models' `centered_gram` [N, N]: HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) (Kornblith et al., Eq. 3).

    In [0, 1]: 1 if features agree up to rotation and scale; 0 if they have nothing in common, or one set is constant.
    """
    return min(1.0, max(0.0, float((first * second).sum())))


def nearest(features: Tensor, count: int = 10) -> Tensor:
    """Mark each sample's nearest others by cosine, for `neighbors_in_common`: bool [N, N], min(count, N - 1) in a row.

    Features of one direction have none. Cosines that differ by rounding alone are equal, and of equal ones the first count.
    """
    units = F.normalize(_exact(features), dim=1)
    cosines = (units @ units.T).round(decimals=12)
    marked = torch.zeros_like(cosines, dtype=torch.bool)
    if len(cosines.unique()) < 2:
        return marked
    order = cosines.fill_diagonal_(-math.inf).argsort(dim=1, descending=True, stable=True)
    return marked.scatter_(1, order[:, : min(count, len(features) - 1)], value=True)


def neighbors_in_common(first: Tensor, second: Tensor) -> float:
    """Mean share of nearest neighbors that two models' `nearest` [N, N] have in common (Huh et al., mutual k-NN).

    In [0, 1]: 1 if every sample has the same neighbors in both; about k / (N - 1) for features without relation; 0 if one
    set has a single direction.
    """
    return int((first & second).sum()) / max(1, int(first.sum()))


class Angles(NamedTuple):
    """Quartiles of the angles between two models' features of the same sample, in degrees."""

    lower: float
    median: float
    upper: float


def angles(first: Tensor, second: Tensor) -> Angles:
    """Quartiles in degrees of the angles between two models' features [N, d] of the same samples (FedCA, Figure 4).

    A feature that is 0 has no direction: 90 from every other one, 0 from another 0.
    """
    units, others = F.normalize(_exact(first), dim=1), F.normalize(_exact(second), dim=1)
    # From chord and sum, as arccos loses half the digits near 0 degrees.
    chord, total = (units - others).norm(dim=1), (units + others).norm(dim=1)
    degrees = torch.rad2deg(2 * torch.atan2(chord, total))
    lower, median, upper = torch.quantile(degrees, degrees.new_tensor([0.25, 0.5, 0.75])).tolist()
    return Angles(lower, median, upper)


def relation(projections: Tensor) -> Tensor:
    """Pack the relation matrix R of Z = QR, Z [N, n], as FedFoA's clients do (Eq. 4): upper triangle, [n (n + 1) / 2]."""
    return upper_triangle(factorize(filled(_exact(projections)))[1]).float().cpu()


def relation_distance(first: Tensor, second: Tensor) -> float:
    """Euclidean distance of two packed relation matrices (FedFoA, Figure 6), at least 0; grows with sqrt(N) and with Z."""
    return float(torch.linalg.vector_norm(_exact(first) - _exact(second)))


class Drift:
    """Directions of clients' updates, compared one update at a time.

    The mean cosine of one update with K - 1 others needs their unit vectors' sum alone, so each client is passed twice.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: Weights = {}

    def add(self, update: Weights) -> float:
        """Add w_k - w, which is not kept, and give its length; one of length 0 has no direction."""
        norm = _norm(update)
        self.count += 1
        for name, value in update.items():
            unit = value.double() / norm if norm else torch.zeros_like(value, dtype=torch.float64)
            self._sum[name] = self._sum[name].add_(unit) if name in self._sum else unit
        return norm

    def cosine(self, update: Weights) -> float:
        """Compute the mean cosine, in [-1, 1], of an update that was added with the K - 1 others; a zero vector's is 0."""
        norm = _norm(update)
        if norm == 0 or self.count < 2:
            return 0.0
        along = ordered_sum(float((value.double() * self._sum[name]).sum()) for name, value in update.items())
        return (along / norm - 1) / (self.count - 1)


def _norm(update: Weights) -> float:
    return math.sqrt(ordered_sum(float(value.double().square().sum()) for value in update.values()))


class FalseNegatives(NamedTuple):
    """Expected share of a client's negatives that have the class of their anchor.

    Attributes:
        local: Among the client's own negatives Q_l; 1 / m for m equally frequent classes.
        fused: Among Q_l and all others' Q_s (FCL, Eq. 4).
        remote: Among Q_s alone (FCL, Eq. 5); None with one client.
    """

    local: float
    fused: float
    remote: float | None


def false_negatives(counts: Tensor) -> list[FalseNegatives]:
    """Compute each client's false-negative ratios from samples by client and class, [K, C] (FCL, Eq. 4 and 5).

    FCL writes them for m equally frequent classes; here a class is as frequent as it is. Banks are equally large.
    """
    shares = _exact(counts) / _exact(counts).sum(dim=1, keepdim=True)
    same = shares @ shares.T
    num = len(shares)
    ratios = []
    for client in range(num):
        local, total = float(same[client, client]), float(same[client].sum())
        ratios.append(FalseNegatives(local, total / num, (total - local) / (num - 1) if num > 1 else None))
    return ratios


def _exact(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)
