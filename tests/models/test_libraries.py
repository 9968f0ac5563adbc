"""Encoders of torchvision and timm: without classifiers, for other images, from a file or from the library's weights."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.models import build_encoder
from rayfed_ssl.runs import run
from rayfed_ssl.trees import digest

Open = Callable[..., Federation]
COLOR = ("data.channels=3", "data.size=32")


@pytest.mark.parametrize(
    ("name", "channels", "size", "width"),
    [
        ("torchvision:resnet18", 3, 32, 512),
        ("torchvision:mobilenet_v3_small", 3, 32, 1024),
        ("torchvision:convnext_tiny", 3, 32, 768),
        ("torchvision:vit_b_32", 3, 32, 768),
        ("torchvision:googlenet", 3, 32, 1024),
        ("timm:resnet18", 1, 32, 512),
        ("timm:vit_tiny_patch16_224", 1, 32, 192),
    ],
)
def test_a_librarys_model_gives_features(name: str, channels: int, size: int, width: int):
    if name.startswith("timm"):
        pytest.importorskip("timm")
    with torch.random.fork_rng(devices=[]):
        encoder = build_encoder(name, channels=channels, size=size)
        assert encoder.feature_dim == width
        assert encoder.train()(torch.randn(2, channels, size, size)).shape == (2, width)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision:resnet19", "torchvision has no model 'resnet19': did you mean 'resnet18'"),
        ("torchvision:squeezenet1_0", "has no linear classifier to leave out"),
        ("torchvision:resnet18", "takes images with 3 channels, got 1: set data.channels=3"),
        ("timm:resnet19", "timm has no model 'resnet19': did you mean"),
    ],
)
def test_what_a_library_cannot_build_is_refused(name: str, message: str):
    if name.startswith("timm"):
        pytest.importorskip("timm")
    with pytest.raises(ConfigError, match=message):
        build_encoder(name, channels=1 if name.endswith("18") else 3, size=32)


def test_timm_is_an_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"^encoders of timm need timm, .*: pip install 'rayfed-ssl\[timm\]'$"):
        build_encoder("timm:resnet18", channels=3, size=32)


def test_a_file_with_a_librarys_names_is_a_start(open_tiny: Open, tmp_path: Path):
    """torchvision's names, classifier and all, into torchvision's model and into ours."""
    torch.manual_seed(1)
    model = torchvision.models.resnet18()
    file = tmp_path / "model.safetensors"
    save_file({name: value for name, value in model.state_dict().items() if "tracked" not in name}, file)
    for encoder, body in (("torchvision:resnet18", "encoder.body."), ("resnet18", "encoder.")):
        stem = "model.stem=imagenet" if encoder == "resnet18" else "model.stem=auto"
        task = open_tiny("fedavg", *COLOR, f"model.encoder={encoder}", stem, f"model.start={file}").task
        weights = task.initial_weights()
        expected = {body + name: value for name, value in model.state_dict().items() if not name.startswith("fc.")}
        assert digest({name: weights[name] for name in expected}) == digest(expected)
        assert task.start is not None
        assert set(task.start.weights) == set(expected)
    save_file({name: value.half() for name, value in model.state_dict().items()}, tmp_path / "half.safetensors")
    half = ("model.encoder=resnet18", "model.stem=imagenet", f"model.start={tmp_path / 'half.safetensors'}")
    weights = open_tiny("fedavg", *COLOR, *half).task.initial_weights()
    assert weights["encoder.conv1.weight"].equal(model.conv1.weight.half().float())
    assert weights["encoder.bn1.num_batches_tracked"].dtype == torch.int64
    other = open_tiny("fedavg", *COLOR, "model.encoder=resnet34", f"model.start={file}").task
    with pytest.raises(
        ConfigError, match=r"lacks \d+ of the \d+ tensors of encoder resnet34, such as layer1.2.bn1.bias"
    ):
        other.initial_weights()


def test_published_weights_are_a_start(open_tiny: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The library's own cache stands for the network: torchvision looks there first."""
    torch.manual_seed(2)
    model = torchvision.models.resnet18()
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    url = torchvision.models.ResNet18_Weights.DEFAULT.url
    torch.save(model.state_dict(), tmp_path / "checkpoints" / Path(url).name)
    overrides = (*COLOR, "model.encoder=torchvision:resnet18", "model.pretrained=true")
    task = open_tiny("fedavg", *overrides).task
    weights = task.initial_weights()
    assert torch.equal(weights["encoder.body.layer4.1.conv2.weight"], model.layer4[1].conv2.weight)
    assert task.start is not None
    assert task.start.file == "torchvision:resnet18"


def test_weights_that_cannot_be_fetched_cost_one_line(open_tiny: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def offline(*args: Any, **options: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    federation = open_tiny("fedavg", *COLOR, "model.encoder=torchvision:resnet18", "model.pretrained=true")
    message = (
        r"the weights of model.encoder=torchvision:resnet18 cannot be fetched \(no network\): connect this machine once"
    )
    with pytest.raises(ConfigError, match=message):
        federation.check_ready()
    federation = open_tiny("fedavg", *COLOR, "model.encoder=torchvision:vit_b_32", "model.pretrained=true")
    with pytest.raises(ConfigError, match=r"vit_b_32 do not fit these images \(.*224 but got 32.*\): set data.size"):
        federation.check_ready()


def test_starts_that_contradict_each_other_are_refused(open_tiny: Open, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"got model.encoder=cnn: take torchvision:NAME or timm:NAME"):
        open_tiny("fedavg", "model.pretrained=true")
    with pytest.raises(ConfigError, match="name two starts: set one of them"):
        open_tiny("fedavg", "model.encoder=timm:resnet18", "model.pretrained=true", f"model.start={tmp_path}")


@pytest.mark.slow
def test_a_run_trains_a_librarys_model(tiny: Callable[..., Any], tmp_path: Path):
    config = tiny("fedavg", *COLOR, "model.encoder=torchvision:mobilenet_v3_small", "rounds=1")
    result = run(config, tmp_path / "run")
    assert all(bool(torch.as_tensor(value).isfinite().all()) for value in result.encoder_weights().weights.values())
