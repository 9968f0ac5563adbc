"""Test images on a plane by t-SNE of their features (van der Maaten and Hinton 2008), as FedCA's Figure 3 has it."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.data.partitions import random_rows
from rayfed_ssl.engine.diagnostics import shown
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.environment import compute_threads
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.export.saved_encoders import encoder_file, read_encoder
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.runs import replay
from rayfed_ssl.seeds import Purpose, derive_seed
from rayfed_ssl.trees import Weights

SAMPLES = 2048
"""Test images, at most (FedFoA, section 4.3)."""

PERPLEXITY = 30.0


@dataclass(frozen=True)
class Embedding:
    """Test images on a plane.

    Attributes:
        points: float32 [N, 2].
        labels: int64 [N].
        classes: Their names.
        held: Classes that the local model's client holds; None for a global encoder.
    """

    points: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    held: frozenset[int] | None


def embed(directory: Path, *, local: bool) -> Embedding:
    """Embed test images by the features of a finished run's encoder.

    Args:
        directory: The run.
        local: Take the model that the first client sent in the last round, in place of the run's encoder.

    Raises:
        ConfigError: There is no such run, or it has no global encoder.
        CheckpointError: The round before the last is not on disk.
    """
    config = RunRecord.open(directory).config("engine.executor=local")
    federation = Federation.open(config)
    task, test = federation.task, federation.dataset.test
    client = federation.client_ids[0]
    architecture, weights = task.encoder, None
    with compute_threads(config.engine.threads):
        if local:
            weights = _sent(directory, config.rounds, client, federation.num_public)
        if weights is None:
            encoder = read_encoder(encoder_file(directory))
            architecture, weights = encoder.architecture, encoder.weights
        rows = random_rows(len(test), SAMPLES, derive_seed(config.seed, Purpose.DIAGNOSTICS))
        features = extract_features(
            task.model(weights, architecture).encoder,
            test.images[rows],
            partial(normalize, recipe=task.views.first),
            device=task.device,
            precision=task.precision,
        )
        points = tsne(features.numpy(), config.seed)
    own = federation.dataset.train.labels[federation.shards[client]]
    held = frozenset(int(label) for label in np.unique(own)) if local else None
    return Embedding(points, test.labels[rows], test.classes, held)


def tsne(features: np.ndarray, seed: int) -> np.ndarray:
    """Place features [N, d] on a plane, [N, 2]; with one thread, as sums over threads may differ in their last bits."""
    from sklearn.manifold import TSNE  # takes a second, which no other report should pay

    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    init = "pca" if min(features.shape) >= 2 else "random"
    with threadpool_limits(1):
        placed = TSNE(perplexity=perplexity, init=init, random_state=seed % 2**32)  # scikit-learn takes no more
        return np.asarray(placed.fit_transform(features))


def _sent(directory: Path, round: int, client: int, num_public: int) -> Weights | None:
    return shown(replay(directory, round, client).upload, num_public).weights
