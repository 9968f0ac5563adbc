"""The laws reject methods that break them: each method here is FedAvg with one fault."""

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.config.schema import Config
from rayfed_ssl.method import Client, Encoder, Method, Metrics, Server, sent
from rayfed_ssl.methods.fedavg import Download, FedAvg, ServerState, Upload
from rayfed_ssl.trees import Weights, map_leaves
from tests.laws import laws, privacy

Step = tuple[Any, Any, Metrics]
ROUNDS = itertools.count()


def shift(weights: Weights, amount: float) -> Weights:
    """Add a number to every floating-point entry."""
    return {name: value + amount if value.is_floating_point() else value for name, value in weights.items()}


@dataclass(frozen=True, kw_only=True)
class Sound(FedAvg):
    """FedAvg itself: obeys every law."""


@dataclass(frozen=True, kw_only=True)
class WritesItsDownload(Sound):
    def update_client(self, download: Download, state: Any, client: Client) -> Step:
        step = super().update_client(download, state, client)
        next(iter(download.weights.values())).mul_(0.5)
        return step


@dataclass(frozen=True, kw_only=True)
class WritesUploads(Sound):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        for upload in uploads.values():
            next(iter(upload.weights.values())).mul_(upload.num_samples)
        return super().update_server(state, uploads, server)


@dataclass(frozen=True, kw_only=True)
class KeepsStateOnItself(Sound):
    def update_client(self, download: Download, state: Any, client: Client) -> Step:
        upload, own, metrics = super().update_client(download, state, client)
        trained = getattr(self, "trained", 0) + 1
        object.__setattr__(self, "trained", trained)
        return replace(upload, weights=shift(upload.weights, trained / 8)), own, metrics


@dataclass(frozen=True, kw_only=True)
class CountsWhoCameBefore(Sound):
    def update_client(self, download: Download, state: Any, client: Client) -> Step:
        upload, own, metrics = super().update_client(download, state, client)
        return replace(upload, weights=shift(upload.weights, next(ROUNDS) / 8)), own, metrics


@dataclass(frozen=True, kw_only=True)
class UsesPythonsRandomness(Sound):
    def update_client(self, download: Download, state: Any, client: Client) -> Step:
        upload, own, metrics = super().update_client(download, state, client)
        return replace(upload, weights=shift(upload.weights, random.random())), own, metrics


@dataclass(frozen=True, kw_only=True)
class UsesNumpysRandomness(Sound):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        after, metrics = super().update_server(state, uploads, server)
        return replace(after, weights=shift(after.weights, np.random.rand())), metrics  # noqa: NPY002


@dataclass(frozen=True, kw_only=True)
class UsesFreshRandomness(Sound):
    def update_client(self, download: Download, state: Any, client: Client) -> Step:
        upload, own, metrics = super().update_client(download, state, client)
        return replace(upload, weights=shift(upload.weights, np.random.default_rng().random())), own, metrics


@dataclass(frozen=True, kw_only=True)
class IgnoresTheSeed(Sound):
    def init_server(self, server: Server) -> ServerState:
        return map_leaves(
            lambda leaf: torch.ones_like(leaf) if torch.is_tensor(leaf) else leaf, super().init_server(server)
        )

    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        return state, {}


@dataclass(frozen=True, kw_only=True)
class ReadsUploadsTwice(Sound):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        total = sum(upload.num_samples for upload in uploads.values())
        after, _ = super().update_server(state, uploads, server)
        return after, {"samples": total}


@dataclass(frozen=True)
class Telltale:
    weights: Weights = sent("weights")
    num_samples: int = sent("statistics")
    shard: Any = sent("statistics", default=None)


@dataclass(frozen=True, kw_only=True)
class SendsItsShard(Sound):
    def update_client(self, download: Download, state: Any, client: Client) -> Step:
        upload, own, metrics = super().update_client(download, state, client)
        return Telltale(upload.weights, upload.num_samples, client.data.rows.numpy()), own, metrics


@dataclass(frozen=True, kw_only=True)
class PeeksAtOtherShards(Sound):
    def update_client(self, download: Download, state: Any, client: Client) -> Step:
        upload, own, metrics = super().update_client(download, state, client)
        return (
            replace(upload, weights=shift(upload.weights, float(client.data.images[:5].float().mean()))),
            own,
            metrics,
        )


@dataclass(frozen=True, kw_only=True)
class TrainsBackwards(Sound):
    def update_client(self, download: Download, state: Any, client: Client) -> Step:
        upload, own, metrics = super().update_client(download, state, client)
        return upload, own, metrics | {"loss": metrics["loss_first"], "loss_first": metrics["loss"]}


@dataclass(frozen=True, kw_only=True)
class Collapses(Sound):
    def encoders(self, state: ServerState, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        (encoder,) = super().encoders(state, clients).values()
        zeros = {name: torch.zeros_like(v) if "conv" in name else v for name, v in encoder.weights.items()}
        return {"global": replace(encoder, weights=zeros)}


@dataclass(frozen=True, kw_only=True)
class Diverges(Sound):
    def encoders(self, state: ServerState, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        (encoder,) = super().encoders(state, clients).values()
        return {"global": replace(encoder, weights=shift(encoder.weights, float("nan")))}


def seed(config: Config, path: Path) -> None:
    laws.check_seed_decides(config, laws.simulate(config, path / "run"), laws.play(laws.fresh(config)))


def resume(config: Config, path: Path) -> None:
    laws.check_resume(config, laws.simulate(config, path / "run"), path)


def order(config: Config, path: Path) -> None:
    laws.check_order(config, laws.play(laws.fresh(config)))


def folding(config: Config, path: Path) -> None:
    laws.check_uploads_are_folded(config, laws.play(laws.fresh(config), 1))


def randomness(config: Config, path: Path) -> None:
    laws.check_randomness_is_the_engines(config, laws.play(laws.fresh(config), 1))


def dropout(config: Config, path: Path) -> None:
    laws.check_dropout(config, laws.play(laws.fresh(config), 1))


def messages(config: Config, path: Path) -> None:
    privacy.check_messages(laws.play(laws.fresh(config), 1))


def isolation(config: Config, path: Path) -> None:
    privacy.check_isolation(config, laws.play(laws.fresh(config), 1))


def encoders(config: Config, path: Path) -> None:
    laws.check_encoders(config, laws.play(laws.fresh(config), 1), least=0.005)


def inputs(config: Config, path: Path) -> None:
    laws.check_inputs_are_not_written(config)


def losses(config: Config, path: Path) -> None:
    longer = config.training.model_copy(update={"epochs": 8})
    laws.check_loss_falls(config.model_copy(update={"training": longer}))


Law = Callable[[Config, Path], None]
CAUGHT: list[tuple[Law, type[Method], str]] = [
    (inputs, WritesItsDownload, "wrote to its input"),
    (inputs, WritesUploads, "wrote to its input"),
    (inputs, KeepsStateOnItself, "wrote to its input"),
    (seed, UsesFreshRandomness, "two runs with one seed differ"),
    (seed, IgnoresTheSeed, "another seed gives the same state"),
    (resume, KeepsStateOnItself, "resuming after round 1 gives other states"),
    (order, KeepsStateOnItself, "uploads something else"),
    (order, CountsWhoCameBefore, "uploads something else"),
    (randomness, UsesPythonsRandomness, "moved a global generator"),
    (randomness, UsesNumpysRandomness, "moved a global generator"),
    (randomness, UsesFreshRandomness, "depends on a global generator"),
    (dropout, IgnoresTheSeed, "does not look at uploads"),
    (folding, ReadsUploadsTwice, "uploads were read as"),
    (messages, SendsItsShard, "/shard is a ndarray"),
    (isolation, PeeksAtOtherShards, "sees others' images"),
    (losses, TrainsBackwards, "does not fall"),
    (encoders, Collapses, "global is collapsed"),
    (encoders, Diverges, "is not finite"),
]


def with_method(tiny: Callable[..., Config], method: type[Method]) -> Config:
    return tiny("fedavg").model_copy(update={"method": method()})


@pytest.mark.parametrize(
    ("law", "method", "message"), CAUGHT, ids=[f"{m.__name__}-{law.__name__}" for law, m, _ in CAUGHT]
)
def test_a_law_rejects(tiny: Callable[..., Config], tmp_path: Path, law: Law, method: type[Method], message: str):
    with pytest.raises(AssertionError, match=message):
        law(with_method(tiny, method), tmp_path)


@pytest.mark.parametrize("law", dict.fromkeys(law for law, *_ in CAUGHT), ids=lambda law: law.__name__)
def test_a_law_accepts_a_sound_method(tiny: Callable[..., Config], tmp_path: Path, law: Law):
    law(with_method(tiny, Sound), tmp_path)
