"""Methods, objectives and partitions from outside the package: found by name, checked, listed and run like built-in ones."""

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from actors.cluster.connect import start
from actors.executor import RayExecutor
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import ClientError
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.export.encoders import export_encoder
from rayfed_ssl.foreign import plugins
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.runs import resume, run
from rayfed_ssl.storage.encoder_file import load_encoder

TinyConfig = Callable[..., Config]

SOURCE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from rayfed_ssl.method import Method
from rayfed_ssl.methods import FedAvg
from rayfed_ssl.objectives import SimCLR

class Colored(Dataset):
    """Random images."""

    classes = ["a", "b"]

    def __init__(self, train: bool = True):
        self.images = torch.rand(60 if train else 20, 3, 8, 8, generator=torch.Generator().manual_seed(int(train)))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index % 2

class Gray(Dataset):
    def __init__(self, count: int = 80):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return Image.fromarray(np.full((9, 9), index, np.uint8))

class Normalized(Gray):
    def __getitem__(self, index):
        return torch.randn(3, 8, 8)

class Halves(Gray):
    def __getitem__(self, index):
        return super().__getitem__(index), index % 2 + 0.5

class Unopened(Dataset):
    def __init__(self):
        raise OSError("gone")

class Exiting(Dataset):
    def __init__(self):
        raise SystemExit(0)

class Unread(Gray):
    def __getitem__(self, index):
        return {}["boom"]

def mean_and_linear(channels):
    """Mean colors."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 5))

def maps(channels):
    return nn.Conv2d(channels, 4, 3)

@dataclass(frozen=True)
class Steps:
    rounds: tuple[int, ...] = ()

@dataclass(frozen=True, kw_only=True)
class Halved(FedAvg):
    """FedAvg with fields of its own."""
    damping: float = 0.5
    steps: Steps = Steps()

@dataclass(frozen=True, kw_only=True)
class Warmer(SimCLR):
    warmth: int = 1

@dataclass(frozen=True, kw_only=True)
class Unfinished(Method):
    pass

class Bare(FedAvg):
    """Inherits the decorator's fields."""

class NotOne:
    pass

def striped(labels, num_clients, generator, *, offset: int = 0):
    return [np.arange((k + offset) % num_clients, len(labels), num_clients) for k in range(num_clients)]

def open_ended(labels, num_clients, *others, offset: int = 0, **k):
    return striped(labels, num_clients, None, offset=offset)

def noisy(images, size):
    """Draws from torch's global generator."""
    return (images[..., :size, :size] / 255 + 0.1 * torch.rand(len(images), 1, 1, 1)).clamp(0, 1)

def mirrored(images, generator):
    turned = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(turned.view(-1, 1, 1, 1), images.flip(3), images)

def cut(images):
    return images[..., 1:]

def normalized(images, generator):
    return images / 255 * 4 - 2

def divided(images, generator):
    return images / 0 * 0

def no_views(pictures): ...

def raising(images):
    return {}["boom"]

def wanting(images, strength): ...

def writing(images):
    return images.zero_()

def alone(labels):
    return [np.arange(len(labels))]

def flat(labels):
    return np.arange(len(labels))

def square(labels, num_clients):
    return np.arange(4 * num_clients).reshape(num_clients, 2, 2)

def failing(labels):
    return labels.boom

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


METHOD = "method={name: 'outside_module:Halved', damping: 0.25, steps: {rounds: [1, 2]}}"
OBJECTIVE = "objective=outside_module:Warmer"
PARTITION = "partition={name: 'outside_module:striped', offset: 1}"


def test_classes_from_outside_run_resume_and_are_written_down(tiny: TinyConfig, tmp_path: Path):
    config = tiny("fedavg", METHOD, OBJECTIVE, PARTITION, "objective.warmth=2")
    assert (config.method.damping, config.objective.warmth, config.partition.offset) == (0.25, 2, 1)
    assert config.method.steps.rounds == (1, 2)
    assert config.system == "Halved-Warmer"
    assert Config.load(yaml.safe_load(yaml.safe_dump(config.dump()))) == config
    result = run(config, tmp_path / "run")
    assert result.state_sha256 == run(tiny("fedavg", PARTITION), tmp_path / "same").state_sha256
    assert resume(tmp_path / "run").state_sha256 == result.state_sha256


def test_a_function_that_takes_any_arguments_has_the_settings_that_it_names(tiny: TinyConfig):
    assert tiny("fedavg", "partition=outside_module:open_ended").partition.offset == 0
    with pytest.raises(ConfigError, match=r"outside_module:open_ended has no field 'k': choose from offset"):
        tiny("fedavg", "partition={name: 'outside_module:open_ended', k: 1}")


def test_an_instance_or_an_inner_method_may_come_from_outside(tiny: TinyConfig):
    target = plugins.find("method", "outside_module:Halved", {})
    config = Config.load({**tiny("fedavg").dump(), "method": target(damping=0.125)})
    assert config.dump()["method"]["name"] == "outside_module:Halved"
    assert config.method == target(damping=0.125)
    config = tiny("fedfoa", "method.base={name: 'outside_module:Halved', damping: 0.25}")
    assert config.dump()["method"]["base"]["damping"] == 0.25
    assert config.system == "fedfoa-Halved"


def test_an_installed_package_offers_a_name(tiny: TinyConfig, monkeypatch: pytest.MonkeyPatch):
    point = EntryPoint("halved", "outside_module:Halved", "rayfed_ssl.methods")
    monkeypatch.setattr(plugins, "_installed", lambda kind: EntryPoints([point]).select(group=f"rayfed_ssl.{kind}s"))
    assert "halved" in plugins.names("method", {})
    assert tiny("fedavg", "method=halved", "method.damping=0.75").dump()["method"]["name"] == "halved"
    with pytest.raises(ConfigError, match="unknown method 'halvd': did you mean 'halved'"):
        tiny("fedavg", "method=halvd")


@pytest.mark.parametrize("name", ["noisy", "mirrored"])
def test_views_from_outside_repeat_resume_and_are_scored(tiny: TinyConfig, tmp_path: Path, name: str):
    config = tiny("fedavg", f"training.views=outside_module:{name}", "evaluation.diagnostics=1")
    result = run(config, tmp_path / "run", until=1)
    torch.rand(7)
    result = resume(tmp_path / "run")
    assert result.state_sha256 == run(config, tmp_path / "whole").state_sha256
    assert result.state_sha256 != run(tiny("fedavg"), tmp_path / "built-in").state_sha256
    export_encoder(tmp_path / "run", tmp_path / "encoder.safetensors")


def test_views_from_outside_follow_the_generator_alone(tiny: TinyConfig):
    task = Federation.open(tiny("fedavg", "training.views=outside_module:noisy")).task
    images = torch.arange(2 * 64, dtype=torch.uint8).view(2, 1, 8, 8)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, second = task.two_views(images, generator(1))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(2)
    again, _ = task.two_views(images, generator(1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(task.plain(images), (images / 255 - 0.5) / 0.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cut", "cut must give a tensor [64, 1, 8, 8] of bytes or of float32 in [0, 1], got torch.uint8 [64, 1, 8, 7]"),
        ("raising", "training.views=outside_module:raising raised KeyError: 'boom'"),
        ("divided", "training.views=outside_module:divided gave NaN: look for a division by 0"),
        ("normalized", "normalized must give values in [0, 1], got -2.00 to 2.00: leave Normalize out"),
    ],
)
def test_what_gives_no_views_is_one_line(tiny: TinyConfig, name: str, message: str):
    federation = Federation.open(tiny("fedavg", f"training.views=outside_module:{name}", "partition=pooled"))
    with pytest.raises(ClientError, match=re.escape(message)) as caught:
        federation.update_client(1, 0, federation.method.download(federation.init_server(), 0), None)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ConfigError, match=r"training\.views"):  # before a run begins
        federation.check_ready()


def test_views_that_rotation_would_not_draw_are_refused(tiny: TinyConfig):
    chosen = "objective={name: rotation}", "model.projection_dim=null", "training.views=outside_module:noisy"
    with pytest.raises(
        ConfigError, match=r"augmentation=rotnet draws no training\.views=outside_module:noisy: set obj"
    ):
        Federation.open(tiny("fedavg", *chosen))
    Federation.open(tiny("fedavg", *chosen, "objective.augmentation=views"))


def test_a_view_that_writes_to_its_images_changes_no_others(tiny: TinyConfig):
    task = Federation.open(tiny("fedavg", "training.views=outside_module:writing")).task
    images = torch.full((2, 1, 8, 8), 7, dtype=torch.uint8)
    task.two_views(images, generator(1))
    assert bool((images == 7).all())


ENCODER = "model={encoder: 'outside_module:mean_and_linear', projection_dim: 16}"
DATASET = "data={name: 'outside_module:Colored'}"


def test_an_encoder_and_a_dataset_from_outside_are_trained_and_exported(tiny: TinyConfig, tmp_path: Path):
    result = run(tiny("fedavg", ENCODER, DATASET), tmp_path / "run")
    assert result.encoder_weights("global").weights["encoder.body.2.weight"].shape == (5, 12)
    assert set(result.scores["global"]) >= {"knn", "linear"}
    export_encoder(tmp_path / "run", tmp_path / "encoder.safetensors")
    assert load_encoder(tmp_path / "encoder.safetensors")(torch.rand(2, 3, 8, 8)).shape == (2, 5)


def test_a_dataset_without_a_test_split_or_labels_is_split(tiny: TinyConfig):
    dataset = Federation.open(tiny("fedavg", "data={name: 'outside_module:Gray', size: 8}", "partition=iid")).dataset
    assert (dataset.train.shape, len(dataset.train), len(dataset.test)) == ((1, 8, 8), 64, 16)
    assert set(dataset.train.labels) == {-1}


def test_a_dataset_of_this_process_is_stored_for_all(tiny: TinyConfig):
    colored, gray = (plugins.find("dataset", f"outside_module:{name}", {}) for name in ("Colored", "Gray"))
    config = Config.load(tiny("fedavg").dump(), "data={test_limit: 7}", data=(colored(), colored(train=False)))
    dataset = Federation.open(Config.load(config.dump())).dataset
    assert (config.data.name, dataset.train.classes) == ("store", ("a", "b"))
    assert (len(dataset.train), len(dataset.test)) == (60, 7)
    np.testing.assert_array_equal(dataset.train.images[3], np.rint(colored().images[3].numpy() * 255))
    alone = Federation.open(Config.load(tiny("fedavg", "partition=iid").dump(), data=gray(50))).dataset
    assert (len(alone.train), len(alone.test), alone.train.shape) == (40, 10, (1, 9, 9))


UNFIT = {
    "model.encoder=outside_module:maps": "outside_module:maps must give features [N, d], got [2, 4, 6, 6] of 2 images",
    "model.encoder=outside_module:NotOne": "encoder=outside_module:NotOne must be a subclass of torch.nn.Module or a Python",
    "data={name: 'outside_module:Normalized'}": "floats from 0 to 1, got float32 from",
    "data={name: 'outside_module:Halves'}": "Halves must give classes as integers, or none, got 0.5",
    "data={name: 'outside_module:Unopened'}": "dataset=outside_module:Unopened raised OSError: gone (line ",
    "data={name: 'outside_module:Exiting'}": "dataset=outside_module:Exiting raised SystemExit: 0 (line ",
    "data={name: 'outside_module:Unread'}": "dataset=outside_module:Unread raised KeyError: 'boom' (line ",
    "partition=outside_module:failing": "partition=outside_module:failing raised AttributeError: 'numpy.ndarray' object",
    "data={name: 'outside_module:NotOne'}": "NotOne must be a subclass of torch.utils.data.Dataset or a",
    "model.encoder=math:sqrt": "a Python function that takes channels or size, got builtin_function_or_method sqrt",
    "training.views=outside_module:wanting": "is given images, generator, size, and its 'strength' needs a default",
    "partition=outside_module:square": "a list of row numbers for each client: got int64 of shape [2, 2]",
    "training.views=os:system": "view=os:system must be a Python function that takes images, got builtin_function",
    "training.views=outside_module:no_views": "view=outside_module:no_views must be a Python function that takes images",
    "partition=os:listdir": "partition=os:listdir must be a Python function that takes labels, got builtin_",
    "partition=outside_module:overlapping": "overlapping gives 300 rows more than once",
    "partition=outside_module:alone": "a list of rows for each of the 3 clients, got 1 lists",
    "partition=outside_module:flat": "a list of row numbers for each client: got int64 of shape []",
    "model.encoder=nowhere:net": "encoder=nowhere:net cannot be imported: there is no module 'nowhere'",
}


@pytest.mark.parametrize("override", UNFIT)
def test_what_does_not_fit_is_refused_in_one_line(tiny: TinyConfig, override: str):
    with pytest.raises(ConfigError, match=re.escape(UNFIT[override])) as caught:
        Federation.open(tiny("fedavg", override))
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture
def ray_elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray that this process started in another directory."""
    with monkeypatch.context() as patch:
        patch.chdir("/")
        cluster = start("local", num_cpus=2)
    yield
    cluster.stop()


@pytest.mark.slow
@pytest.mark.ray
def test_actors_import_all_of_it_from_the_working_directory(ray_elsewhere: None, tiny: TinyConfig, tmp_path: Path):
    chosen = (METHOD, OBJECTIVE, PARTITION, ENCODER, DATASET, "training.views=outside_module:noisy")
    through_ray = run(tiny("fedavg", *chosen), tmp_path / "ray", executor=RayExecutor)
    assert through_ray.state_sha256 == run(tiny("fedavg", *chosen), tmp_path / "local").state_sha256


REFUSED = {
    "method=nowhere:Method": "method=nowhere:Method cannot be imported: there is no module 'nowhere'; install it, or run",
    "method=outside_module:Halfed": "module outside_module has no 'Halfed': did you mean 'Halved'?",
    "method=outside_module:NotOne": "method=outside_module:NotOne must be a subclass of Method",
    "method=outside_module:Unfinished": "Unfinished must define download, encoders, init_server, update_client, update",
    "method={name: 'outside_module:Halved', dampng: 1}": "has no field 'dampng': did you mean 'damping'?",
    "method=broken_module:X": "method=broken_module:X cannot be imported: ZeroDivisionError: division",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_is_no_method_is_refused_in_one_line(tiny: TinyConfig, tmp_path: Path, override: str):
    (tmp_path / "broken_module.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=REFUSED[override]) as caught:
        tiny("fedavg", override)
    assert len(str(caught.value).splitlines()) == 1
