"""Scores of the encoders that a run starts from: what every score of a trained encoder has to be above.

They are cached beside the data's store, so that each architecture's start is scored once for a dataset, a probe and a seed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from pydantic import FiniteFloat

from rayfed_ssl.adversaries.backdoors import Backdoor
from rayfed_ssl.config.choices import ADVERSARY
from rayfed_ssl.data.view_recipes import OwnView
from rayfed_ssl.engine.diagnostics import encoder_diagnostics
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.gpu_memory import release
from rayfed_ssl.engine.result_cache import CachedResult
from rayfed_ssl.engine.round_loop import Executor
from rayfed_ssl.engine.scoring import score
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.trees import digest

DIRECTORY = "start-scores"


def start_scores(federation: Federation, executor: Executor, on_warning: Callable[[str], None]) -> dict[str, Metrics]:
    """Score each architecture's weights before round 1 where the executor scores; one that cannot be has no scores."""
    task = federation.task
    scores: dict[str, Metrics] = {}
    for architecture in dict.fromkeys((task.encoder, *task.client_encoders)):
        try:
            scores[architecture] = executor.score_start(architecture)
        except ConfigError as error:
            scores[architecture] = {}
            on_warning(f"the {architecture} that the run starts from is not scored: {error}")
    return scores


def score_start(federation: Federation, architecture: str) -> Metrics:
    """Score an architecture's weights before round 1 by kNN, linear probe and diagnostics, or read what is cached.

    Raises:
        ConfigError: The encoder gives no finite features, or memory does not suffice.
    """
    task, store = federation.task, federation.dataset.train.path
    with compute_threads(federation.config.engine.threads):
        encoder = Encoder(architecture, task.initial_weights(architecture))
        if store is None or ":" in architecture or isinstance(task.views.first, OwnView):
            scores = _score(federation, encoder)  # data in memory, or an encoder or views whose code may change
        else:
            cached = CachedResult(store.parent / DIRECTORY, _facts(federation, encoder), dict[str, FiniteFloat])
            if not (scores := cached.read() or {}):
                cached.write(scores := _score(federation, encoder))
    if task.device.type == "cuda":
        release()
    return scores


def _score(federation: Federation, encoder: Encoder) -> Metrics:
    """Leave out the protocols by name, of which some take longer than the run, and new crops in each epoch."""
    config, task, dataset = federation.config, federation.task, federation.dataset
    evaluation = config.evaluation.model_copy(update={"protocols": (), "settings": {}, "augment": False})
    config = config.model_copy(update={"evaluation": evaluation})
    try:
        scores = score(encoder, config, task, dataset, final=True)
        scores |= encoder_diagnostics(encoder, config, task, dataset)
    except (ValueError, torch.OutOfMemoryError) as error:
        raise ConfigError(str(error)) from error
    return {name: value for name, value in scores.items() if math.isfinite(value)}  # JSON has no other numbers


def _facts(federation: Federation, encoder: Encoder) -> Mapping[str, Any]:
    evaluation, task = federation.config.dump()["evaluation"], federation.task
    adversary = federation.config.adversary
    classifies = task.objective.classifies  # only then heads are scored, and not the same encoder under any objective
    return {
        "weights": digest({k: w for k, w in encoder.weights.items() if classifies or k.startswith("encoder.")}),
        "architecture": encoder.architecture,
        "classifies": classifies,
        "seed": federation.config.seed,
        "fingerprint": federation.dataset.fingerprint,
        "evaluation": {name: evaluation[name] for name in ("knn", "linear", "train_limit")},
        "views": asdict(task.views),
        "size": task.size,
        "precision": asdict(task.precision),
        "device": task.device.type,
        "threads": torch.get_num_threads(),
    } | ({"adversary": ADVERSARY.dump(adversary)} if isinstance(adversary, Backdoor) else {})
