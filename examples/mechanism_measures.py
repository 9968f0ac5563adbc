"""Two measures of why methods work, on runs of the study `mechanisms`: FLESD's similarities and Orchestra's clusters.

Runs with engine.cpu=portable, as the study's are, for the processor is set up before a run is opened.

rayfed-ssl sweep mechanisms data.name=parquet data.path=DIR --out runs/mechanisms     # --dry-run names each row's runs
python -m examples.mechanism_measures similarities CLIENTS_ALONE CENTRALIZED FLESD     # directories of runs of one seed
python -m examples.mechanism_measures clusters ORCHESTRA
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from rayfed_ssl import set_up_portable_cpu

if __name__ == "__main__":
    set_up_portable_cpu()  # the study's runs are engine.cpu=portable, which comes before torch is imported

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.analysis.diagnosis import encoders_in
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.diagnostics import sample_images
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods.fcl import target_weights
from rayfed_ssl.methods.flesd import FLESD, ensemble, sharpen, similarity
from rayfed_ssl.methods.orchestra import ServerState
from rayfed_ssl.records.replay import open_run
from rayfed_ssl.storage import checkpoints

IMAGES = 500


def similarities_of(run: Path) -> tuple[Federation, dict[str, Tensor]]:
    """Open a run, and compare test images by each encoder's projections as FLESD does (Eq. 4): cosines [N, N]."""
    record, federation = open_run(run, trust=False, draws=False)
    task, images = federation.task, sample_images(federation.config, federation.dataset, IMAGES)
    shard = Shard.of(images, np.arange(len(images)), task.device)
    encoders = encoders_in(federation, checkpoints.latest(record.checkpoints), record.checkpoints)
    models = {name: task.model(encoder.weights, encoder.architecture) for name, encoder in encoders.items()}
    return federation, {name: similarity(task.project(model, shard).double().cpu()) for name, model in models.items()}


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Mean over images of Spearman's correlation of their similarities with the others, both [N, N]."""
    others = ~torch.eye(len(first), dtype=torch.bool)
    ranks = [torch.from_numpy(rankdata(rows[others].view(len(rows), -1).numpy(), axis=1)) for rows in (first, second)]
    centered = [rows - rows.mean(dim=1, keepdim=True) for rows in ranks]
    return float(F.cosine_similarity(*centered, dim=1).mean())


def similarity_ranks(clients: Path, centralized: Path, student: Path) -> dict[str, float]:
    """Correlation with a centralized run of clients alone, their sharpened mean (FLESD, Eq. 6) and FLESD's student."""
    opened = [similarities_of(run) for run in (clients, centralized, student)]
    if len({(federation.config.seed, federation.dataset.test.images.tobytes()) for federation, _ in opened}) > 1:
        raise ValueError(
            "the runs have other seeds or test images, and so other images to compare: name three of one seed"
        )
    (_, alone), (second, pooled), (federation, distilled) = opened
    if len(alone) < 2:
        raise ValueError(f"the first run is to have an encoder of each client, got {len(alone)}")
    if second.config.partition.name != "pooled":
        raise ValueError(f"the second run is to be centralized, got partition={second.config.partition.name}")
    if not isinstance(federation.method, FLESD):
        raise ValueError(f"the third run is to be FLESD's, got {federation.config.system}")
    found = alone | {"ensemble": ensemble(sharpen(rows, federation.method.temperature) for rows in alone.values())}
    (reference,), (found["student"],) = pooled.values(), distilled.values()
    return {name: rank_correlation(rows, reference) for name, rows in found.items()}


def cluster_information(run: Path) -> dict[str, float]:
    """Adjusted mutual information of Orchestra's clusters of test images with their classes; chance is 0.

    A cluster is the global centroid that is nearest to the target's projection. More clusters than classes keep it below 1.
    """
    record, federation = open_run(run, trust=False, draws=False)
    task, test = federation.task, federation.dataset.test
    server = checkpoints.read(checkpoints.latest(record.checkpoints).server, record.checkpoints)
    if not isinstance(server, ServerState):
        raise ValueError(f"clusters are Orchestra's, got a run of {federation.config.system}")
    model = task.model(target_weights(server.weights))
    projections = task.project(model, Shard.of(test.images, np.arange(len(test)), task.device)).cpu()
    clusters = (projections @ server.centroids.T).argmax(dim=1)
    information = adjusted_mutual_info_score(test.labels, clusters)
    return {"adjusted mutual information": float(information), "clusters used": len(clusters.unique())}


def main(arguments: list[str]) -> Mapping[str, float]:
    """Measure what the first argument names, of the runs in the others."""
    parser = argparse.ArgumentParser(prog="python -m examples.mechanism_measures")
    measures = parser.add_subparsers(dest="measure", required=True)
    similarities = measures.add_parser("similarities", help="FLESD's similarities beside a centralized model's")
    for name in ("clients", "centralized", "student"):
        similarities.add_argument(name, type=Path, metavar=name.upper())
    measures.add_parser("clusters", help="Orchestra's clusters and classes").add_argument(
        "run", type=Path, metavar="RUN"
    )
    options = parser.parse_args(arguments)
    if options.measure == "clusters":
        return cluster_information(options.run)
    return similarity_ranks(options.clients, options.centralized, options.student)


if __name__ == "__main__":
    try:
        measured = main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"error: {error}")
    for name, value in measured.items():
        sys.stdout.write(f"{name} {value:.3f}\n" if isinstance(value, float) else f"{name} {value}\n")
