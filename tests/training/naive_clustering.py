"""Clustering losses as loops over Python floats, written from the papers and their authors' descriptions."""

import math
from collections.abc import Sequence

from tests.naive import Matrix, cross_entropy, dot, unit

Rows = list[list[float]]


def softmax(values: Sequence[float]) -> list[float]:
    highest = max(values)
    weights = [math.exp(value - highest) for value in values]
    return [weight / math.fsum(weights) for weight in weights]


def sinkhorn(scores: Matrix, epsilon: float, iterations: int) -> Rows:
    """SwAV, section 3.1: Q* = Diag(u) exp(C^T Z / eps) Diag(v), prototypes carry 1 / K each and samples 1 / B each."""
    samples, prototypes = range(len(scores)), range(len(scores[0]))
    transport = [[math.exp(scores[b][k] / epsilon) for b in samples] for k in prototypes]
    for _ in range(iterations):
        for k in prototypes:
            total = math.fsum(transport[k])
            transport[k] = [value / total / len(prototypes) for value in transport[k]]
        for b in samples:
            total = math.fsum(transport[k][b] for k in prototypes)
            for k in prototypes:
                transport[k][b] = transport[k][b] / total / len(samples)
    codes = []
    for b in samples:
        total = math.fsum(transport[k][b] for k in prototypes)
        codes.append([transport[k][b] / total for k in prototypes])
    return codes


def swapped_prediction(scores: Sequence[Matrix], codes: Sequence[Matrix], temperature: float) -> float:
    """SwAV, Eq. 1 and 2: l(z_t, q_s) + l(z_s, q_t), halved as in the authors' code, averaged over samples."""
    total = []
    for sample in range(len(scores[0])):
        for seen, predicted in ((0, 1), (1, 0)):
            probabilities = softmax([score / temperature for score in scores[seen][sample]])
            pairs = zip(codes[predicted][sample], probabilities, strict=True)
            total.append(-math.fsum(q * math.log(p) for q, p in pairs) / 2)
    return math.fsum(total) / len(scores[0])


def nearest(row: Sequence[float], centroids: Matrix) -> int:
    cosines = [dot(row, centroid) for centroid in centroids]
    return cosines.index(max(cosines))


def spherical_k_means(rows: Matrix, centroids: Matrix, iterations: int) -> tuple[Rows, list[int]]:
    """DeepCluster-v2: assign to the nearest by cosine, move centroids to the normalized mean, at last assign again."""
    moved = [list(centroid) for centroid in centroids]
    for _ in range(iterations):
        assigned = [nearest(row, moved) for row in rows]
        for k in range(len(moved)):
            own = [row for row, cluster in zip(rows, assigned, strict=True) if cluster == k]
            if own:
                moved[k] = unit([math.fsum(column) / len(own) for column in zip(*own, strict=True)])
    return moved, [nearest(row, moved) for row in rows]


def cluster_prediction(
    views: Sequence[Matrix], centroids: Matrix, assigned: Sequence[int], temperature: float
) -> float:
    """DeepCluster-v2: -log softmax(z.C / T)_assignment, averaged over samples and views."""
    rows = [row for view in views for row in view]
    scores = [[dot(row, centroid) / temperature for centroid in centroids] for row in rows]
    return cross_entropy(scores, [*assigned] * len(views))


def orchestra_sinkhorn(cosines: Matrix, sharpness: float, iterations: int, tolerance: float = 0.0) -> Rows:
    """Orchestra (code): softmax(sharpness cosines), then clusters and samples are scaled in turn to equal mass."""
    probabilities = [softmax([sharpness * value for value in row]) for row in cosines]
    samples, clusters = range(len(cosines)), range(len(cosines[0]))
    c = [1 / len(cosines) for _ in samples]
    r = [1.0 for _ in clusters]
    for iteration in range(iterations):
        r = [1 / len(clusters) / math.fsum(probabilities[n][k] * c[n] for n in samples) for k in clusters]
        last, c = c, [1 / len(cosines) / math.fsum(r[k] * probabilities[n][k] for k in clusters) for n in samples]
        if iteration % 10 == 0 and math.fsum(abs(old / new - 1) for old, new in zip(last, c, strict=True)) < tolerance:
            break
    return [[len(cosines) * c[n] * probabilities[n][k] * r[k] for k in clusters] for n in samples]


def orchestra_clustering(target: Matrix, online: Matrix, centroids: Matrix, temperature: float) -> float:
    """Orchestra, local objective: cross entropy of the online assignment of one view with the target's of the other."""
    losses = []
    for seen, predicted in zip(target, online, strict=True):
        wanted = softmax([dot(seen, centroid) / temperature for centroid in centroids])
        given = softmax([dot(predicted, centroid) / temperature for centroid in centroids])
        losses.append(-math.fsum(p * math.log(q) for p, q in zip(wanted, given, strict=True)))
    return math.fsum(losses) / len(losses)


def orchestra_agreement(assigned: Matrix, local: Matrix, centroids: Matrix, temperature: float) -> float:
    """Orchestra (code), server: minus the mean cosine between balanced and predicted assignments of local centroids."""
    cosines = []
    for wanted, row in zip(assigned, local, strict=True):
        given = softmax([dot(unit(row), centroid) / temperature for centroid in centroids])
        cosines.append(dot(wanted, given) / math.sqrt(dot(wanted, wanted) * dot(given, given)))
    return -math.fsum(cosines) / len(cosines)
