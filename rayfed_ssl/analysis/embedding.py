"""Test images on a plane by t-SNE (van der Maaten and Hinton 2008) of their features.

One thread computes, as sums over threads may differ in their last bits.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from rayfed_ssl.data.partitions import random_rows
from rayfed_ssl.engine.diagnostics import model_content
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.export.encoders import last_encoder
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.method import Encoder
from rayfed_ssl.randomness.seeds import Purpose, derive_seed
from rayfed_ssl.records.replay import replay
from rayfed_ssl.records.run_record import RunRecord

SAMPLES = 2048
"""Test images, at most (FedFoA, section 4.3)."""

PERPLEXITY = 30.0


@dataclass(frozen=True)
class Embedding:
    """Test images on a plane, [N, 2]; `held` are the classes of a local model's client, None for a global encoder."""

    points: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    held: frozenset[int] | None


def embed(directory: Path, *, local: bool) -> Embedding:
    """Embed test images by the features of a finished run's encoder, as FedCA's Figure 3 does.

    With `local`, the model that the first client sent in the last round takes the place of the run's encoder; the round
    before the last has to be on disk then.
    """
    record = RunRecord.open(directory)
    config = record.config("engine.executor=local")
    federation = Federation.open(config)
    test, client = federation.dataset.test, federation.client_ids[0]
    weights = None
    with compute_threads(config.engine.threads):
        if local:
            weights = model_content(replay(directory, record.last_round, client).upload, federation.num_public).weights
        encoder = (
            last_encoder(record, "global").encoder if weights is None else Encoder(federation.task.encoder, weights)
        )
        rows = random_rows(len(test), SAMPLES, derive_seed(config.seed, Purpose.DIAGNOSTICS))
        points = tsne(image_features(federation, encoder, test.images[rows]), config.seed)
    labels = federation.dataset.train.labels[federation.shards[client]]
    held = frozenset(int(label) for label in np.unique(labels)) if local else None
    return Embedding(points, test.labels[rows], test.classes, held)


def image_features(federation: Federation, encoder: Encoder, images: np.ndarray) -> np.ndarray:
    """Compute features of images uint8 [N, C, H, W], float32 [N, d]."""
    task = federation.task
    model = task.model(encoder.weights, encoder.architecture).encoder
    return extract_features(model, images, task.plain, device=task.device, precision=task.precision).numpy()


def tsne(features: np.ndarray, seed: int) -> np.ndarray:
    """Place features [N, d] on a plane, [N, 2], by t-SNE."""
    from sklearn.manifold import TSNE  # takes a second to import

    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    init = "pca" if min(features.shape) >= 2 else "random"
    with threadpool_limits(1):
        method = TSNE(perplexity=perplexity, init=init, random_state=seed % 2**32)  # scikit-learn takes no more
        return np.asarray(method.fit_transform(features))
