"""Encoders as plain files for other programs: one safetensors file with weights and what it takes to use them.

Tensors are named as the encoder's layers are, which for ResNets are torchvision's names, so that a ResNet's file loads with
`strict=True` into torchvision's model without its classifier. Heads, where asked for, are named "heads.projector..." and so
on. The file's metadata are strings: `Info`'s fields, lists and numbers as JSON.
"""

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.data.view_recipes import ViewRecipe
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Encoder
from rayfed_ssl.models import build_encoder, encoder_info, encoders
from rayfed_ssl.models.batch_norm import BatchNorm1d, BatchNorm2d
from rayfed_ssl.models.pooling import AdaptiveAvgPool2d
from rayfed_ssl.models.precision import choose_precision, prepare
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.trees import Weights

FORMAT = "rayfed-ssl-encoder/1"
"""Names the file's layout; a file without it is no exported encoder."""

HEADS = "heads."
BODY = "encoder."

TORCHS: dict[type[nn.Module], type[nn.Module]] = {
    BatchNorm1d: nn.BatchNorm1d,
    BatchNorm2d: nn.BatchNorm2d,
    AdaptiveAvgPool2d: nn.AdaptiveAvgPool2d,
}
"""Layers of torch in the place of ours, which torch.fx cannot trace."""


@dataclass(frozen=True)
class Info:
    """The metadata of an exported encoder.

    Attributes:
        stem: First layers of a ResNet: "cifar" or "imagenet"; "auto" for encoders that have one set only.
        size: Side in pixels of the images that it was trained on.
        mean: What is subtracted from each channel of images in [0, 1], length C.
        std: What each channel is then divided by, length C.
        method: The system that trained it, as `rayfed-ssl compare` names it.
        encoder: Its name in the run: "global", or "client-3" and so on.
        state_sha256: Digest of the run's state after that round.
        version: Of rayfed-ssl, which wrote the file.
    """

    architecture: str
    stem: str
    channels: int
    size: int
    feature_dim: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    method: str
    encoder: str
    dataset: str
    dataset_fingerprint: str
    seed: int
    round: int
    state_sha256: str
    version: str

    def metadata(self) -> dict[str, str]:
        """Write the fields as strings."""
        fields = dataclasses.asdict(self)
        return {"format": FORMAT} | {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> "Info":
        """Read the fields back; KeyError or ValueError for fields that `metadata` did not write."""
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = metadata[field.name]
            value = text if field.type is str else json.loads(text)
            fields[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**fields)

    @property
    def recipe(self) -> ViewRecipe:
        """The normalization, as views know it."""
        return ViewRecipe(mean=self.mean, std=self.std)


@dataclass(frozen=True)
class Export:
    """An exported encoder, read.

    Attributes:
        info: Its metadata.
        weights: The encoder's weights by the names of its layers.
        heads: Weights of the heads by part and layer, such as "projector.0.weight"; empty where none were exported.
    """

    info: Info
    weights: Weights
    heads: Weights

    @property
    def encoder(self) -> Encoder:
        """The encoder as evaluation takes it."""
        body = {BODY + name: value for name, value in self.weights.items()}
        return Encoder(self.info.architecture, body | self.heads)


class LoadedEncoder(encoders.Encoder):
    """A plain chain of layers in evaluation mode: normalized images [N, C, S, S] to features [N, feature_dim].

    Its `size` is S; `mean` and `std` are those of `Info`.
    """

    def __init__(self, info: Info, body: encoders.Encoder) -> None:
        super().__init__(body.feature_dim, OrderedDict(body.named_children()))
        self.info = info
        self.size, self.mean, self.std = info.size, info.mean, info.std

    def normalize(self, images: Tensor) -> Tensor:
        """Turn uint8 images [N, C, H, W] into what the encoder takes, float32 of the same shape.

        Raises:
            ValueError: Images of another type, or with another number of channels.
        """
        if images.ndim == 4 and images.shape[1] != self.info.channels:
            raise ValueError(
                f"the encoder takes images with {self.info.channels} channels, got {list(images.shape)}: pass "
                f"[N, {self.info.channels}, H, W]"
            )
        return normalize(images, self.info.recipe)


def write_export(export: Export, path: Path) -> None:
    """Write the file, as a whole or not at all; its directory is made where it is missing.

    Raises:
        ConfigError: Its name does not end in .safetensors.
    """
    if path.suffix != ".safetensors":
        raise ConfigError(f"an exported encoder's name ends in .safetensors, got {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = export.weights | {HEADS + name: value for name, value in export.heads.items()}
    content = save({name: value.contiguous() for name, value in tensors.items()}, export.info.metadata())
    write_atomically(path, content)


def is_export(path: Path) -> bool:
    """Whether a safetensors file is an exported encoder, of whatever version; ConfigError if it is damaged."""
    return "rayfed-ssl-encoder" in _read(path)[0].get("format", "")


def foreign_tensors(path: Path) -> Weights | None:
    """Read a safetensors file that neither a run nor `rayfed-ssl export` has written; None if one of them has."""
    metadata, tensors = _read(path)
    return None if "structure" in metadata or "rayfed-ssl-encoder" in metadata.get("format", "") else tensors


def _read(path: Path) -> tuple[dict[str, str], Weights]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}: write one with `rayfed-ssl export RUN {path}`") from None
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as safetensors ({error}): copy or export it again") from None


def read_export(path: Path | str) -> Export:
    """Read an exported encoder.

    Raises:
        ConfigError: The file is missing or no exported encoder, or its architecture is unknown here.
    """
    path = Path(path)
    metadata, tensors = _read(path)
    if metadata.get("format") != FORMAT:
        raise ConfigError(
            f"{path} is not an exported encoder, its format is {metadata.get('format', 'not named')} instead of {FORMAT}: "
            "write one with `rayfed-ssl export RUN FILE`"
        )
    try:
        info = Info.read(metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the metadata of {path} are damaged ({error}): export the encoder again") from None
    try:
        encoder_info(info.architecture)
    except ConfigError as error:
        raise ConfigError(f"{path} holds an encoder that is not available: {error}") from None
    heads = {name.removeprefix(HEADS): value for name, value in tensors.items() if name.startswith(HEADS)}
    return Export(info, {name: value for name, value in tensors.items() if not name.startswith(HEADS)}, heads)


def load_encoder(path: Path | str, device: torch.device | str = "cpu") -> LoadedEncoder:
    """Load an exported encoder as a module in evaluation mode, float32, laid out in memory as evaluation does.

    Raises:
        ConfigError: As in `read_export`, or weights that do not fit the architecture.
    """
    export = read_export(path)
    try:
        return as_module(export, device)
    except RuntimeError:
        architecture = export.info.architecture
        raise ConfigError(f"the weights in {path} do not fit {architecture}: export the encoder again") from None


def as_module(export: Export, device: torch.device | str = "cpu") -> LoadedEncoder:
    """Make an encoder a module, as `load_encoder` gives it; RuntimeError for weights that do not fit the architecture."""
    info = export.info
    with torch.device("meta"):
        body = build_encoder(info.architecture, channels=info.channels, size=info.size, stem=info.stem)  # type: ignore[arg-type]
    for layer in body.modules():
        layer.__class__ = TORCHS.get(type(layer), type(layer))
    module = LoadedEncoder(info, body)
    module.to_empty(device="cpu")
    module.load_state_dict(export.weights)
    return prepare(module, choose_precision(device, "fp32"), device).eval()
