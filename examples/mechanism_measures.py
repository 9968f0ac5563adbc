"""Two measures of why methods work, on finished runs: FLESD's similarities and Orchestra's clusters.

rayfed-ssl sweep mechanisms data.name=parquet data.path=DIR --out runs/mechanisms
python -m examples.mechanism_measures similarities CLIENTS_ALONE CENTRALIZED FLESD     # directories of runs
python -m examples.mechanism_measures clusters ORCHESTRA
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from scipy.stats import rankdata
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.analysis.diagnosis import encoders_in
from rayfed_ssl.engine.diagnostics import sample_images
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.methods.flesd import ensemble, sharpen, similarity
from rayfed_ssl.methods.orchestra import ServerState
from rayfed_ssl.records.replay import open_run
from rayfed_ssl.storage import checkpoints

IMAGES = 500


def similarities_of(run: Path) -> dict[str, Tensor]:
    """Cosines [N, N] of test images' features by each encoder of a run; runs of one seed have the same images."""
    record, federation = open_run(run, trust=False, draws=False)
    task, state = federation.task, checkpoints.latest(record.checkpoints)
    images = sample_images(federation.config, federation.dataset, IMAGES)
    found = {}
    for name, encoder in encoders_in(federation, state, record.checkpoints).items():
        model = task.model(encoder.weights, encoder.architecture).encoder
        features = extract_features(model, images, task.plain, device=task.device, precision=task.precision)
        found[name] = similarity(F.normalize(features.double().cpu(), dim=1))
    return found


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Mean over images of Spearman's correlation of their similarities with the others, both [N, N]."""
    others = ~torch.eye(len(first), dtype=torch.bool)
    ranks = [torch.from_numpy(rankdata(rows[others].view(len(rows), -1).numpy(), axis=1)) for rows in (first, second)]
    centered = [rows - rows.mean(dim=1, keepdim=True) for rows in ranks]
    return float(F.cosine_similarity(*centered, dim=1).mean())


def similarity_ranks(clients: Path, centralized: Path, student: Path, temperature: float = 0.1) -> dict[str, float]:
    """Correlation with a centralized run of clients alone, their sharpened mean (FLESD, Eq. 6) and FLESD's student."""
    (reference,), (distilled,) = similarities_of(centralized).values(), similarities_of(student).values()
    alone = similarities_of(clients)
    found = {name: rank_correlation(rows, reference) for name, rows in alone.items()}
    mean = ensemble(sharpen(rows.clone(), temperature) for rows in alone.values())
    return found | {"ensemble": rank_correlation(mean, reference), "student": rank_correlation(distilled, reference)}


def cluster_information(run: Path) -> dict[str, float]:
    """Adjusted mutual information of Orchestra's clusters of test images with their classes; 0 is chance, 1 the classes.

    A cluster is the global centroid that is nearest to the target's projection.
    """
    record, federation = open_run(run, trust=False, draws=False)
    task, test = federation.task, federation.dataset.test
    server = checkpoints.read(checkpoints.latest(record.checkpoints).server, record.checkpoints)
    assert isinstance(server, ServerState), "clusters are Orchestra's"
    target = {
        name.removeprefix("target."): value for name, value in server.weights.items() if name.startswith("target.")
    }
    model = task.model(target)
    features = extract_features(model.encoder, test.images, task.plain, device=task.device, precision=task.precision)
    with torch.no_grad():
        clusters = (model.projector.eval()(features.cpu()) @ server.centroids.T).argmax(dim=1)
    return {
        "adjusted mutual information": float(adjusted_mutual_info_score(test.labels, clusters)),
        "clusters used": len(clusters.unique()),
    }


def main(arguments: list[str]) -> Mapping[str, float]:
    """Measure what the first argument names, of the runs in the others."""
    measures = {"similarities": similarity_ranks, "clusters": cluster_information}
    return measures[arguments[0]](*map(Path, arguments[1:]))


if __name__ == "__main__":
    for name, value in main(sys.argv[1:]).items():
        sys.stdout.write(f"{name} {value}\n")
