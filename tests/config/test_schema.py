"""The configuration: recipes, overrides, and messages that say what to do."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rayfed_ssl.config.recipes import read_recipe, recipe_names
from rayfed_ssl.config.schema import Config, takes_text
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.methods import FLESD, FedAvg, FedProx

TinyConfig = Callable[..., Config]

MISTAKES = {
    # unknown words: the nearest right one
    "trainin.batch=2": "unknown key 'trainin': did you mean 'training'?",
    "training.batsh=2": "unknown key 'training.batsh': did you mean 'training.batch'?",
    "lr=1": "unknown key 'lr': did you mean 'training.optimizer.lr' or ",
    "training.lr=1": "unknown key 'training.lr': did you mean 'training.optimizer.lr'?",
    "method=fedavgg": "method: unknown method 'fedavgg': did you mean 'fedavg'?",
    "objective=orchestra": "objective=orchestra belongs to method=orchestra alone, got method=flesd: take another objective "
    "or method=orchestra",
    "method=fedavg public=null method.parts.targte=local": "'method.parts.targte': did you mean 'method.parts.target'?",
    "method=simclr": "method: unknown method 'simclr': it is set as objective=simclr",
    "method=fedsimclr": "method: unknown method 'fedsimclr': it is a recipe, which comes before all settings",
    "method.temprature=1": "method: flesd has no field 'temprature': did you mean 'temperature'?",
    # fields that would be ignored
    "method.mu=1": "method: flesd has no field 'mu'; it belongs to fedprox",
    "partition=iid partition.alpha=1": "partition: iid has no field 'alpha'; it belongs to dirichlet",
    "training.optimizer.momentum=0.5": "training.optimizer: adam has no field 'momentum'; it belongs to lars, sgd",
    "evaluation.every=0 evaluation.probe=every": "evaluation: probe=every has no meaning with evaluation.every=0: set",
    "method.keep=0.5": "method: method.keep applies to similarities only: set method.upload=similarities or drop it",
    # values
    "rounds=abc": "rounds: input should be a valid integer, .*got 'abc'",
    "rounds=0": "rounds: input should be greater than or equal to 1, got 0",
    "objective.form=foo": "objective.form: input should be 'infonce' or 'ntxent', got 'foo'",
    "method.temperature=-1": "method.temperature: input should be greater than 0, got -1",
    "rounds": "a setting looks like key=value, got 'rounds'; one recipe may come before all settings",
    "seed.x=3": "seed.x cannot be set: seed holds 0, which has no fields",
    "clients=5": r"^clients is a section of keys, got 5: set one of clients\.number, clients\.fraction, ",
    "method=fedavg public=null method.parts=3": r"got 3: set one of (method\.parts\.\w+(, |$))+$",
    "method=fedfoa public=null method.base=flesd-cc": r"base: unknown method 'flesd-cc': (did you mean|choose from) ",
    "clients.models=cnn,vgg9": r"clients\.models: input should be a list such as \[a, b\], got 'cnn,vgg9'",
    # sums and combinations
    "rounds=3": "training.total_epochs=40 does not split into rounds=3 equal rounds",
    **dict.fromkeys(
        ("training={epochs:2,total_epochs:6}", "training={}"),
        r"set exactly one of training.epochs \(E_local\), training.total_epochs \(T x E_local\) and training.total_steps",
    ),
    "method.name=flesd-cc rounds=4": "flesd-cc stands for rounds=1, got rounds=4",
    "partition=file": "partition.path is missing: set partition.path=",
    "partition={name:file,path:a.json} data.train_limit=100 data.validation=0.1": "partition=file counts the whole training "
    "set, and data.train_limit and data.validation would take samples out of it.*: set data.train_limit=null and ",
    "partition=classes_per_client": "partition.classes is missing: set partition.classes=",
    "public=null": r"flesd works on public data, but this run has none: set public \(for example",
    "method=fedavg": "fedavg uses no public data, got public=client:0: set public=null",
    "method=fedprox public=null clients.models=[cnn,resnet18]": "fedprox averages weights, so all clients need one "
    "architecture, got cnn, resnet18: remove clients.models",
    "objective=supervised": "flesd compares representations: a supervised objective has none",
    # odd types
    "method={name:[a]}": r"unknown method \['a'\]: choose from",
    "method={name:fedavg,1:2} public=null": "method: fedavg has no field 1",
    "partition={name:dirichlet,alpha:1,alpha:2}": "^partition cannot be read: 'alpha' is there twice",
    **{f"{key}=null": key for key in ("method", "objective")},
    **{f"engine.{text}": text.split("=")[0] for text in ("actors=0", "actors=some")},
    **{f"data.validation={value}": "validation" for value in ("0", "1", "-0.1", "half", ".nan")},
}


@pytest.mark.parametrize("overrides", MISTAKES)
def test_a_mistake_is_one_line_that_says_what_to_do(overrides: str):
    with pytest.raises(ConfigError, match=MISTAKES[overrides]) as caught:
        Config.load("digits", *(override.replace(":", ": ") for override in overrides.split(" ")))
    assert len(str(caught.value).splitlines()) == 1


def test_several_mistakes_have_a_line_each():
    with pytest.raises(ConfigError) as caught:
        Config.load("digits", "seed=-1", "data.size=1")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["seed", "data.size"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("digit", "there is no recipe 'digit': did you mean 'digits'?"),
        ("fedavg", "there is no recipe 'fedavg': it is set as method=fedavg"),
        ("nowhere/run.yaml", "there is no recipe file nowhere/run.yaml: give a path that exists"),
        ({}, "method is missing: set method=..."),
    ],
    ids=["name", "method", "file", "empty"],
)
def test_a_recipe_that_is_not_there(source: object, message: str):
    with pytest.raises(ConfigError, match=message):
        Config.load(source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is not YAML"),
        ("- 1", "must hold keys and values, got list"),
        ("rounds: 2\ntraining:\n  epochs: 1\n  epochs: 2", "is not YAML: 'epochs' is there twice .*line 4, column 3"),
        ("c: {<<: {x: 1, x: 2}}", "is not YAML: 'x' is there twice"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, text: str, message: str):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        Config.load(tmp_path / "run.yaml")
    assert len(str(caught.value).splitlines()) == 1


def test_anchors_and_merges_are_no_double_keys(tmp_path: Path):
    text = "a: &a {x: 1, y: 1}\nd:\n  e:\n    b: &b {<<: *a, y: 2}\nc: {<<: *b, y: 3}\nf: {<<: *b}"
    (tmp_path / "run.yaml").write_text(text)
    assert read_recipe(tmp_path / "run.yaml", takes_text) == yaml.safe_load(text)


def test_total_epochs_are_split_over_rounds_and_one_length_takes_the_place_of_another():
    assert Config.load("digits").epochs == 20
    assert Config.load("digits", "rounds=4").epochs == 10
    assert Config.load("digits", "training.epochs=3").epochs == 3
    with pytest.raises(ConfigError, match=r"training\.epochs and training\.total_epochs are lengths of local training"):
        Config.load("digits", "training.epochs=3", "training.total_epochs=8")
    assert Config.load("digits", "training.total_epochs=8", "training.epochs=null").epochs == 4
    steps = Config.load(Config.load("digits", "training.epochs=3").dump(), "training.total_steps=800").training
    assert (steps.epochs, steps.total_epochs, steps.total_steps) == (None, None, 800)
    assert "total_steps" not in Config.load("digits").dump()["training"]  # as the digests of earlier runs' settings


def test_a_bare_method_replaces_the_section():
    config = Config.load("digits", "method=fedprox", "public=null", "method.mu=0.5")
    assert config.method == FedProx(mu=0.5)
    assert Config.load("digits", "method.queue_size=64").method.distil_epochs == 30
    assert Config.load("digits", "method=flesd").method == FLESD()


def test_constant_communication_is_one_round():
    for override in ("method=flesd-cc", "method.name=flesd-cc"):
        config = Config.load("digits", override)
        assert (config.rounds, config.epochs, type(config.method)) == (1, 40, FLESD)


@pytest.mark.parametrize("text", ["1e-3", "0.001", "1.0e-3", "1E-3"])
def test_small_numbers_may_be_written_as_people_do(tmp_path: Path, text: str):
    assert Config.load("digits", f"training.optimizer.lr={text}").training.optimizer.lr == 0.001
    (tmp_path / "run.yaml").write_text(f"method: {{name: fedprox, mu: {text}}}")
    assert read_recipe(tmp_path / "run.yaml", takes_text)["method"]["mu"] == 0.001


@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_words_that_yaml_reads_as_true_and_false_are_themselves(tiny: TinyConfig, word: str):
    config = tiny("fedavg", f"engine.mps={word}")
    assert config.engine.mps == word
    assert Config.load(yaml.safe_load(yaml.safe_dump(config.dump()))).engine.mps == word


def test_a_scalar_names_a_section():
    config = Config.load("digits", "model=resnet18", "partition=iid", "objective=simclr", "data=cifar10")
    assert (config.model.encoder, config.partition.name, config.data.name) == ("resnet18", "iid", "cifar10")


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_loads_and_survives_being_written_down(tmp_path: Path, name: str):
    config = Config.load(name)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.dump(), sort_keys=False))
    assert Config.load(tmp_path / "config.yaml") == config


def test_overrides_do_not_write_to_the_given_mapping(tiny: TinyConfig):
    tree = tiny("fedavg").dump()
    before = copy.deepcopy(tree)
    assert Config.load(tree, "method.weighting=uniform", "training.total_epochs=6").method == FedAvg(
        weighting="uniform"
    )
    assert tree == before


def test_a_configuration_cannot_be_changed(tiny: TinyConfig):
    with pytest.raises(ValueError, match="frozen"):
        tiny("fedavg").rounds = 5
