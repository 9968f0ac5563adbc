"""Objectives with settings that make them quick on a few dozen digits."""

from collections.abc import Callable

import pytest

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.training.task import Task
from tests.objectives.local_rounds import SETTINGS

Open = Callable[..., Federation]


@pytest.fixture(scope="session")
def open_objective(open_tiny: Open) -> Open:
    """Open the federation of FedAvg with an objective: open_objective("moco", "objective.symmetric=false")."""
    return lambda name, *overrides: open_tiny("fedavg", f"objective={name}", *SETTINGS[name], *overrides)


@pytest.fixture(scope="session")
def task(open_tiny: Open) -> Task:
    """A task whose two views are drawn by different recipes, so that an exchange of them shows."""
    task = open_tiny("fedavg", "training.views=orchestra").task
    assert task.views.first != task.views.second
    return task
