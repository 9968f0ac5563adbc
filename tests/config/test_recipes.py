"""Every recipe that comes with the package runs, on a few digits; names that the papers use are there."""

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
import torch

from rayfed_ssl.config.recipes import read_recipe, recipe_names
from rayfed_ssl.config.schema import Config, takes_text
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.methods import METHODS
from rayfed_ssl.runs import run
from tests.small_recipes import small

PAPERS = [
    *("flesd", "flesd-cc", "fedavg", "fedprox", "fedca", "fcl", "fedfoa", "fedu", "fedema", "fedmd", "feddf"),
    *("orchestra", "ldawa", "fedx", "fedu2", "fedbyol", "fedsimclr", "fedmoco", "fedsimsiam", "fedae", "fedpr"),
    *("fedrot", "fedswav", "feddc", "simclr-centralized", "moco-centralized", "byol-local", "fedavg-supervised"),
    *(
        "fedfoa-fedbyol",
        "fedfoa-fedu",
        "fedfoa-fedema",
        "fedalignuniform",
        "ssd",
        "fedsc",
        "fedmae",
        "feddino",
        "fedmar",
    ),
]


def test_what_the_papers_name_is_a_method_or_a_recipe():
    assert set(PAPERS) <= {*METHODS, *recipe_names()}


def full_size(name: str) -> list[str]:
    """Read the settings that a recipe's comment gives for the size of the paper or of its authors' code."""
    lines = resources.files("rayfed_ssl.recipes").joinpath(f"{name}.yaml").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("# At full size"))
    return " ".join(line.removeprefix("#   ") for line in lines[start + 1 :] if line.startswith("#   ")).split()


DIGITS_ONLY = ("digits", "flesd", "flesd-table1-cifar10", "flesd-table1-cifar10-cpu")


@pytest.mark.parametrize("name", sorted({*recipe_names()} - {*DIGITS_ONLY}))
def test_a_recipes_comment_gives_the_full_size(name: str):
    config = Config.load(name, *full_size(name))
    assert config.data.name == "cifar10"
    assert config.model.encoder in ("resnet18", "resnet34", "resnet50", "cnn5", "vit-tiny")
    assert config.rounds * config.epochs >= 100


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_runs_to_its_end(name: str, tmp_path: Path):
    result = run(small(name), tmp_path / "run")
    assert result.scores
    for scores in result.scores.values():
        assert 0 <= scores["linear"] <= 1
    weights = result.encoder_weights(next(iter(result.scores))).weights
    assert all(bool(torch.as_tensor(value).isfinite().all()) for value in weights.values())


@pytest.mark.parametrize("base", ["fedavg", "fedu", "fedema", "local", "flesd"])
def test_a_method_may_hold_another_and_survives_being_written_down(tiny: Callable[..., Config], base: str):
    public = "fraction:0.3" if base == "flesd" else "null"
    config = tiny("fedfoa", f"method.base={base}", "method.strength=0.5", f"public={public}")
    assert type(config.method.base) is METHODS[base].method
    again = Config.load(config.dump())
    assert again == config
    assert again.dump()["method"]["base"]["name"] == base
    assert tiny("fedfoa", "method.base=fedema", "method.base.tau=0.25").method.base.tau == 0.25


@pytest.mark.parametrize(
    ("recipe", "system"),
    [
        ("fedsimclr", "fedavg"),
        ("fedmoco", "fedavg-moco"),
        ("fedfoa-fedema", "fedfoa-fedema-byol"),
        ("fedfoa", "fedfoa-local-byol"),
        ("orchestra", "orchestra"),
        ("fedx", "fedx"),
        ("digits", "flesd"),
    ],
)
def test_a_system_is_named_for_its_method_and_objective(recipe: str, system: str):
    assert Config.load(recipe).system == system


def test_systems_of_the_papers_are_told_apart_by_name():
    recipes = [name for name in PAPERS if name in recipe_names()]
    systems = [(config.system, config.partition.name) for config in map(Config.load, recipes)]
    assert len(set(systems)) == len(recipes) - 1  # FedPR and FedRot differ in their optimizer alone


def test_dotted_keys_of_a_file_are_nested_ones(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("training:\n  batch: 8\n  optimizer.lr: 0.5\n  optimizer.weight_decay: 0\nmodel.encoder: cnn\n")
    assert read_recipe(path, takes_text) == {
        "training": {"batch": 8, "optimizer": {"lr": 0.5, "weight_decay": 0}},
        "model": {"encoder": "cnn"},
    }
    path.write_text("method: fedprox\nmethod.mu: 0.1\nmodel: cnn\nmodel.stem: auto\n")
    assert read_recipe(path, takes_text) == {
        "method": {"name": "fedprox", "mu": 0.1},
        "model": {"encoder": "cnn", "stem": "auto"},
    }
    path.write_text("training:\n  optimizer: {lr: 1}\n  optimizer.lr: 0.5\n")
    with pytest.raises(ConfigError, match=r"optimizer\.lr is there twice"):
        read_recipe(path, takes_text)


def test_another_kind_drops_the_fields_that_it_lacks():
    assert Config.load("digits", "partition.name=iid").partition.model_dump() == {"name": "iid"}
    balanced = Config.load("digits", "partition.alpha=0.3", "partition.name=dirichlet_balanced").partition
    assert balanced.model_dump() == {"name": "dirichlet_balanced", "alpha": 0.3}
    for words in (["partition.name=iid", "partition.alpha=0.3"], ["partition.alpha=0.3", "partition.name=iid"]):
        with pytest.raises(ConfigError, match="iid has no field 'alpha'"):
            Config.load("digits", *words)
