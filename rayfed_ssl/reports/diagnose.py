"""What a run's encoders look like beside each other, without labels: RUN/diagnostics.json.

{
  "round": 8,                       the committed round
  "method": "fedfoa", "seed": 0,
  "samples": 256,                   images, unlabeled, that all numbers are computed on
  "split": "test",                  of the test set; "held-out" for training samples that data.validation has held out
  "encoders": {                     in the method's order
    "client-0": {"architecture": "cnn", "width": 256, "feature_std": 0.41, "effective_rank": 31.2,
                 "alignment": 0.22, "uniformity": -1.9}, ...
  },
  "matrices": {                     only those that could be computed; {} where there are fewer than two encoders
    "cka": {
      "title": "linear CKA", "unit": "", "range": [0, 1],     range: [low, high], high null where there is none
      "encoders": ["client-0", "client-1"],                   rows and columns
      "clients": [0, 1],                                      their client ids, null for an encoder of no client
      "values": [[1.0, 0.8], [0.8, 1.0]]                      symmetric; null where a pair cannot be compared
    },
    "angle": {...},                 median angle between the features of one image, degrees, [0, 180]
    "relation_distance": {...}      Euclidean distance of relation matrices, [0, null]
  },
  "angles": [{"encoders": ["client-0", "client-1"], "clients": [0, 1], "lower": 31.0, "median": 36.2, "upper": 41.9}, ...],
                                    quartiles of the angles of each pair in degrees, for boxes as in FedCA's Figure 4
  "false_negatives": {              from the labels of the partition, which no client is shown; null without labels
    "clients": [0, 1],              ids of the clients that train
    "local": [0.5, 0.2],            share of negatives of the sample's own class, of the client's own negatives
    "fused": [0.2, 0.1],            of its own and all others' negatives (FCL, Eq. 4)
    "remote": [0.1, 0.1]            of the others' negatives alone (FCL, Eq. 5); null with one client
  },
  "notes": ["..."]                  what could not be computed, and why
}
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.diagnostics import CLIENT_SAMPLES, encoder_diagnostics, holds, sample_images
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.environment import compute_threads
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.representation_metrics import (
    angles,
    centered_gram,
    cka,
    false_negatives,
    relation,
    relation_distance,
)
from rayfed_ssl.method import Encoder
from rayfed_ssl.records.run_record import RunRecord, encoders_of
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import RunState, StoredStates
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.training.state_parts import model_weights

FILE = "diagnostics.json"


def diagnose(
    directory: Path, round: int | None = None, on_unwritten: Callable[[OSError], None] | None = None
) -> dict[str, Any]:
    """Look at a run's encoders and write RUN/diagnostics.json.

    Args:
        directory: The run record.
        round: A committed round; None takes the last.
        on_unwritten: Is told where the file cannot be written; None lets the error out.

    Returns:
        What was found and written, as the module describes it.

    Raises:
        ConfigError: There is no such run, or an encoder in it has diverged.
        CheckpointError: The round is not on disk, or damaged.
        OSError: The file cannot be written, and nobody is told.
    """
    record = RunRecord.open(directory)
    federation = Federation.open(record.config("engine.executor=local"))
    record.check(federation)
    state = checkpoints.latest(record.checkpoints, round)
    with compute_threads(federation.config.engine.threads):
        found = examine(federation, encoders_in(federation, state, record.checkpoints))
    found = {"round": state.round, "method": federation.config.system, "seed": federation.config.seed} | found
    try:
        write_atomically(directory / FILE, json.dumps(found, indent=1).encode())
    except OSError as error:
        if on_unwritten is None:
            raise
        on_unwritten(error)
    return found


def encoders_in(federation: Federation, state: RunState, directory: Directory) -> dict[str, Encoder]:
    """Read the encoders that the method shows, and those that clients keep for themselves beside a global one."""
    encoders, task = encoders_of(federation, state, directory), federation.task
    if any(client_of(name) is not None for name in encoders):
        return encoders
    for client_id, own in StoredStates(state.clients, directory).items():
        weights, name = getattr(own, "weights", None), task.architecture(client_id)
        if isinstance(weights, dict) and holds(weights, "encoder", name, task):
            encoders[f"client-{client_id}"] = Encoder(name, model_weights(weights))
    return encoders


def examine(federation: Federation, encoders: Mapping[str, Encoder]) -> dict[str, Any]:
    """Compute all that follows from the encoders and the partition.

    Raises:
        ConfigError: An encoder's features are not finite.
    """
    config, task, dataset = federation.config, federation.task, federation.dataset
    images = sample_images(config, dataset, CLIENT_SAMPLES)
    described: dict[str, dict[str, Any]] = {}
    features: dict[str, Tensor] = {}
    relations: dict[str, Tensor] = {}
    for name, encoder in encoders.items():
        try:
            numbers = encoder_diagnostics(encoder, config, task, dataset)
        except ValueError as error:
            raise ConfigError(f"encoder {name!r} cannot be diagnosed: {error}") from error
        model = task.model(encoder.weights, encoder.architecture)
        rows, projections = task.represent(model, Shard.of(images, np.arange(len(images)), task.device))
        features[name] = rows.cpu()
        if holds(encoder.weights, "projector", encoder.architecture, task):
            relations[name] = relation(projections)
        described[name] = {"architecture": encoder.architecture, "width": rows.shape[1]}
        described[name] |= {key.removeprefix("diag_"): value for key, value in numbers.items()}
    ratios = _false_negatives(federation)
    return {
        "samples": len(images),
        "split": "test" if config.data.validation is None else "held-out",
        "encoders": described,
        "matrices": _matrices(features, relations) if len(features) > 1 else {},
        "angles": _boxes(features),
        "false_negatives": ratios,
        "notes": list(_notes(len(federation.shards), features, relations, ratios)),
    }


def _matrices(features: Mapping[str, Tensor], relations: Mapping[str, Tensor]) -> dict[str, Any]:
    grams = {name: centered_gram(rows) for name, rows in features.items()}

    def angle(one: Tensor, other: Tensor) -> float:
        return angles(one, other).median

    tables = {
        "cka": _matrix("linear CKA", "", [0, 1], grams, cka),
        "angle": _matrix("median angle between features", "degrees", [0, 180], features, angle),
        "relation_distance": _matrix(
            "distance of relation matrices",
            "",
            [0, None],
            {name: relations.get(name) for name in features},
            relation_distance,
        ),
    }
    return {key: table for key, table in tables.items() if _has_pairs(table["values"])}


def _matrix(
    title: str,
    unit: str,
    limits: list[int | None],
    rows: Mapping[str, Tensor | None],
    compare: Callable[[Tensor, Tensor], float],
) -> dict[str, Any]:
    """Compare everything with everything that has its shape."""

    def entry(one: Tensor | None, other: Tensor | None) -> float | None:
        comparable = one is not None and other is not None and one.shape == other.shape
        return compare(one, other) if comparable else None  # type: ignore[arg-type]

    return {
        "title": title,
        "unit": unit,
        "range": limits,
        "encoders": list(rows),
        "clients": [client_of(name) for name in rows],
        "values": [[entry(one, other) for other in rows.values()] for one in rows.values()],
    }


def _has_pairs(values: Sequence[Sequence[float | None]]) -> bool:
    return any(value is not None for i, row in enumerate(values) for value in row[:i])


def _boxes(features: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    return [
        {"encoders": [one, other], "clients": [client_of(one), client_of(other)]}
        | angles(features[one], features[other])._asdict()
        for one, other in combinations(features, 2)
        if features[one].shape == features[other].shape
    ]


def _false_negatives(federation: Federation) -> dict[str, Any] | None:
    """False-negative ratios of the clients that train, or None where a client's samples have no labels."""
    train = federation.dataset.train
    labels = [train.labels[federation.shards[client_id]] for client_id in federation.client_ids]
    counts = np.stack([np.bincount(own[own >= 0], minlength=train.num_classes) for own in labels])
    if not counts.any(axis=1).all():
        return None
    ratios = false_negatives(torch.from_numpy(counts))
    columns = {
        "local": [ratio.local for ratio in ratios],
        "fused": [ratio.fused for ratio in ratios],
        "remote": [ratio.remote for ratio in ratios] if len(ratios) > 1 else None,
    }
    return {"clients": list(federation.client_ids)} | columns


def _notes(
    num_clients: int,
    features: Mapping[str, Tensor],
    relations: Mapping[str, Tensor],
    ratios: Mapping[str, Any] | None,
) -> Iterator[str]:
    if num_clients < 2:
        yield "one client trains, so there is nothing to compare it with"
    elif len(features) < 2:
        yield (
            "the checkpoint holds no clients' models to compare, only the encoder "
            f"{', '.join(features) or '(none)'}: evaluation.diagnostics=1 compares them while a run goes on"
        )
    if len({rows.shape[1] for rows in features.values()}) > 1:
        yield "encoders of different widths have no angle between them: CKA compares them"
    if len(features) > 1 and len(relations) < len(features):
        yield "relation matrices need the projector, which not all of these encoders come with"
    if len({len(packed) for packed in relations.values()}) > 1:
        yield "relation matrices of projections of different widths have no distance: set model.projection_dim"
    if ratios is None:
        yield "false-negative ratios need labels, which a client's samples do not have"


def client_of(encoder: str) -> int | None:
    """Tell whose encoder it is by its name: 3 of "client-3", None of "global"."""
    kind, _, number = encoder.partition("-")
    return int(number) if kind == "client" and number.isdecimal() else None
