"""Learned encoders in files, for this package and for other programs: safetensors with what it takes to use the weights.

RUN/encoders/NAME.safetensors is such a file, and so is what `rayfed-ssl export` writes.

Tensors are named as the encoder's layers are, which for ResNets are torchvision's names, so that a ResNet's file loads with
`strict=True` into torchvision's model without its classifier. Heads, where there are some, are named "heads.projector..."
and so on. The file's metadata are strings: `Info`'s fields, lists and numbers as JSON.
"""

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from safetensors import safe_open
from torch import Tensor, nn

from rayfed_ssl.config.strict import explain
from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.data.view_recipes import ViewRecipe
from rayfed_ssl.errors import ConfigError, plain, reason
from rayfed_ssl.foreign import plugins
from rayfed_ssl.foreign.file_kinds import file_seems
from rayfed_ssl.foreign.reading import check_header, plain_json
from rayfed_ssl.method import Encoder
from rayfed_ssl.models import build_encoder, encoder_info, encoders
from rayfed_ssl.models.batch_norm import BatchNorm1d, BatchNorm2d
from rayfed_ssl.models.pooling import AdaptiveAvgPool2d
from rayfed_ssl.models.precision import choose_precision, prepare
from rayfed_ssl.storage.tensor_files import DAMAGE, STRUCTURE, Chunk, chunks
from rayfed_ssl.training.state_parts import model_weights
from rayfed_ssl.trees import Weights, misfit
from rayfed_ssl.validation import Validated

FORMAT = "rayfed-ssl-encoder/1"
"""Names the file's layout; a file without it is no exported encoder."""

MAX_SIZE = 1 << 14
"""Side of images in pixels from which a file is taken for damaged."""

HEADS = "heads."
BODY = "encoder."

TORCHS: dict[type[nn.Module], type[nn.Module]] = {
    BatchNorm1d: nn.BatchNorm1d,
    BatchNorm2d: nn.BatchNorm2d,
    AdaptiveAvgPool2d: nn.AdaptiveAvgPool2d,
}
"""Layers of torch in the place of ours, which torch.fx cannot trace."""


@pydantic_dataclass(frozen=True)
class Info(Validated):
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
    channels: Annotated[int, Field(gt=0)]
    size: Annotated[int, Field(gt=0, le=MAX_SIZE)]
    feature_dim: int
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]
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

    def __post_init__(self) -> None:
        if not self.channels == len(self.mean) == len(self.std):
            raise ValueError(f"it normalizes {self.channels} channels with mean {self.mean} and std {self.std}")

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> "Info":
        """Read the fields back; ValueError for fields that `metadata` did not write."""
        fields: dict[str, Any] = {
            field.name: metadata[field.name] if field.type is str else plain_json(metadata[field.name].encode())
            for field in dataclasses.fields(cls)
            if field.name in metadata
        }
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

    @classmethod
    def of(cls, info: Info, encoder: Encoder) -> "Export":
        """Take the weights of encoder and heads out of a model's."""
        weights = model_weights(encoder.weights)
        body = {name.removeprefix(BODY): value for name, value in weights.items() if name.startswith(BODY)}
        return cls(info, body, {name: value for name, value in weights.items() if not name.startswith(BODY)})

    @property
    def encoder(self) -> Encoder:
        """The encoder as evaluation takes it."""
        body = {BODY + name: value for name, value in self.weights.items()}
        return Encoder(self.info.architecture, body | self.heads)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the file's content."""
        tensors = self.weights | {HEADS + name: value for name, value in self.heads.items()}
        return chunks(self.info.metadata(), {name: value.cpu().contiguous() for name, value in tensors.items()})


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


def foreign_tensors(path: Path) -> Weights | None:
    """Read a safetensors file that this package has not written; None if it has."""
    metadata, tensors = _read(path)
    return None if STRUCTURE in metadata or "rayfed-ssl-encoder" in metadata.get("format", "") else tensors


def _read(path: Path) -> tuple[dict[str, str], Weights]:
    try:
        check_header(path)
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}: write one with `rayfed-ssl export RUN {path}`") from None
    except DAMAGE as error:
        why = file_seems(path) or reason(error)
        raise ConfigError(f"{path} cannot be read as safetensors ({why}): copy, convert or export it again") from None


def read_export(path: Path | str, *, trust: bool = False) -> Export:
    """Read an encoder's file; with `trust`, a module that its architecture names is imported.

    Raises:
        ConfigError: The file is missing or holds no encoder, or its architecture is unknown.
    """
    path = Path(path)
    metadata, tensors = _read(path)
    if STRUCTURE in metadata:  # also a final encoder's, before they were exports
        raise ConfigError(f"{path} holds no encoder, but a state of a run: take RUN/encoders/NAME.safetensors")
    if (form := metadata.get("format", "not named")) != FORMAT:
        raise ConfigError(
            f"{path} is not an exported encoder, its format is {plain(form)} instead of {FORMAT}: write one "
            "with `rayfed-ssl export RUN FILE`"
        )
    try:
        info = Info.read(metadata)
    except ValueError as error:
        problem = next(explain(error, Info)) if isinstance(error, ValidationError) else reason(error)
        raise ConfigError(f"the metadata of {path} are damaged ({problem}): export it again") from None
    plugins.note(dataclasses.astuple(info), path, trust=trust)
    try:
        encoder_info(info.architecture)
    except ConfigError as error:
        raise ConfigError(f"{path} holds an encoder that is not available: {error}") from None
    heads = {name.removeprefix(HEADS): value for name, value in tensors.items() if name.startswith(HEADS)}
    body = {name: value for name, value in tensors.items() if not name.startswith(HEADS)}
    return Export(info, body, heads)


def load_encoder(path: Path | str, device: torch.device | str = "cpu", *, trust: bool = False) -> LoadedEncoder:
    """Load an exported encoder as a module in evaluation mode, float32, laid out in memory as evaluation does.

    With `trust`, a module that its architecture names, "module:factory", is imported.

    Raises:
        ConfigError: As in `read_export`, or the weights do not fit its architecture.
    """
    return as_module(read_export(path, trust=trust), device, str(path))


def check_weights(export: Export, name: str) -> encoders.Encoder:
    """Refuse weights with other names, shapes or types than their architecture has, which is given; allocates nothing.

    Raises:
        ConfigError: They differ, or the architecture cannot be built for these images.
    """
    info = export.info
    try:
        with torch.device("meta"):
            body = build_encoder(info.architecture, channels=info.channels, size=info.size, stem=info.stem)  # type: ignore[arg-type]
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} holds an encoder that cannot be built: {reason(error)}") from None
    if wrong := misfit(export.weights, body.state_dict()):
        part, got, want = wrong
        raise ConfigError(
            f"{name} does not hold a whole {info.architecture}: its {part!r:.80} is {got} where {want} is expected; export "
            "it again"
        )
    return body


def as_module(export: Export, device: torch.device | str = "cpu", name: str | None = None) -> LoadedEncoder:
    """Make an encoder a module, as `load_encoder` gives it; a ConfigError where its weights are not whole has the name."""
    body = check_weights(export, name or export.info.encoder)
    for layer in body.modules():
        layer.__class__ = TORCHS.get(type(layer), type(layer))
    module = LoadedEncoder(export.info, body)
    module.to_empty(device="cpu")
    module.load_state_dict(export.weights)
    return prepare(module, choose_precision(device, "fp32"), device).eval()
