"""The sections of a run's configuration: every key, its default, its range and its meaning."""

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rayfed_ssl.clock.devices import Even
from rayfed_ssl.clock.policies import Synchronous
from rayfed_ssl.config.choices import AdaptersField, DevicesField, OptimizerField, PolicyField, Section, configured
from rayfed_ssl.data.decoding import MAX_PIXELS, MOST_PIXELS
from rayfed_ssl.data.view_recipes import SmallCrops
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.evaluation.linear_probe import LinearProbe
from rayfed_ssl.evaluation.protocols import Vote
from rayfed_ssl.evaluation.registry import Protocol
from rayfed_ssl.models.libraries import is_library
from rayfed_ssl.training.optimizers import Adam
from rayfed_ssl.validation import AbsolutePath, UserPath, absolute


class Data(Section):
    """The dataset."""

    name: str
    """One of `rayfed-ssl list datasets`, `torchvision:Class`, or `module:Class` of a torch Dataset that gives images."""
    path: UserPath | None = None
    """Directory of the files, where the dataset needs one or they do not lie in the default place; for hub also
    owner/name.
    """
    image: str | None = None
    """Column of the pictures of parquet or hub; None finds it."""
    label: str | None = None
    """Column of the classes of parquet or hub; None finds it."""
    classes: tuple[str | Annotated[int, Field(ge=0)], ...] | None = Field(
        None, min_length=1, exclude_if=lambda classes: classes is None
    )
    """Use the samples of these classes alone, by name or number; None uses all, unlabeled ones too."""
    size: int | None = Field(None, ge=4, le=1 << 14)
    """Side in pixels to which images are resized; None keeps the dataset's own."""
    channels: Literal[1, 3] | None = None
    """1 or 3; None keeps the dataset's own."""
    train_limit: int | None = Field(None, ge=2)
    """Use this many training samples, a random subset."""
    test_limit: int | None = Field(None, ge=1)
    """Measure on this many samples, a random subset."""
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """Held out where the files have no test split."""
    validation: float | None = Field(None, gt=0, lt=1)
    """Hold out this part of the labeled training samples, which no client gets, and measure on it in place of the test
    set: to choose settings by.
    """
    seed: int = Field(0, ge=0)
    """Draws these subsets and splits; apart from the run's seed, so that all runs see the same images."""
    download: bool = False
    """Whether torchvision may fetch missing files."""
    on_bad: Literal["error", "skip"] = "error"
    """What unreadable image files do: stop the run ("error") or be left out with a report ("skip")."""
    white: int | None = Field(None, ge=1, le=65535, exclude_if=lambda white: white is None)
    """Value of the pictures' pixels that becomes white, as 4095 where 12 bits lie in 16; None takes the largest of their
    8 or 16 bits.
    """
    max_pixels: int = Field(MAX_PIXELS, ge=1, le=MOST_PIXELS)
    """Of a picture; a larger one is unreadable and not decoded. Pillow opens none of more than 178,956,970."""


class Clients(Section):
    """The federation."""

    number: int = Field(6, ge=1)
    """K, with the client that gives its shard as public data."""
    fraction: float = Field(1.0, gt=0, le=1)
    """C, the part of the clients that takes part in a round."""
    models: tuple[str, ...] | None = None
    """Encoders by client id, cyclically; None gives everybody the global one."""
    labeled: float | None = Field(None, gt=0, le=1)
    """The part of its samples that a client has labels of; a supervised objective trains on these alone. None gives it
    all labels.
    """
    label_choice: Literal["balanced", "random"] = "balanced"
    """Which samples these are: as many of each class as can be ("balanced"), or any ("random")."""
    test_fraction: float | None = Field(None, gt=0, lt=1, exclude_if=lambda fraction: fraction is None)
    """The part of its labeled samples that a client never trains on and has scores of its own on (docs/evaluation.md);
    None takes none.
    """


class ModelChoice(Section):
    """The global model."""

    encoder: str = "cnn"
    """One of `rayfed-ssl list models`, `torchvision:NAME`, `timm:NAME`, or `module:factory` of an nn.Module that gives
    features [N, d].
    """
    stem: Literal["auto", "cifar", "imagenet"] = "auto"
    """A ResNet's first layers: "cifar" (3x3, no pooling), "imagenet", or by image size."""
    projection_dim: int | None = Field(None, ge=1, le=65536)
    """Width of the projections; None takes the objective's own."""
    image_size: int | None = Field(None, ge=4, le=1 << 14)
    """Side in pixels of what it sees: views are cut out of larger images, and plain ones are cropped in the center.
    None takes that of the images.
    """
    start: AbsolutePath | None = None
    """A finished run, one of its encoders/*.safetensors, an exported encoder or a safetensors file with the names of
    the encoder's layers, from which everybody starts; None starts from random weights.
    """
    pretrained: bool = False
    """Whether everybody starts from the weights that torchvision or timm publish, which are fetched once."""

    adapters: AdaptersField = Field(None, exclude_if=lambda adapters: adapters is None)
    """What is trained and sent of the encoder, and its fields (docs/adapters.md): "lora", "norms", "bias" or "head"; the
    other weights are frozen. None trains and sends all.
    """

    @property
    def is_random(self) -> bool:
        """Whether first weights are drawn."""
        return self.start is None and not self.pretrained

    @model_validator(mode="after")
    def _check_start(self) -> "ModelChoice":
        if self.pretrained and self.start is not None:
            raise ConfigError("model.pretrained=true and model.start name two starts: set one of them")
        if self.pretrained and not is_library(self.encoder):
            raise ConfigError(
                f"model.pretrained=true takes weights that torchvision or timm publish, got model.encoder={self.encoder}: "
                "take torchvision:NAME or timm:NAME, or set model.start"
            )
        return self


def _number_of(value: Any) -> Any:
    """Let a number stand for so many small crops."""
    return {"number": value} if isinstance(value, int) and not isinstance(value, bool) else value


class Training(Section):
    """Local training."""

    epochs: int | None = Field(None, ge=1)
    """E_local."""
    total_epochs: int | None = Field(None, ge=1)
    """E_total = T x E_local, in place of `epochs`."""
    total_steps: int | None = Field(None, ge=1, exclude_if=lambda steps: steps is None)
    """Steps that a client takes at least over all rounds, on average, in place of `epochs`, which follow from the data."""
    batch: int = Field(128, ge=2)
    """Samples a step."""
    drop_last: bool = False
    """Whether an incomplete last batch is left out."""
    views: str | None = None
    """One of `rayfed-ssl list views`, or `module:function`; None takes the dataset's own by image size, which records
    name.
    """
    small_crops: Annotated[SmallCrops | None, BeforeValidator(_number_of)] = Field(
        None, exclude_if=lambda crops: crops is None
    )
    """Views of small parts at a lower resolution beside the two views, for dino, ibot, lejepa, simclr and swav: how many, or
    also their fields; None for none.
    """
    optimizer: OptimizerField = Adam()
    """Its name, "adam", "adamw", "lars" or "sgd", and its fields."""
    schedule_rounds: int | None = Field(None, ge=1, exclude_if=lambda rounds: rounds is None)
    """Rounds that the schedule of the learning rate spans; later ones repeat the rates of its last. None means all."""

    def lasting(self, epochs: int) -> "Training":
        """Take so many epochs a round, whatever gave the length before."""
        return self.model_copy(update={"epochs": epochs, "total_epochs": None, "total_steps": None})


class Clock(Section):
    """Virtual time: a schedule that follows from the configuration, to which rounds keep."""

    devices: DevicesField = Even()
    """Clients' devices and their fields: "even", "phones", "hospitals", "table", or `module:Class`."""
    policy: PolicyField = Synchronous()
    """When the server aggregates, and its fields: "synchronous", "deadline", "partial", "fedasync", "fedbuff", or
    `module:Class`.
    """


def _absolute_datasets(settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Make the paths of datasets to transfer to absolute: "folder:tr" means the same in another directory then."""
    changed = {}
    for protocol, fields in settings.items():
        name, _, path = str(fields.get("dataset", "")).partition(":")
        changed[protocol] = fields | {"dataset": f"{name}:{absolute(path)}"} if path else fields
    return changed


class Evaluation(Section):
    """What is measured, and when."""

    every: int = Field(1, ge=0)
    """Run the kNN monitor after every so many rounds; 0 means at the end only."""
    knn: Vote = Vote()
    """The monitor's settings."""
    probe: Literal["end", "every"] = "end"
    """When the linear probe runs: at the "end", or after "every" round that the monitor looks at."""
    linear: LinearProbe = LinearProbe()
    """The linear probe; FLESD's, on scaled features. FLESD's own is the protocol linear-flesd."""
    augment: bool = False
    """Draw crops and flips for the probe in every epoch, as FLESD's protocol does, instead of computing features once."""
    train_limit: int | None = Field(None, ge=2)
    """Probe, monitor and protocols see this many training samples at most."""
    protocols: Annotated[tuple[str, ...], BeforeValidator(lambda one: (one,) if isinstance(one, str) else one)] = ()
    """Protocols of `rayfed-ssl list protocols` that are run at the end besides kNN and linear probe."""
    settings: Annotated[dict[str, dict[str, Any]], AfterValidator(_absolute_datasets)] = Field({})
    """Changes of their settings by name: evaluation.settings.linear-moco.epochs=5."""
    diagnostics: int = Field(0, ge=0)
    """Look at encoders (where they are scored) and compare clients, without labels, after every so many rounds and the
    last; 0 means never.
    """

    tuning_epochs: int | None = Field(None, ge=0, exclude_if=lambda epochs: epochs is None)
    """Local epochs by which the global encoder is tuned for each client, before the client's own scores
    (`clients.test_fraction`), where clients have no encoder of their own; None takes those of a round, 0 leaves it out.
    """

    @property
    def chosen(self) -> tuple[Protocol, ...]:
        """The protocols with their settings."""
        return tuple(configured(name, self.settings.get(name, {})) for name in self.protocols)

    @model_validator(mode="after")
    def _check_protocols(self) -> "Evaluation":
        if self.probe == "every" and not self.every:
            raise ConfigError("probe=every has no meaning with evaluation.every=0: set evaluation.every=1")
        if "knn" in self.protocols:
            raise ConfigError(
                "knn is measured in every run: leave it out of evaluation.protocols, and set evaluation.knn.*"
            )
        if len(set(self.protocols)) < len(self.protocols):
            raise ConfigError(f"evaluation.protocols names one twice: {', '.join(self.protocols)}")
        for name in self.settings:
            if name not in self.protocols:
                raise ConfigError(f"evaluation.settings.{name} has no meaning: {name} is not in evaluation.protocols")
        for name in self.protocols:
            configured(name, self.settings.get(name, {}))
        return self


def _actors(value: Any) -> Any:
    if value in ("auto", "per-client") or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"must be auto, per-client or a whole number of at least 1, got {value!r}")


def _switch(value: Any) -> Any:
    """YAML reads the words on and off as true and false."""
    return ("off", "on")[value] if isinstance(value, bool) else value


TRACKERS = ("tensorboard", "wandb", "mlflow")
"""What can follow a run, each an extra of the same name; `rayfed_ssl.trackers` has one module for each."""


def _trackers(value: Any) -> "Literal['auto'] | tuple[str, ...]":
    if value == "auto":
        return "auto"
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError(f"must be auto or a list of {', '.join(TRACKERS)}, got {value!r}")
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"unknown tracker {name!r}{nearest(str(name), TRACKERS)}")
    return tuple(dict.fromkeys(names))


class Engine(Section):
    """How the run is computed. Bits depend on device, precision, compile and threads, never on the rest."""

    executor: Literal["ray", "local"] = "ray"
    """Where steps run: "ray" (actors) or "local" (this process)."""
    actors: Annotated[str | int, BeforeValidator(_actors)] = "auto"
    """Client actors; "auto" takes one for each core, or for each GPU as many as what `doctor --measure` found of a step to
    leave idle is worth (else one), as far as memory carries them; "per-client" gives each client its own.
    """
    cpus_per_actor: float = Field(1.0, ge=0)
    """What Ray reserves for a client actor."""
    gpus_per_actor: float | None = Field(None, ge=0)
    """Fraction of a GPU, and of its memory, for a client actor; None shares each GPU evenly among `actors`."""
    mps: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = "auto"
    """Whether a Ray that a run starts gets NVIDIA's MPS, under which actors that share a GPU compute at the same time: where
    it can ("auto"), "on" or an error, or "off"; same bits.
    """
    device: str = "auto"
    """One of "auto", "cpu" and "cuda"."""
    cpu: Literal["native", "portable"] = "native"
    """Instructions: "native" takes the processor's fastest ones. "portable" gives the same bits on the x86-64
    processors that docs/bits.md names, in fp32 and without a GPU.
    """
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """One of "auto", "fp32" and "bf16" (autocast)."""
    channels_last: bool | None = None
    """Memory layout of images; None lets the device decide."""
    compile: bool = False
    """Whether torch.compile is used."""
    deterministic: bool = True
    """Whether a GPU takes kernels that give the same bits each time; false gives speed instead."""
    capture: Literal["auto", "never"] = "auto"
    """Whether a GPU captures training steps in CUDA graphs where it can ("auto") or "never"; same bits."""
    threads: int = Field(1, ge=1, le=256)
    """Compute threads of a client actor."""
    server_threads: int = Field(1, ge=1, le=256)
    """Compute threads of the server."""
    attempts: int = Field(3, ge=1)
    """How often a client whose actor died is tried before it counts as failed."""
    on_failure: Literal["stop", "drop"] = "stop"
    """What a client's step that failed does: end the run ("stop") or leave the client out of the round ("drop"), and
    one that killed its actor in every attempt out of all rounds to come; such a run is degraded.
    """
    deadline: float | None = Field(None, gt=0)
    """Seconds after which the clients of a round that are not done are dropped; None waits for all."""
    quorum: float = Field(0.5, gt=0, le=1)
    """Part of a cohort that must deliver, or the round fails."""
    checkpoints: Annotated[str, AfterValidator(os.path.expanduser)] | None = None
    """Directory or s3:// address for states, which all machines must reach; None means the run's own."""
    shared: AbsolutePath | None = None
    """Directory, which all machines must reach, for what the server trains before round 1: runs that begin alike, as
    those of a sweep, then train it once. None keeps nothing.
    """
    trackers: Annotated[Literal["auto"] | tuple[str, ...], BeforeValidator(_trackers)] = "auto"
    """One of "tensorboard", "wandb" and "mlflow", several of them in a list, or [] for none; "auto" takes TensorBoard
    where it is installed.
    """

    @model_validator(mode="after")
    def _check_portable(self) -> "Engine":
        if self.cpu == "portable":
            allowed = {"device": ("auto", "cpu"), "precision": ("auto", "fp32"), "compile": (False,)}
            for name, values in allowed.items():
                if (value := getattr(self, name)) not in values:
                    raise ConfigError(
                        f"engine.cpu=portable computes in fp32 on the processor, without torch.compile, got {name}="
                        f"{str(value).lower()}: leave engine.{name} as it is, or take engine.cpu=native"
                    )
        return self


BITS = ("device", "cpu", "precision", "channels_last", "compile", "deterministic", "threads", "server_threads")
"""What of `engine` changes bits."""
