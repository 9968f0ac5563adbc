"""Scores of each client on samples of its own that it never trains on (`clients.test_fraction`).

The vote of neighbors and the linear probe learn from the samples that the client trains on, with their labels, and are
tested on its test part. They see the encoder that the run starts from ("start"), the global one ("global"), and the client's
own ("personal") or, where the method keeps none, the global one tuned on the client's samples ("tuned").
"""

import time
from collections.abc import Mapping
from dataclasses import replace

import torch

from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.gpu_memory import explain
from rayfed_ssl.engine.round_loop import Evaluation, ServerError
from rayfed_ssl.engine.scoring import measure
from rayfed_ssl.evaluation.evaluation_input import Subject
from rayfed_ssl.evaluation.protocols import Linear, Neighbors
from rayfed_ssl.evaluation.registry import OWN, OWN_SAMPLES
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.randomness.seeds import Purpose, derive_seed, generator, seeded_globally
from rayfed_ssl.trees import Weights, frozen


def encoders_of_client(encoders: Mapping[str, Encoder], client_id: int) -> dict[str, Encoder]:
    """Select what a client has of the encoders that a method shows: "global" and its own, as "personal"."""
    names = {"global": "global", f"client-{client_id}": "personal"}
    return {name: encoders[shown] for shown, name in names.items() if shown in encoders}


def score_client(
    federation: Federation, round: int, client_id: int, encoders: Mapping[str, Encoder], kept: Weights
) -> Evaluation:
    """Score a client on its test part, as accuracies in [0, 1]: "own_global_knn" and so on.

    "own_samples" is how many samples they are of, and "own_tuning_steps" how many steps tuning took, if it was.

    Args:
        federation: Of the run.
        round: After which.
        client_id: One of `federation.scored_clients`.
        encoders: What `encoders_of_client` selects.
        kept: The parts of the model that stay with the client.

    Raises:
        ServerError: An encoder diverged, or tuning failed.
    """
    begun, architecture = time.perf_counter(), federation.task.architecture(client_id)
    scored = {"start": Encoder(architecture, federation.start_weights(architecture)), **encoders}
    metrics: Metrics = {OWN_SAMPLES: len(federation.own_tests[client_id])}
    try:
        if "personal" not in scored and "global" in scored and _tuning_epochs(federation):
            scored["tuned"], steps = _tuned(federation, round, client_id, scored["global"], kept)
            metrics[f"{OWN}tuning_steps"] = steps
        for name, encoder in scored.items():
            metrics |= {
                f"{OWN}{name}_{score}": value for score, value in _scores(federation, client_id, encoder).items()
            }
    except (ValueError, torch.OutOfMemoryError) as error:
        cause = error if isinstance(error, ValueError) else explain(error)
        raise ServerError(
            f"client {client_id} cannot be scored on its own samples in round {round}: {cause}"
        ) from error
    return Evaluation(round, f"client-{client_id}", metrics, time.perf_counter() - begun)


def _scores(federation: Federation, client_id: int, encoder: Encoder) -> Metrics:
    config, data = federation.config, federation.dataset.train
    rows = federation.shards[client_id]
    train, test = (
        ImageSet(data.images[part], data.labels[part], data.classes)
        for part in (rows[data.labels[rows] >= 0], federation.own_tests[client_id])
    )
    subject = Subject(encoder.architecture, encoder.weights, federation.task, train, test, config.seed)
    settings = config.evaluation
    protocols = Neighbors(name="knn", **vars(settings.knn)), Linear(name="linear", **vars(settings.linear))
    return {protocol.name: measure(protocol, subject)[protocol.name] for protocol in protocols}


def _tuning_epochs(federation: Federation) -> int:
    """Local epochs of tuning; none for an objective whose loss only its own method makes."""
    if federation.task.objective.belongs_to is not None:
        return 0
    epochs = federation.config.evaluation.tuning_epochs
    return federation.task.epochs if epochs is None else epochs


def _tuned(
    federation: Federation, round: int, client_id: int, encoder: Encoder, kept: Weights
) -> tuple[Encoder, float]:
    """Train the global encoder on a client's samples, as a training of its own; give it, and the steps that it took.

    It minimizes the run's objective with the run's optimizer, whose schedule spans these epochs. Heads that stay with the
    client are its own; what an objective remembers besides its model begins anew, as do adapters, on the merged encoder.
    """
    adapters, seed = federation.config.model.adapters, federation.config.seed
    task = replace(federation.task, adapters=adapters and adapters.of_client(client_id))
    participant = {"round": round, "participant": client_id}
    with seeded_globally(derive_seed(seed, Purpose.DROPOUT, **participant), task.device):
        random = generator(derive_seed(seed, Purpose.TUNING, **participant))
        model = task.model(encoder.weights | kept, encoder.architecture)
        metrics = task.fit(model, federation.client_shard(client_id), random, epochs=_tuning_epochs(federation))
    weights = frozen(model.state_dict())
    return replace(encoder, weights=task.adapters.merged(weights) if task.adapters else weights), metrics["steps"]
