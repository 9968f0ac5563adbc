"""How much a sweep runs: trials, runs and rounds counted, impossible points with their reasons."""

from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.errors import ConfigError
from tests.tune.studies.swept import write
from tune.studies.definition.files import load_sweep
from tune.studies.definition.schema import Sweep
from tune.studies.execution.dry_run import size_of

SYSTEMS = {"FedAvg": {}, "FedProx": {"set": {"method.name": "fedprox"}}}


def small(folder: Path, **tree: Any) -> Sweep:
    return load_sweep(write(folder, tree, "small"))


def test_trials_runs_and_rounds_are_counted_and_equal_runs_once(tmp_path):
    size = size_of(small(tmp_path, space={"system": {"variants": SYSTEMS}, "rounds": [1, 2]}, seeds=2))
    assert (size.trials, size.runs, size.rounds, size.upper_bound) == (4, 8, 2 * 2 * (1 + 2), False)
    assert size.lines() == ["small: trials 4, seeds 0, 1, different runs 8, 12 rounds"]
    twins = {"A": {}, "B": {"set": {"evaluation.knn.neighbors": 200}}}
    size = size_of(small(tmp_path, space={"system": {"variants": twins}}))
    assert (size.trials, size.runs) == (2, 1)


def test_impossible_points_are_listed_with_their_reasons(tmp_path):
    size = size_of(small(tmp_path, space={"clients.number": [3, 1000]}))
    ((trial, reason),) = size.impossible.items()
    assert (size.runs, trial) == (1, "trial 1 (clients.number=1000)")
    assert "1000" in reason
    assert size.lines()[1] == f"impossible, {trial}: {reason}"


def test_where_nothing_can_be_run_the_reason_is_the_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no trial can be run: .*1000"):
        size_of(small(tmp_path, space={"clients.number": [1000, 2000]}))


def test_early_stopping_makes_rounds_an_upper_bound(tmp_path):
    tree = {
        "space": {"evaluation.knn.temperature": {"log": [0.01, 1]}},
        "search": {"name": "tpe", "n_startup_trials": 2},
    }
    size = size_of(small(tmp_path, **tree, trials=3, stop={"rule": "asha", "grace": 1, "reduction": 2}))
    assert size.lines() == ["small: trials 3, seeds 0, different runs 3, at most 6 rounds"]
