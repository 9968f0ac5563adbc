"""FCL's and InstaHide's equations as loops over Python floats, written from the papers and not from our code."""

import math
from collections.abc import Sequence

from tests.naive import Matrix, cosine, dot


def query_loss(query: Sequence[float], key: Sequence[float], negatives: Matrix, tau: float) -> float:
    """FCL Eq. 1 and, with the negatives of both banks, Eq. 3."""
    positive = math.exp(dot(query, key) / tau)
    return -math.log(positive / (positive + math.fsum(math.exp(dot(query, n) / tau) for n in negatives)))


def contrast(queries: Matrix, keys: Matrix, negatives: Matrix, tau: float) -> float:
    """FCL Eq. 6: the mean over the batch."""
    losses = [query_loss(query, key, negatives, tau) for query, key in zip(queries, keys, strict=True)]
    return math.fsum(losses) / len(losses)


def neighbors(query: Sequence[float], candidates: Matrix, count: int) -> list[int]:
    """FCL Eq. 8: which candidates are the top N by cosine."""
    order = sorted(range(len(candidates)), key=lambda m: -cosine(query, candidates[m]))
    return order[:count]


def neighborhood(queries: Matrix, candidates: Matrix, count: int, tau: float) -> float:
    """FCL Eq. 9 to 11, building every set L_j."""
    total = 0.0
    for query in queries:
        near = neighbors(query, candidates, count)
        rest = [candidates[m] for m in range(len(candidates)) if m not in near]
        entropies = 0.0
        for j in near:
            members = [candidates[j], *rest]
            assert len(members) == len(candidates) - count + 1
            weights = [math.exp(dot(query, n) / tau) for n in members]
            probabilities = [weight / math.fsum(weights) for weight in weights]
            entropies += math.fsum(p * math.log(p) for p in probabilities)
        total += entropies / count
    return -total / len(queries)


def encrypted(
    images: Sequence[Sequence[float]],
    partners: Sequence[Sequence[int]],
    shares: Matrix,
    signs: Sequence[Sequence[float]],
) -> list[list[float]]:
    """InstaHide: x~_b = sigma_b * sum_i lambda_(b, i) x_(pi_i(b)), images as flat lists of values."""
    result = []
    for b, image in enumerate(images):
        mixture = [
            math.fsum(shares[b][i] * images[partners[i][b]][v] for i in range(len(partners))) for v in range(len(image))
        ]
        result.append([sign * value for sign, value in zip(signs[b], mixture, strict=True)])
    return result
