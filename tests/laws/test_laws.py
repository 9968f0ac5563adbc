"""Every law for every method, and for the variants of a method that take another path through its code."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.objectives import (
    BYOL,
    DINO,
    MAE,
    AlignUniform,
    AutoEncoder,
    DeepCluster,
    MoCo,
    Objective,
    Rotation,
    SimCLR,
    SimSiam,
    Spectral,
    SwAV,
)
from rayfed_ssl.objectives.supervised import Supervised
from rayfed_ssl.testing import check_laws, toy_config
from rayfed_ssl.testing.objective_laws import check_steps
from rayfed_ssl.testing.trial import Trial, open_afresh, simulate
from tests.laws.variants import DEFAULT, VARIANTS


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=[] if name in DEFAULT else pytest.mark.slow) for name in VARIANTS]
)
def test_a_method_obeys_every_law(variant_config: Callable[[str], Config], variant: str):
    check_laws(Trial(variant_config(variant), loss_epochs=12 if "objective=moco" in VARIANTS[variant] else 6))


OBJECTIVES = [
    SimCLR(),
    AlignUniform(),
    Spectral(),
    MoCo(queue_size=10),
    BYOL(hidden=32),
    SimSiam(hidden=32, predictor_hidden=12),
    SwAV(prototypes=6, queue_size=20, queue_epoch=0),
    DeepCluster(clusters=6),
    Rotation(),
    AutoEncoder(width=16),
    DINO(hidden=48),
    Supervised(num_classes=10),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: type(objective).__name__)
def test_an_objectives_steps_obey_their_laws(objective: Objective):
    check_steps(toy_config(objective=objective))


def test_the_steps_of_a_masked_autoencoder_obey_the_laws_of_objectives():
    check_steps(toy_config(objective=MAE(width=32, depth=1), settings=["model.encoder=vit-micro"]))


@pytest.mark.slow
def test_only_the_cohort_trains(variant_config: Callable[[str], Config], tmp_path: Path):
    """The fraction C trains in each round, drawn from all clients; only who trains changes its state."""
    config = variant_config("fedema-some-of-the-clients")
    federation, before = open_afresh(config), {}
    for outcome in simulate(config, tmp_path / "run").outcomes:
        trained = [report.client for report in outcome.clients]
        assert trained == sorted(federation.cohort(outcome.state.round))
        assert len(set(trained)) == int(config.clients.fraction * 4 + 0.5) == 3
        assert set(outcome.state.clients) == set(before) | set(trained)
        assert all(outcome.state.clients[client_id] == before[client_id] for client_id in set(before) - set(trained))
        before = outcome.state.clients
