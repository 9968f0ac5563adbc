"""What a sweep would take: trials and runs counted, bytes as runs then move them, hours from a measured step."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfed_ssl.engine.client_cost import recorded
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.runs import run
from tests.conftest import tiny_tree
from tune.sweeps.definition.files import load_sweep
from tune.sweeps.execution.cost_estimate import Reckoning, reckon
from tune.sweeps.execution.dry_run import print_dry_run
from tune.sweeps.execution.trial_configs import config_of

SYSTEMS = {"FLESD": {}, "FedAvg": {"set": {"method": {"name": "fedavg"}, "public": None}}}
"""Both on tiny digits."""


def write(folder: Path, **tree: Any) -> str:
    """Write a sweep over the tiny FLESD; returns its name."""
    recipe = folder / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(tiny_tree("flesd")))
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump({"recipe": str(recipe)} | tree, sort_keys=False))
    return str(file)


SPACE = {"system": {"variants": SYSTEMS}, "rounds": [1, 2]}


@pytest.fixture(scope="module")
def reckoned(tmp_path_factory: pytest.TempPathFactory) -> Reckoning:
    """Two systems, two numbers of rounds, two seeds; their steps have been measured."""
    return reckon(load_sweep(write(tmp_path_factory.mktemp("sweep"), space=SPACE, seeds=2)))


def test_trials_runs_and_rounds_are_counted(reckoned):
    assert (reckoned.trials, reckoned.runs, reckoned.rounds) == (4, 8, 2 * 2 * (1 + 2))
    assert not reckoned.impossible


def test_a_step_is_measured_once_for_each_kind_of_client(reckoned):
    assert [len(kind.runs) for kind in reckoned.kinds] == [4, 4]
    for kind in reckoned.kinds:
        assert kind.cost.is_measured
        assert recorded(Federation.open(kind.config), "cpu") == kind.cost


def test_bytes_are_those_that_runs_move(reckoned, tmp_path):
    sweep = replace(reckoned.sweep, seeds=(1,))
    up = down = 0
    for number, point in enumerate(sweep.space.grid()):
        result = run(config_of(sweep, point, 1), tmp_path / str(number))
        up, down = up + result.bytes("up"), down + result.bytes("down")
    found = reckon(sweep)
    assert (found.up, found.down) == (up, down)


def test_hours_follow_from_samples_epochs_and_the_measured_step(reckoned):
    seconds = 0.0
    for kind in reckoned.kinds:
        for point in reckoned.sweep.space.grid():
            for seed in reckoned.sweep.seeds:
                config = config_of(reckoned.sweep, point, seed)
                if config.method_name.startswith("flesd") == kind.name.startswith("flesd"):
                    sizes = [len(rows) for rows in Federation.open(config).shards.values()]
                    seconds += config.rounds * sum(sizes) / max(sizes) * kind.cost.seconds
    at_once = reckoned.kinds[0].at_once
    assert at_once == reckoned.kinds[1].at_once >= 1
    assert reckoned.hours == pytest.approx(seconds / at_once / 3600, rel=1e-9)  # sums in another order


def test_fewer_trials_at_a_time_take_longer(reckoned):
    alone = reckon(reckoned.sweep, concurrency=1)
    assert {kind.at_once for kind in alone.kinds} == {1}
    assert alone.hours == pytest.approx(reckoned.hours * reckoned.kinds[0].at_once, rel=1e-9)
    assert (alone.up, alone.down) == (reckoned.up, reckoned.down)


def test_equal_runs_are_counted_once(tmp_path):
    twins = {"A": {}, "B": {"set": {"evaluation.knn.neighbors": 200}}}
    found = reckon(load_sweep(write(tmp_path, space={"system": {"variants": twins}})))
    assert (found.trials, found.runs) == (2, 1)


def test_rates_and_temperatures_are_one_kind_and_what_is_sent_is_another(reckoned, tmp_path):
    space: dict[str, Any] = {"method.temperature": [0.1, 0.5], "training.optimizer.lr": [0.001, 0.01]}
    assert len(reckon(load_sweep(write(tmp_path, space=space))).kinds) == 1
    space = {"method.upload_format": ["fp32", "fp16"]}
    first, second = reckon(load_sweep(write(tmp_path, space=space))).kinds
    assert first.up == 2 * second.up


def test_impossible_points_are_listed_with_their_reasons(reckoned, tmp_path, capsys):
    file = write(tmp_path, space={"clients.number": [3, 1000]})
    found = reckon(load_sweep(file))
    assert found.runs == 1
    ((trial, reason),) = found.impossible.items()
    assert trial == "trial 1 (clients.number=1000)"
    print_dry_run(file, [], {}, None, False)
    assert f"impossible, {trial}: {reason}" in capsys.readouterr().out


def test_where_nothing_can_be_run_the_reason_is_told(tmp_path):
    file = write(tmp_path, space={"clients.number": [1000, 2000]})
    with pytest.raises(ConfigError, match=r"no trial of small can be run: .*1000"):
        reckon(load_sweep(file))


def test_a_search_is_reckoned_with_points_at_random_and_rounds_are_an_upper_bound(reckoned, tmp_path, capsys):
    tree = {"space": {"evaluation.knn.temperature": {"log": [0.01, 1]}}, "search": "tpe", "trials": 3}
    file = write(tmp_path, **tree, stop={"rule": "asha", "grace": 1, "reduction": 2})
    print_dry_run(file, [], {}, 1, False)
    told = capsys.readouterr().out
    assert "3 trials, 1 seed, 3 runs (equal ones counted once), at most 6 rounds" in told
    assert re.search("evaluation.knn.temperature +numbers from 0.01 to 1, log", told)
    assert "1 run at once (--concurrency 1)" in told
    assert "points at random" in told


def test_settings_from_another_sweep_count(reckoned, tmp_path, capsys):
    file = write(tmp_path, space={"method.temperature": [0.1]})
    print_dry_run(file, [], {"rounds": 5}, None, True)
    assert json.loads(capsys.readouterr().out)["rounds"] == 5


def test_nothing_is_left_behind_but_caches(reckoned, tmp_path, monkeypatch, capsys):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    print_dry_run(write(tmp_path, space=SPACE), ["seeds=2"], {}, None, True)
    plain = json.loads(capsys.readouterr().out)
    assert not list(work.iterdir())
    assert (plain["trials"], plain["runs"], plain["upper_bound"]) == (4, 8, False)
    assert (plain["bytes_up"], plain["bytes_down"]) == (reckoned.up, reckoned.down)
    assert plain["space"] == {"system": "FLESD, FedAvg", "rounds": "1, 2"}
    assert plain["hours"] == pytest.approx(reckoned.hours)
