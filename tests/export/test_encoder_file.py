"""Exported encoders: what is in the file, and that it gives the same bits wherever it is loaded."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import rayfed_ssl
from rayfed_ssl import Config, ConfigError, run
from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.export.encoders import export_encoder, last_encoder
from rayfed_ssl.models import ENCODERS, build_encoder
from rayfed_ssl.models.precision import choose_precision
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.runs import Result
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.encoder_file import Export, Info, load_encoder, read_export
from rayfed_ssl.trees import digest
from tests.conftest import tiny_tree
from tests.stopping import StopAt

Tiny = Callable[..., Config]

DOCS = Path(__file__).parents[2] / "docs"

INFO = Info(
    architecture="cnn",
    stem="auto",
    channels=3,
    size=20,
    feature_dim=256,
    mean=(0.4, 0.45, 0.5),
    std=(0.2, 0.25, 0.3),
    classes=("a", "b, c"),
    method="fedavg",
    encoder="global",
    dataset="folder",
    dataset_fingerprint="f" * 64,
    seed=3,
    round=7,
    state_sha256="e" * 64,
    version="0.1.0",
)


@pytest.fixture(scope="module")
def finished(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(tiny("fedavg"), tmp_path_factory.mktemp("runs") / "fedavg")


@pytest.fixture(scope="module")
def mixed(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Result:
    config = tiny("local", "rounds=1", "clients.models=[cnn, alexnet]")
    return run(config, tmp_path_factory.mktemp("runs") / "local")


def random_export(architecture: str, stem: str = "auto", channels: int = 3, size: int = 20) -> Export:
    """An encoder with random weights and random running statistics."""
    torch.manual_seed(5)
    body = build_encoder(architecture, channels=channels, size=size, stem=stem)
    body(torch.randn(4, channels, size, size))
    per_channel = {"channels": channels, "mean": INFO.mean[:channels], "std": INFO.std[:channels]}
    info = replace(INFO, architecture=architecture, stem=stem, size=size, feature_dim=body.feature_dim, **per_channel)
    return Export(info, body.state_dict(), {})


def write_export(export: Export, path: Path) -> None:
    path.write_bytes(b"".join(export.chunks()))


def random_images(number: int, channels: int = 3, size: int = 20) -> np.ndarray:
    shape = (number, channels, size, size)
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


def test_an_export_is_read_as_it_was_written(tmp_path: Path):
    export = random_export("cnn")
    write_export(export, tmp_path / "encoder.safetensors")
    again = read_export(tmp_path / "encoder.safetensors")
    assert again.info == export.info
    assert digest(again.weights) == digest(export.weights)
    with safe_open(tmp_path / "encoder.safetensors", "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["mean"]) == list(INFO.mean)
    assert (metadata["architecture"], metadata["size"], metadata["classes"]) == ("cnn", "20", '["a", "b, c"]')


def test_an_export_describes_its_run(finished: Result, tmp_path: Path):
    info = export_encoder(finished.directory, tmp_path / "e.safetensors").info
    federation = Federation.open(finished.record.config())
    assert (info.architecture, info.stem, info.channels, info.size, info.feature_dim) == ("cnn", "auto", 1, 8, 256)
    assert (info.method, info.encoder, info.dataset, info.seed, info.round) == ("fedavg", "global", "digits", 0, 2)
    assert (info.mean, info.std) == ((0.305,), (0.376,))
    assert info.classes == federation.dataset.train.classes
    assert info.dataset_fingerprint == federation.dataset.fingerprint
    assert (info.state_sha256, info.version) == (finished.state_sha256, rayfed_ssl.__version__)


def test_features_have_the_bits_of_evaluation(finished: Result, tmp_path: Path):
    export_encoder(finished.directory, tmp_path / "e.safetensors")
    federation = Federation.open(finished.record.config())
    own, task = finished.encoder_weights(), federation.task
    features = partial(extract_features, device="cpu", precision=choose_precision("cpu", "fp32"))
    images = federation.dataset.test.images
    expected = features(
        task.model(own.weights, own.architecture).encoder, images, partial(normalize, recipe=task.views.first)
    )
    loaded = load_encoder(tmp_path / "e.safetensors")
    assert not loaded.training
    assert torch.equal(features(loaded, images, loaded.normalize), expected)


def test_one_mean_for_three_channels_is_written_three_times(tiny: Tiny, tmp_path: Path):
    config = tiny("fedavg", "rounds=1", "data.channels=3", "training.views=simclr-cifar", "data.size=10")
    info = export_encoder(run(config, tmp_path / "run").directory, tmp_path / "e.safetensors").info
    assert (info.channels, info.size) == (3, 10)
    assert info.mean == (0.4914, 0.4822, 0.4465)
    gray = tiny("fedavg", "rounds=1", "training.views=simclr-cifar")
    federation = Federation.open(gray)
    export_encoder(run(gray, tmp_path / "gray").directory, tmp_path / "gray.safetensors")
    images = torch.from_numpy(np.array(federation.dataset.test.images[:7]))
    assert torch.equal(
        load_encoder(tmp_path / "gray.safetensors").normalize(images),
        normalize(images, federation.task.views.first),
    )


def test_each_client_s_own_encoder_can_be_exported(mixed: Result, tmp_path: Path):
    for name, architecture in (("client-0", "cnn"), ("client-1", "alexnet")):
        export = export_encoder(mixed.directory, tmp_path / f"{name}.safetensors", encoder=name)
        assert (export.info.encoder, export.info.architecture) == (name, architecture)
        weights = mixed.encoder_weights(name).weights
        assert {f"encoder.{key}" for key in export.weights} == {key for key in weights if key.startswith("encoder.")}
        assert all(torch.equal(value, weights[f"encoder.{key}"]) for key, value in export.weights.items())


def test_heads_are_exported_only_on_request(finished: Result, tmp_path: Path):
    plain = export_encoder(finished.directory, tmp_path / "plain.safetensors")
    both = export_encoder(finished.directory, tmp_path / "both.safetensors", with_heads=True)
    assert (plain.heads, digest(plain.weights)) == ({}, digest(both.weights))
    assert {name.partition(".")[0] for name in both.heads} == {"projector"}
    again = read_export(tmp_path / "both.safetensors")
    assert digest(again.encoder.weights) == digest(finished.encoder_weights().weights)
    images = torch.from_numpy(random_images(3, 1, 8))
    first, second = (load_encoder(tmp_path / f"{name}.safetensors") for name in ("plain", "both"))
    assert torch.equal(first(first.normalize(images)), second(second.normalize(images)))


@pytest.mark.parametrize(
    "settings", [(), ("clients.number=4", "robust=foolsgold")], ids=["mean", "rule that remembers"]
)
def test_an_unfinished_run_exports_the_last_committed_round(tiny: Tiny, tmp_path: Path, settings: tuple[str, ...]):
    with pytest.raises(KeyboardInterrupt):
        run(tiny("fedavg", *settings), tmp_path / "run", observer=StopAt("on_round", 2))
    unfinished = export_encoder(tmp_path / "run", tmp_path / "stopped.safetensors")
    whole = run(tiny("fedavg", "rounds=1", *settings), tmp_path / "one")
    assert (unfinished.info.round, unfinished.info.state_sha256) == (1, whole.state_sha256)
    assert digest(unfinished.weights) == digest(export_encoder(whole.directory, tmp_path / "one.safetensors").weights)


@pytest.mark.parametrize("architecture", ENCODERS)
def test_a_loaded_encoder_of_every_architecture_gives_the_same_features_and_can_be_traced(
    architecture: str, tmp_path: Path
):
    export = random_export(architecture, "cifar" if ENCODERS[architecture].has_stem else "auto", channels=2)
    original = build_encoder(architecture, channels=2, size=20, stem=export.info.stem)
    original.load_state_dict(export.weights)
    write_export(export, tmp_path / "e.safetensors")
    loaded = load_encoder(tmp_path / "e.safetensors")
    images = torch.from_numpy(random_images(3, 2))
    assert (loaded.size, loaded.mean, loaded.std) == (20, (0.4, 0.45), (0.2, 0.25))
    with torch.inference_mode():
        features = loaded(loaded.normalize(images))
        expected = original.eval()(normalize(images, export.info.recipe))
        traced = torch.fx.symbolic_trace(loaded)(loaded.normalize(images))
    assert torch.equal(traced, features)
    # The layout in memory may differ, and with it the order of float32 sums.
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("depth", "stem"), [(18, "cifar"), (18, "imagenet"), (34, "cifar"), (50, "imagenet")])
def test_a_resnet_loads_into_torchvision_strictly(depth: int, stem: str, tmp_path: Path):
    size = 20 if stem == "cifar" else 40
    write_export(random_export(f"resnet{depth}", stem, size=size), tmp_path / "e.safetensors")
    model = getattr(torchvision.models, f"resnet{depth}")(num_classes=4)
    model.fc = nn.Identity()
    if stem == "cifar":
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    model.load_state_dict(load_file(tmp_path / "e.safetensors"), strict=True)
    ours = load_encoder(tmp_path / "e.safetensors")
    inputs = ours.normalize(torch.from_numpy(random_images(2, size=size)))
    with torch.inference_mode():
        features = model.eval().to(memory_format=torch.channels_last)(inputs)
        assert torch.equal(features, ours(inputs))


def test_images_with_other_channels_or_scaled_are_refused(tmp_path: Path):
    write_export(random_export("cnn"), tmp_path / "e.safetensors")
    loaded = load_encoder(tmp_path / "e.safetensors")
    with pytest.raises(ValueError, match=r"takes images with 3 channels, got \[2, 1, 20, 20\]: pass \[N, 3, H, W\]$"):
        loaded.normalize(torch.from_numpy(random_images(2, 1)))
    with pytest.raises(ValueError, match="uint8 images"):
        loaded.normalize(torch.zeros(2, 3, 20, 20))


def damaged(name: str, path: Path) -> None:
    """Write a file that is no usable export, in one of several ways."""
    export = random_export("cnn")
    if name == "no safetensors":
        path.write_text("PK")
    elif name == "other safetensors":
        save_file(export.weights, path)
    elif name == "other weights":
        save_file(random_export("alexnet").weights, path, export.info.metadata())
    elif name == "tree":
        checkpoints.store(export.encoder, path.parent, path.stem)
    elif name == "unknown architecture":
        save_file(export.weights, path, replace(INFO, architecture="resnet19").metadata())
    elif name != "missing":
        metadata = export.info.metadata() | ({"size": "large"} if name == "size" else {})
        if name.startswith("no "):
            del metadata[name.removeprefix("no ")]
        save_file(export.weights, path, metadata)


WRONG = {
    "missing": "there is no file",
    "no safetensors": "cannot be read as safetensors",
    "other safetensors": "is not an exported encoder, its format is not named instead of rayfed-ssl-encoder/1",
    "unknown architecture": "holds an encoder that is not available: unknown encoder 'resnet19': did you mean 'resnet18'",
    "other weights": "does not hold a whole cnn: its .* is missing where .* is expected",
    "tree": "holds no encoder, but a state of a run: take RUN/encoders/NAME.safetensors$",
    "size": "the metadata of .* are damaged",
    "no classes": "the metadata of .* are damaged .*classes",
    "no architecture": "the metadata of .* are damaged .*architecture",
}


@pytest.mark.parametrize("name", WRONG)
def test_an_unusable_file_is_an_error_of_one_line(name: str, tmp_path: Path):
    damaged(name, tmp_path / "e.safetensors")
    with pytest.raises(ConfigError, match=WRONG[name]) as caught:
        load_encoder(tmp_path / "e.safetensors")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_exported_is_refused(finished: Result, mixed: Result, tmp_path: Path):
    out = tmp_path / "new" / "e.safetensors"
    with pytest.raises(ConfigError, match=r"has no encoder 'client-3': choose from global$"):
        export_encoder(finished.directory, out, encoder="client-3")
    with pytest.raises(ConfigError, match=r"has no encoder 'global': choose from client-0, client-1, client-2$"):
        export_encoder(mixed.directory, out, encoder="global")
    assert mixed.encoder().info.encoder == "client-0"  # without a name the first, where none is global
    with pytest.raises(ConfigError, match=r"name ends in \.safetensors, got .*e\.pt$"):
        export_encoder(finished.directory, out.with_suffix(".pt"))
    with pytest.raises(ConfigError, match="holds no run"):
        export_encoder(tmp_path, out)
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_the_encoder_of_the_lowest_client_is_taken(mixed: Result, tmp_path: Path):
    twelve = shutil.copytree(mixed.directory, tmp_path / "twelve")
    for old, new in (("client-0", "client-11"), ("client-1", "client-7"), ("client-2", "client-9")):
        (twelve / "encoders" / f"{old}.safetensors").rename(twelve / "encoders" / f"{new}.safetensors")
        (twelve / "run.json").write_text((twelve / "run.json").read_text().replace(f'"{old}"', f'"{new}"'))
    record = RunRecord.open(twelve)
    assert digest(last_encoder(record).encoder) == record.manifest.encoders["client-7"]
    (twelve / "encoders" / "client-7.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"client-7\.safetensors cannot be read as safetensors"):
        export_encoder(twelve, tmp_path / "e.safetensors")
    shutil.rmtree(twelve / "encoders")
    with pytest.raises(ConfigError, match=r"twelve has no encoders: `rayfed-ssl resume .*/twelve` writes them again"):
        export_encoder(twelve, tmp_path / "e.safetensors")


@pytest.mark.slow
def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = Config.load(tiny_tree("fedavg"), "model.encoder=resnet18", "rounds=1", "data.train_limit=60")
    export_encoder(run(config, tmp_path / "run").directory, tmp_path / "encoder.safetensors")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "export.md").read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/export.md", "exec"), names)
    # torchvision's model lies in memory as [N, C, H, W], which sums in another order.
    torch.testing.assert_close(names["features"], names["features_of_any"], rtol=1e-4, atol=1e-5)
    assert names["features"].shape == (100, 512)
    assert names["accuracy"] > 0.7  # random features of digits give as much
