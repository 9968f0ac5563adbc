"""Methods, objectives and partitions from outside the package: found by name, checked, listed and run like built-in ones."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import yaml

from rayfed_ssl import plugins
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.runs import resume, run

TinyConfig = Callable[..., Config]

SOURCE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfed_ssl.method import Method
from rayfed_ssl.methods import FedAvg
from rayfed_ssl.objectives import SimCLR

NUMBER = 3

@dataclass(frozen=True, kw_only=True)
class Halved(FedAvg):
    """FedAvg with a field of its own.

    Attributes:
        damping: Factor.
    """
    damping: float = 0.5

@dataclass(frozen=True, kw_only=True)
class Warmer(SimCLR):
    warmth: int = 1

@dataclass(frozen=True, kw_only=True)
class Unfinished(Method):
    privacy: ClassVar = "High"

class Bare(FedAvg):
    """Inherits the decorator's fields."""

class NotOne:
    pass

def striped(labels, num_clients, generator, *, offset: int = 0):
    return [np.arange((k + offset) % num_clients, len(labels), num_clients) for k in range(num_clients)]

def overlapping(labels, num_clients, seed):
    return [np.arange(len(labels))] * num_clients
'''


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a directory with a module of one's own, as the command line does: it is not yet importable."""
    (tmp_path / "outside_module.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("outside_module", None)


METHOD = "method={name: 'outside_module:Halved', damping: 0.25}"
OBJECTIVE = "objective=outside_module:Warmer"
PARTITION = "partition={name: 'outside_module:striped', offset: 1}"


def test_classes_from_outside_run_resume_and_are_written_down(tiny: TinyConfig, tmp_path: Path):
    config = tiny("fedavg", METHOD, OBJECTIVE, PARTITION, "objective.warmth=2")
    assert (config.method.damping, config.objective.warmth, config.partition.offset) == (0.25, 2, 1)
    assert config.system == "Halved-Warmer"
    assert Config.load(yaml.safe_load(yaml.safe_dump(config.dump()))) == config
    result = run(config, tmp_path / "run")
    assert result.state_sha256 == run(tiny("fedavg", PARTITION), tmp_path / "same").state_sha256
    assert resume(tmp_path / "run").state_sha256 == result.state_sha256


def test_an_instance_is_taken_by_the_python_interface(tiny: TinyConfig):
    target = plugins.find("method", "outside_module:Halved", {})
    config = Config.load({**tiny("fedavg").dump(), "method": target(damping=0.125)})
    assert config.dump()["method"]["name"] == "outside_module:Halved"
    assert config.method == target(damping=0.125)


def test_a_method_from_outside_may_be_held_by_another(tiny: TinyConfig):
    config = tiny("fedfoa", "method.base={name: 'outside_module:Halved', damping: 0.25}")
    assert config.dump()["method"]["base"]["damping"] == 0.25
    assert config.system == "fedfoa-Halved"


def test_an_installed_package_offers_a_name(tiny: TinyConfig, monkeypatch: pytest.MonkeyPatch):
    point = EntryPoint("halved", "outside_module:Halved", "rayfed_ssl.methods")
    monkeypatch.setattr(plugins, "entry_points", lambda group: EntryPoints([point]).select(group=group))
    assert "halved" in plugins.names("method", {})
    assert tiny("fedavg", "method=halved", "method.damping=0.75").dump()["method"]["name"] == "halved"
    with pytest.raises(ConfigError, match="unknown method 'halvd': did you mean 'halved'"):
        tiny("fedavg", "method=halvd")


REFUSED = {
    "method=nowhere:Method": "method=nowhere:Method cannot be imported: there is no module 'nowhere'; install it, or run",
    "method=outside_module:Halfed": "module outside_module has no 'Halfed': did you mean 'Halved'?",
    "method=outside_module:NotOne": "method=outside_module:NotOne must be a subclass of Method",
    "method=outside_module:NUMBER": "method=outside_module:NUMBER must name a class or a function, got int",
    "method=outside_module:Unfinished": "Unfinished must define download, encoders, init_server, update_client, update",
    "objective=outside_module:Halved": "objective=outside_module:Halved must be a subclass of Objective",
    "method={name: 'outside_module:Halved', dampng: 1}": "has no field 'dampng': did you mean 'damping'?",
    "method={name: 'outside_module:Halved', damping: much}": "method.damping: input should be a valid number, got 'much'",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_is_no_method_is_refused_in_one_line(tiny: TinyConfig, override: str):
    with pytest.raises(ConfigError, match=REFUSED[override]) as caught:
        tiny("fedavg", override)
    assert len(str(caught.value).splitlines()) == 1


def test_a_module_that_fails_is_named(tiny: TinyConfig, tmp_path: Path):
    (tmp_path / "broken_module.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="method=broken_module:X cannot be imported: ZeroDivisionError: division"):
        tiny("fedavg", "method=broken_module:X")


def test_a_partition_gives_each_sample_once(tiny: TinyConfig):
    with pytest.raises(ConfigError, match="overlapping gives 300 rows to more than one client"):
        Federation.open(tiny("fedavg", "partition=outside_module:overlapping"))
