"""Values as they are typed: of a key that takes text or a path it is the text itself, of any other YAML."""

from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.config.recipes import parse_setting, read_recipe
from rayfed_ssl.config.schema import Config, takes_text
from tune.studies.definition.files import read_study_file

TEXTS = ["2024", "001", "1e3", "2024-11-27", "no", "[x]", "x:", "photos #2", "*photos", "'quoted'", "a: b", "{a}", "&x"]

TEXT_KEYS = [
    *("data.path", "data.image", "data.label", "data.name", "model.start", "model.encoder", "training.views", "public"),
    *(
        "engine.checkpoints",
        "engine.shared",
        "partition.path",
        "partition.column",
        "clock.devices.path",
        "engine.device",
    ),
]

OTHER_KEYS = [
    "rounds",
    "data",
    "data.size",
    "method",
    "method.mu",
    "engine.actors",
    "engine.trackers",
    "clients.models",
]


@pytest.mark.parametrize("key", TEXT_KEYS)
def test_a_value_of_text_is_what_is_typed(key: str):
    assert [parse_setting(f"{key}={text}", takes_text) for text in TEXTS] == [(key, text) for text in TEXTS]
    assert parse_setting(f"{key}=null", takes_text) == parse_setting(f"{key}=", takes_text) == (key, None)


@pytest.mark.parametrize("key", OTHER_KEYS)
def test_other_values_are_yaml(key: str):
    assert not takes_text(key)
    assert parse_setting(f"{key}=[1e3, no]", takes_text) == (key, [1000.0, False])


@pytest.mark.parametrize("text", TEXTS[:5])
@pytest.mark.parametrize("form", ["data: {{name: folder, path: {}}}", "data.name: folder\ndata.path: {}"])
def test_a_recipe_without_quotes_is_what_is_written(text: str, form: str, tmp_path: Path):
    (tmp_path / "own.yaml").write_text(
        f"begin: fedsimclr\n{form.format(text)}\nrounds: 7\n".replace("begin", "public: null #")
    )
    tree = read_recipe(tmp_path / "own.yaml", takes_text)
    assert (tree["data"]["path"], tree["rounds"]) == (text, 7)


def test_a_study_without_quotes_is_what_is_written(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text(
        "kind: sweep\nrecipe: fedsimclr\nset: {data.path: 001}\nspace: {model.start: [2024, no], rounds: [3, 4]}\n"
    )
    tree = read_study_file(str(file))
    assert tree["set"] == {"data.path": "001"}
    assert tree["space"] == {"model.start": ["2024", "no"], "rounds": [3, 4]}


def test_aliases_that_share_a_value_are_looked_at_once(tmp_path: Path):
    levels = "\n".join(f"k{level}: &k{level} [*k{level - 1}, *k{level - 1}]" for level in range(1, 24))
    (tmp_path / "own.yaml").write_text(f"k0: &k0 [1]\n{levels}\n")
    with pytest.raises(ValueError, match="more than 32768 values"):
        read_recipe(tmp_path / "own.yaml", takes_text)


@pytest.mark.parametrize(
    ("key", "found"), [("data.path", "~/x"), ("engine.checkpoints", "~/x"), ("model.start", "~/x")]
)
def test_a_path_may_begin_in_the_users_directory(key: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    section, field = key.split(".")
    config = Config.load("fedsimclr", f"{key}={found}", "data.name=folder")
    assert str(getattr(getattr(config, section), field)) == str(tmp_path / "x")


def test_a_pair_is_taken_as_it_is_and_not_changed():
    value: dict[str, Any] = {"name": "fedprox", "mu": 0.5}
    config = Config.load("fedsimclr", ("method", value), ("method.mu", 0.25))
    assert config.dump()["method"]["mu"] == 0.25
    assert value["mu"] == 0.5


@pytest.mark.parametrize(("clients", "buffer"), [(5, 2), (1, 1), (40, 10)])
def test_a_buffer_holds_uploads_of_at_most_half_of_the_clients(clients: int, buffer: int):
    settings = ["clock=phones", "clock.policy=fedbuff", f"clients.number={clients}"]
    assert Config.load("fedsimclr", *settings).dump()["clock"]["policy"]["buffer"] == buffer
    assert Config.load("fedsimclr", *settings, "clock.policy.buffer=3").dump()["clock"]["policy"]["buffer"] == 3


def test_clipping_weights_clients_evenly_unless_it_is_set_otherwise():
    assert Config.load("fedsimclr", "privacy.clip=1").dump()["method"]["weighting"] == "uniform"
    assert Config.load("fedsimclr").dump()["method"]["weighting"] == "samples"
    private = Config.load("fedsimclr", "privacy.clip=1", "method.weighting=samples")
    assert private.dump()["method"]["weighting"] == "samples"
