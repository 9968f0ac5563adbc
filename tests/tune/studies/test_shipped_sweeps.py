"""The sweeps that come with the package: all load, all points resolve, and settings and grids are the papers'."""

from functools import cache
from itertools import product
from typing import Any

import pytest

from rayfed_ssl.adversaries.backdoors import Backdoor
from rayfed_ssl.attacks import ATTACKS
from rayfed_ssl.config.schema import Config
from rayfed_ssl.evaluation.registry import is_score
from tune.studies.definition.files import load_study
from tune.studies.definition.schema import BYTES, TARGET
from tune.studies.definition.space import Point, Range
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import config_of

NAMES = [
    *("flesd-rounds", "flesd-temperature", "flesd-queue", "flesd-sparsity", "flesd-upload", "flesd-tpe"),
    *("fedprox-mu", "fedca", "fcl", "fedfoa"),
    *("flesd-rounds-cpu", "fedprox-mu-cpu", "flesd-tpe-cpu", "flesd-random-cpu", "flesd-upload-cpu"),
    "digits",
    "from-a-start",
    *("hostile-backdoors", "hostile-methods", "hostile-rules", "hostile-rules-byol"),
    "long-training",
    "mechanisms",
    "phones",
    "when-federation-pays",
    *("privacy", "privacy-budget"),
]


def points_of(sweep: Study) -> list[Point]:
    """All points of a grid; of a search the corners of its space."""
    if sweep.search.name == "grid":
        return sweep.space.grid()
    ends = [one.ends for one in sweep.space.parameters.values() if isinstance(one, Range)]
    return [dict(zip(sweep.space.names, corner, strict=True)) for corner in product(*ends)]


def begun(sweep: Study) -> Study:
    """Give a sweep what another one would give it."""
    if sweep.begin is None:
        return sweep
    assert sweep.begin.take == ("rounds",)
    return sweep.model_copy(update={"settings": sweep.settings | {"rounds": 10}})


@cache
def configs(name: str) -> list[Config]:
    sweep = begun(load_study(name))
    return [config_of(sweep, point, sweep.seeds[0]) for point in points_of(sweep)]


def at(name: str, seed: int = 0, **point: Any) -> dict[str, Any]:
    """Resolve the point of a sweep that has these values; "__" stands for a dot."""
    sweep = begun(load_study(name))
    wanted = {key.replace("__", "."): value for key, value in point.items()}
    (chosen,) = [candidate for candidate in points_of(sweep) if wanted.items() <= candidate.items()]
    return plain(config_of(sweep, chosen, seed))


def cell(name: str, size: str, row: str, column: str) -> dict[str, Any]:
    return plain(config_of(load_study(name, kind="reproduction", size=size), {"row": row, "column": column}, 0))


def plain(config: Config) -> dict[str, Any]:
    """Settings without where they are computed and what they are measured on."""
    tree = config.dump()
    del tree["engine"], tree["data"]["validation"]
    return tree


@pytest.mark.parametrize("name", NAMES)
def test_every_point_resolves_and_measures_what_is_sought(name: str):
    sweep = load_study(name)
    for config in configs(name):
        assert bool(config.data.validation) == (sweep.selects_on != "test")
        assert config.engine.executor == "local"
        for goal in sweep.goals:
            if TARGET.fullmatch(goal.score):
                assert config.clock is not None
                continue
            if goal.score.startswith("diag_"):
                assert config.evaluation.diagnostics
                continue
            if goal.score == "attack_success":
                assert isinstance(config.adversary, Backdoor)
                continue
            if "." in goal.score:
                assert goal.score.split(".")[0] in ATTACKS
                continue
            assert goal.score in (*BYTES, "epsilon") or is_score(goal.score)
            assert goal.score in (*BYTES, "epsilon", "knn", "linear", *config.evaluation.protocols)
        if sweep.stop is not None:
            assert config.evaluation.every == sweep.stop.grace
            assert sweep.stop.rungs(config.rounds)
    assert sweep.title != name
    assert sweep.source
    assert sweep.notes


def test_fedprox_takes_the_rounds_of_fedavg_and_has_the_papers_mu():
    for end in ("", "-cpu"):
        sweep, first = load_study(f"fedprox-mu{end}"), load_study(f"flesd-rounds{end}")
        assert sweep.begin is not None
        assert sweep.begin.sweep == first.name
        assert sweep.begin.where["row"] == "FedAvg"
        assert any(sweep.begin.where.items() <= point.items() for point in first.space.grid())
        assert {config.method.mu for config in configs(sweep.name)} == {0.001, 0.01, 0.1, 1}


def test_settings_of_the_papers_size_are_those_of_the_reproductions():
    for row in ("FLESD", "FedAvg"):
        ours = at("flesd-rounds", row=row, rounds=10, partition__alpha=1)
        assert ours == cell("flesd-figure4", "paper", row, "E_total=200, T=10")
    table = "flesd-table1", "paper"
    assert at("fedprox-mu", method__mu=0.001, partition__alpha=1) == cell(*table, "FedProx", "CIFAR100 α=1")
    assert at("flesd-temperature", method__temperature=0.1, partition__alpha=0.01) == cell(
        *table, "FLESD", "CIFAR10 α=0.01"
    )
    assert at("flesd-queue", method__queue_size=2048, partition__alpha=100) == cell(*table, "FLESD", "CIFAR10 α=100")
    assert at("flesd-upload", row="representations", method__upload_format="fp32") == cell(
        *table, "FLESD", "CIFAR10 α=1"
    )


def test_sweeps_are_listed_with_their_trials_and_seeds(cli):
    result = cli("list", "sweeps")
    assert result.exit_code == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in result.output.splitlines() if line.strip()}
    assert {"name", *NAMES} == set(lines)
    assert lines["flesd-rounds-cpu"] == (
        "Accuracy over rounds T of FLESD and FedAvg in small, 20 local epochs in all: 8 trials x 2 seeds"
    )
    assert lines["fedprox-mu-cpu"].endswith("4 trials x 2 seeds, after flesd-rounds-cpu")
    assert lines["flesd-tpe-cpu"].endswith("24 trials x 1 seed")
