"""Encoders of a run beside each other, without labels: RUN/diagnostics.json, which `Diagnostics` describes."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.data.partitions import count_samples
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.diagnostics import CLIENT_SAMPLES, encoder_diagnostics, holds, sample_images
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.representation_metrics import (
    angles,
    centered_gram,
    cka,
    false_negatives,
    nearest,
    neighbors_in_common,
    relation,
    relation_distance,
)
from rayfed_ssl.export.encoders import encoders_of
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.method import Encoder
from rayfed_ssl.records.metric_rows import client_of
from rayfed_ssl.records.replay import open_run
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import RunState, StoredStates
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.training.state_parts import model_weights

FILE = "diagnostics.json"


class PairMatrix(StrictModel):
    """A number for each pair of encoders, None where two cannot be compared; an open end of the range is None, too."""

    title: Annotated[str, Field(min_length=1)]
    unit: str
    range: Annotated[list[float | None], Field(min_length=2, max_length=2)]
    encoders: list[str]
    clients: list[int | None]
    values: list[list[float | None]]

    @model_validator(mode="after")
    def _check(self) -> "PairMatrix":
        if {len(self.clients), len(self.values), *map(len, self.values)} != {len(self.encoders)}:
            raise ValueError("a matrix has a row and a column for each encoder")
        return self


class FalseNegatives(StrictModel):
    """Shares of negatives of the sample's own class, by client, from labels that no client sees.

    They are shares of the client's own negatives, of all clients' (FCL, Eq. 4), and of the others' alone (FCL, Eq. 5).
    """

    clients: list[int]
    local: list[float]
    fused: list[float]
    remote: list[float] | None

    @model_validator(mode="after")
    def _check(self) -> "FalseNegatives":
        if {len(self.local), len(self.fused), len(self.remote or self.local)} != {len(self.clients)}:
            raise ValueError("each client has one share of each kind")
        return self


class Diagnostics(StrictModel):
    """What follows from a run's encoders after a committed round, and from its partition.

    All numbers are computed on the given number of images of a split, "test" or "held-out" (data.validation). Matrices are
    "cka", "neighbors", "angle" and "relation_distance", where they could be computed; notes say what could not, and why.
    """

    round: int
    method: str
    seed: int
    samples: int
    split: str
    encoders: dict[str, dict[str, str | int | float | None]]
    matrices: dict[str, PairMatrix]
    false_negatives: FalseNegatives | None
    notes: list[str]

    def write(self, directory: Path) -> None:
        """Write RUN/diagnostics.json."""
        write_atomically(directory / FILE, self.model_dump_json(indent=1).encode())


def diagnose(directory: Path | str, round: int | None = None, *, trust: bool = False) -> Diagnostics:
    """Compare a run's encoders after a round (default: the last).

    With `trust`, the modules that a run of somebody else names are imported.

    Raises:
        ConfigError: There is no such run, or an encoder in it has diverged.
        CheckpointError: The round is not on disk, or damaged.
    """
    record, federation = open_run(Path(directory), trust=trust, draws=False)
    state = checkpoints.latest(record.checkpoints, round)
    with compute_threads(federation.config.engine.threads):
        encoders = encoders_in(federation, state, record.checkpoints)
        return compare_encoders(federation, encoders, state.round)


def encoders_in(federation: Federation, state: RunState, directory: Directory) -> dict[str, Encoder]:
    """Read the encoders that the method shows, and those that clients keep for themselves beside a global one."""
    encoders, task = encoders_of(federation.method, state, directory), federation.task
    if any(client_of(name) is not None for name in encoders):
        return encoders
    for client_id, client_state in StoredStates(state.clients, directory).items():
        weights, name = getattr(client_state, "weights", None), task.architecture(client_id)
        if isinstance(weights, dict) and holds(weights, "encoder", name, task):
            encoders[f"client-{client_id}"] = Encoder(name, model_weights(weights))
    return encoders


def compare_encoders(federation: Federation, encoders: Mapping[str, Encoder], round: int) -> Diagnostics:
    """Compare encoders of a round; raises ConfigError where an encoder's features are not finite."""
    config, task, dataset = federation.config, federation.task, federation.dataset
    images = sample_images(config, dataset, CLIENT_SAMPLES)
    described: dict[str, dict[str, str | int | float | None]] = {}
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
    return Diagnostics(
        round=round,
        method=config.system,
        seed=config.seed,
        samples=len(images),
        split="test" if config.data.validation is None else "held-out",
        encoders=described,
        matrices=_matrices(features, relations) if len(features) > 1 else {},
        false_negatives=ratios,
        notes=list(_notes(len(federation.shards), features, relations, ratios)),
    )


def _matrices(features: Mapping[str, Tensor], relations: Mapping[str, Tensor]) -> dict[str, PairMatrix]:
    """Compare all pairs of encoders; a matrix without any pair is left out."""
    grams = {name: centered_gram(rows) for name, rows in features.items()}
    neighbors = {name: nearest(rows) for name, rows in features.items()}
    kinds: dict[str, tuple[str, str, list[float | None], Mapping[str, Tensor], Callable[[Tensor, Tensor], float]]] = {
        "cka": ("linear CKA", "", [0, 1], grams, cka),
        "neighbors": ("share of nearest neighbors in common", "", [0, 1], neighbors, neighbors_in_common),
        "angle": ("median angle between features", "degrees", [0, 180], features, lambda a, b: angles(a, b).median),
        "relation_distance": ("distance of relation matrices", "", [0, None], relations, relation_distance),
    }
    names = list(features)
    matrices = {}
    for kind, (title, unit, limits, rows, compare) in kinds.items():
        values: list[list[float | None]] = [
            [compare(rows[a], rows[b]) if _alike(rows, a, b) else None for b in names] for a in names
        ]
        if any(value is not None for i, line in enumerate(values) for value in line[:i]):
            clients = [client_of(name) for name in names]
            matrices[kind] = PairMatrix(
                title=title, unit=unit, range=limits, encoders=names, clients=clients, values=values
            )
    return matrices


def _alike(rows: Mapping[str, Tensor], first: str, second: str) -> bool:
    return first in rows and second in rows and rows[first].shape == rows[second].shape


def _false_negatives(federation: Federation) -> FalseNegatives | None:
    """False-negative ratios of the clients that train, or None where a client's samples have no labels."""
    train = federation.dataset.train
    shards = [federation.shards[client_id] for client_id in federation.client_ids]
    counts = count_samples(train.labels, shards, train.num_classes)
    if not counts.any(axis=1).all():
        return None
    ratios = false_negatives(torch.from_numpy(counts))
    return FalseNegatives(
        clients=list(federation.client_ids),
        local=[ratio.local for ratio in ratios],
        fused=[ratio.fused for ratio in ratios],
        remote=[ratio.remote for ratio in ratios if ratio.remote is not None] or None,
    )


def _notes(
    num_clients: int,
    features: Mapping[str, Tensor],
    relations: Mapping[str, Tensor],
    ratios: FalseNegatives | None,
) -> Iterator[str]:
    if num_clients < 2:
        yield "one client trains: there is nothing to compare it with"
    elif len(features) < 2:
        yield (
            "the checkpoint holds no clients' models to compare, only the encoder "
            f"{', '.join(features) or '(none)'}: set evaluation.diagnostics=1 to compare them during a run"
        )
    if len({rows.shape[1] for rows in features.values()}) > 1:
        yield "encoders of different widths have no angle between them: CKA and neighbors in common compare them"
    if len({relations[name].shape if name in relations else None for name in features}) > 1:
        yield "relation matrices need a projector of one width in all of these encoders: see model.projection_dim"
    if ratios is None:
        yield "false-negative ratios need labels, which a client's samples do not have"
