"""Fixtures of all tests: tiny runs, their own cache, one compute thread."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import settings

import actors  # noqa: F401  # sets Ray's variables before a test imports Ray
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods import METHODS
from tests.xdist_scheduler import pytest_xdist_make_scheduler  # noqa: F401  # a hook

# What makes a method quick on a few dozen samples; each method takes the fields that it has.
SMALL_METHOD = {
    "queue_size": 32,
    "distil_batch": 16,
    "distil_epochs": 2,
    "refill": "first",
    "warm_up": 1,
    "digest_batch": 16,
    "align_epochs": 2,
    "dictionary_size": 40,
    "features": 24,
    "passes": 2,
    "global_steps": 20,
}

# Objectives of methods that take no other.
OWN_OBJECTIVE: dict[str, dict[str, Any]] = {
    "fedx": {"name": "fedx"},
    "orchestra": {"name": "orchestra", "clusters": 6, "local_clusters": 4, "memory": 16},
    "ssd": {"name": "align-uniform"},
    "fedsc": {"name": "spectral"},
    "fedmar": {"name": "mae", "width": 32, "depth": 1},
    "fedsigreg": {"name": "lejepa", "hidden": 48, "directions": 32},
}

# Models of methods whose projections are as wide as features, or that hide patches.
OWN_MODEL: dict[str, dict[str, Any]] = {
    "ssd": {"projection_dim": 256},
    "fedmar": {"encoder": "vit-micro", "projection_dim": None},
}

TinyConfig = Callable[..., Config]

# Examples are the same in every run, and a busy machine fails no test.
settings.register_profile("rayfed-ssl", deadline=None, derandomize=True, database=None)
settings.load_profile("rayfed-ssl")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep decoded datasets out of the user's cache, and signatures from their key, in subprocesses too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute as executors do by default: bits depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_tree(name: str) -> dict[str, Any]:
    """A recipe of two rounds on 150 digits: shards of unequal sizes, batches of unequal sizes, 45 public samples."""
    method = METHODS[name].method()
    own = {field.name for field in fields(method)}
    return {
        "rounds": 2,
        "method": {"name": name, **{key: value for key, value in SMALL_METHOD.items() if key in own}},
        "objective": OWN_OBJECTIVE.get(name, {"name": "simclr"}),
        "data": {"name": "digits", "train_limit": 150, "test_limit": 60},
        "partition": {"name": "dirichlet", "alpha": 1.0},
        "clients": {"number": 3},
        "public": "fraction:0.3" if method.needs_public else None,
        "model": {"encoder": "cnn", "projection_dim": 24} | OWN_MODEL.get(name, {}),
        "training": {"epochs": 1, "batch": 32},
        "evaluation": {"every": 0, "linear": {"epochs": 2}},
        "engine": {"executor": "local", "device": "cpu", "precision": "fp32", "actors": 2, "trackers": []},
    }


@pytest.fixture(scope="session")
def tiny() -> TinyConfig:
    """Build the configuration of a run that takes a second: tiny("fedprox", "method.mu=1")."""
    return lambda name, *overrides: Config.load(tiny_tree(name), *overrides)


@pytest.fixture(scope="session")
def open_tiny(tiny: TinyConfig) -> Callable[..., Federation]:
    """Open the federation of a tiny configuration."""
    return lambda name, *overrides: Federation.open(tiny(name, *overrides))
