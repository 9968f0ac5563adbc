"""A run's configuration: YAML recipes, key=value overrides, validation that names the nearest right word."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError

from rayfed_ssl.evaluation.linear_probe import LinearProbe
from rayfed_ssl.method import Method
from rayfed_ssl.methods import METHODS
from rayfed_ssl.objective import Objective
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.optimisers import Optimiser


class ConfigError(ValueError):
    """A configuration that cannot be run; the message says what is wrong, what was got and what to do."""


class Section(BaseModel):
    """Part of the configuration: frozen, and every unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Data(Section):
    """The dataset.

    Attributes:
        name: One of `rayfed-ssl list datasets`.
        path: Directory of the files, where the dataset needs one or they do not lie in the default place.
        size: Side in pixels to which images are resized; None keeps the dataset's own.
        channels: 1 or 3; None keeps the dataset's own.
        train_limit: Use this many training samples, a random subset.
        test_limit: Use this many test samples, a random subset.
        test_fraction: Held out where the files have no test split.
        seed: Draws these subsets and this split; apart from the run's seed, so that all runs see the same images.
        download: Whether torchvision may fetch missing files.
        on_bad: What unreadable image files do: stop the run ("error") or be left out with a report ("skip").
    """

    name: str
    path: Path | None = None
    size: int | None = Field(None, ge=4)
    channels: Literal[1, 3] | None = None
    train_limit: int | None = Field(None, ge=2)
    test_limit: int | None = Field(None, ge=1)
    test_fraction: float = Field(0.2, gt=0, lt=1)
    seed: int = Field(0, ge=0)
    download: bool = False
    on_bad: Literal["error", "skip"] = "error"


class Partition(Section):
    """How training samples are spread over clients.

    Attributes:
        name: "dirichlet", "iid", "classes_per_client" or "pooled" (one client has all).
        alpha: Dirichlet's concentration; smaller is less alike.
        min_share: Dirichlet is drawn again until each client's shares sum to min_share / K (FLESD's code).
        classes: Classes per client.
    """

    name: Literal["dirichlet", "iid", "classes_per_client", "pooled"] = "dirichlet"
    alpha: float | None = Field(None, gt=0)
    min_share: float | None = Field(None, ge=0)
    classes: int | None = Field(None, ge=1)


class Clients(Section):
    """The federation.

    Attributes:
        number: K, with the client that gives its shard as public data.
        fraction: C, the part of the clients that takes part in a round.
        models: Encoders by client id, cyclically; None gives everybody the global one.
    """

    number: int = Field(6, ge=1)
    fraction: float = Field(1.0, gt=0, le=1)
    models: tuple[str, ...] | None = None


class ModelChoice(Section):
    """The global model.

    Attributes:
        encoder: One of `rayfed-ssl list models`.
        stem: A ResNet's first layers: "cifar" (3x3, no pooling), "imagenet", or by image size.
        projection_dim: Width of the projections; None takes the objective's own.
    """

    encoder: str = "cnn"
    stem: Literal["auto", "cifar", "imagenet"] = "auto"
    projection_dim: int | None = Field(None, ge=1)


class Training(Section):
    """Local training.

    Attributes:
        epochs: E_local.
        total_epochs: E_total = T x E_local, in place of `epochs`.
        batch: Samples a step.
        drop_last: Whether an incomplete last batch is left out.
        views: One of `rayfed-ssl list views`; None takes the dataset's own.
        optimiser: Name, learning rate and so on.
    """

    epochs: int | None = Field(None, ge=1)
    total_epochs: int | None = Field(None, ge=1)
    batch: int = Field(128, ge=2)
    drop_last: bool = False
    views: str | None = None
    optimiser: Optimiser = Optimiser()


class KNN(Section):
    """The kNN monitor: weighted vote of the nearest training samples (facts: EasyFL's k and temperature).

    Attributes:
        neighbours: k.
        temperature: Of the vote's weights exp(cosine / temperature).
    """

    neighbours: int = Field(200, ge=1)
    temperature: float = Field(0.1, gt=0)


class Evaluation(Section):
    """What is measured, and when.

    Attributes:
        every: Run the kNN monitor after every so many rounds; 0 means at the end only.
        knn: The monitor's settings.
        linear: The linear probe at the end; FLESD's protocol.
        augment: Draw crops and flips for the probe in every epoch, as FLESD's protocol does, instead of computing
            features once.
        train_limit: Probe and monitor see this many training samples at most.
    """

    every: int = Field(1, ge=0)
    knn: KNN = KNN()
    linear: LinearProbe = LinearProbe()
    augment: bool = False
    train_limit: int | None = Field(None, ge=2)


class Engine(Section):
    """How the run is computed. Bits depend on device, precision, compile and threads, never on the rest.

    Attributes:
        executor: "ray" (actors) or "local" (this process).
        actors: Client actors; "auto" takes as many as cores or GPU slots, "per-client" gives each client its own.
        cpus_per_actor: What Ray reserves for a client actor.
        gpus_per_actor: Fraction of a GPU for a client actor; None shares each GPU among `actors` if there is one.
        device: "auto", "cpu" or "cuda".
        precision: "auto", "fp32" or "bf16" (autocast).
        channels_last: Memory layout of images; None lets the device decide.
        compile: Whether torch.compile is used.
        threads: Compute threads of a client actor.
        server_threads: Compute threads of the server.
        attempts: How often a client whose actor died is tried before the run fails.
    """

    executor: Literal["ray", "local"] = "ray"
    actors: Literal["auto", "per-client"] | Annotated[int, Field(ge=1)] = "auto"
    cpus_per_actor: float = Field(1.0, ge=0)
    gpus_per_actor: float | None = Field(None, ge=0)
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    channels_last: bool | None = None
    compile: bool = False
    threads: int = Field(1, ge=1)
    server_threads: int = Field(1, ge=1)
    attempts: int = Field(3, ge=1)


def _chosen(kind: str, registry: Mapping[str, Any]) -> Any:
    """Validator that turns {name: ..., field: ...} into the registered dataclass."""

    def build(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        fields = dict(value)
        name = fields.pop("name", None)
        if name not in registry:
            raise ValueError(f"unknown {kind} {name!r}{nearest(str(name), registry)}")
        built_class = getattr(registry[name], "method", registry[name])
        _refuse_unknown(fields, built_class, kind, name, registry)
        return TypeAdapter(built_class).validate_python(fields)

    return build


def _refuse_unknown(fields: Mapping[str, Any], chosen: Any, kind: str, name: str, registry: Mapping[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(chosen)}
    for field in fields:
        if field not in known:
            owners = [
                other
                for other, entry in registry.items()
                if field in {f.name for f in dataclasses.fields(getattr(entry, "method", entry))}
            ]
            hint = f"; it belongs to {', '.join(owners)}" if owners else nearest(field, known)
            raise ValueError(f"{kind} {name} has no field {field!r}{hint}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the nearest known word, or list them all where none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f": did you mean {close[0]!r}?"
    return f": choose from {', '.join(known)}" if known else ": there is nothing to set here"


def _named(registry: Mapping[str, Any]) -> PlainSerializer:
    def dump(value: Any) -> dict[str, Any]:
        name = next(n for n, entry in registry.items() if getattr(entry, "method", entry) is type(value))
        return {"name": name, **dataclasses.asdict(value)}

    return PlainSerializer(dump)


MethodField = Annotated[Any, BeforeValidator(_chosen("method", METHODS)), _named(METHODS)]
ObjectiveField = Annotated[Any, BeforeValidator(_chosen("objective", OBJECTIVES)), _named(OBJECTIVES)]


class Config(Section):
    """A complete run.

    Attributes:
        seed: Fixes every draw of the run.
        rounds: T.
        method: The federated method and its fields.
        objective: The local objective and its fields.
        public: Public data: "client:0", "fraction:0.1" or another dataset as "stl10:3200".
    """

    seed: int = Field(0, ge=0)
    rounds: int = Field(2, ge=1)
    method: MethodField
    objective: ObjectiveField
    data: Data
    partition: Partition = Partition()
    clients: Clients = Clients()
    public: str | None = None
    model: ModelChoice = ModelChoice()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    engine: Engine = Engine()

    @classmethod
    def load(cls, source: "str | Path | Mapping[str, Any]" = "digits", *overrides: str) -> "Config":
        """Read a recipe by name, by file or as a dict, and apply overrides such as "method.mu=0.1".

        Raises:
            ConfigError: Unknown recipe or key, or a value that does not fit; one line per mistake.
        """
        tree = dict(source) if isinstance(source, Mapping) else read_recipe(source)
        for override in overrides:
            apply_override(tree, override)
        return validate(tree)

    @property
    def epochs(self) -> int:
        """E_local, from `training.epochs` or as E_total / T."""
        assert self.training.epochs is not None or self.training.total_epochs is not None
        return self.training.epochs or int(self.training.total_epochs or 0) // self.rounds

    def dump(self) -> dict[str, Any]:
        """Give the configuration back as plain data that `load` reads."""
        return self.model_dump(mode="json")


def recipe_names() -> list[str]:
    """Name the recipes that come with the package."""
    folder = resources.files("rayfed_ssl.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_recipe(source: str | Path) -> dict[str, Any]:
    """Read a recipe file, or one that comes with the package, as plain data."""
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        if str(source) not in recipe_names():
            raise ConfigError(f"there is no recipe {str(source)!r}{nearest(str(source), recipe_names())}")
        text = resources.files("rayfed_ssl.recipes").joinpath(f"{source}.yaml").read_text()
    elif path.is_file():
        text = path.read_text()
    else:
        raise ConfigError(f"there is no recipe file {path}: give a path that exists, or a name from `list recipes`")
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{source} must hold keys and values, got {type(tree).__name__}")
    return tree


SCALAR_MEANS = {"model": "encoder"}
"""Which field of a section a bare value sets; for all others it is the name."""


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Apply "a.b=value" in place; a bare value for a section ("method=fedavg") replaces the section."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"an override looks like key=value, got {override!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        child = node.setdefault(parent, {})
        if isinstance(child, str):
            child = node[parent] = {SCALAR_MEANS.get(parent, "name"): child}
        if not isinstance(child, dict):
            raise ConfigError(f"cannot set {key}: {parent} holds {child!r}, which has no fields")
        node = child
    node[last] = value
    if key == "training.epochs":
        tree["training"].pop("total_epochs", None)
    if key == "training.total_epochs":
        tree["training"].pop("epochs", None)


def validate(tree: Mapping[str, Any]) -> Config:
    """Check plain data and fill in defaults."""
    sections = {name for name, field in Config.model_fields.items() if name not in ("seed", "rounds", "public")}
    prepared: dict[str, Any] = {
        key: {SCALAR_MEANS.get(key, "name"): value} if key in sections and isinstance(value, str) else value
        for key, value in tree.items()
    }
    method = prepared.get("method")
    stands_for = METHODS.get(str(method.get("name"))) if isinstance(method, Mapping) else None
    if stands_for is not None and stands_for.rounds is not None:
        prepared["rounds"] = stands_for.rounds
    try:
        config = Config.model_validate(prepared)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error))) from None
    _check_consistency(config)
    return config


def _explain(error: ValidationError) -> Iterable[str]:
    for mistake in error.errors():
        where = ".".join(str(part) for part in mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            *parents, key = [str(part) for part in mistake["loc"]]
            yield f"unknown key {where!r}{nearest(key, _keys_of(parents))}"
        elif mistake["type"] == "value_error":
            yield (
                f"{where}: {mistake['ctx']['error']}"
                if "has no field" not in str(mistake["msg"])
                else str(mistake["ctx"]["error"])
            )
        elif mistake["type"] == "missing":
            yield f"{where} is missing: set {where}=..."
        else:
            yield f"{where}: {mistake['msg'].lower()}, got {mistake['input']!r}"


def _keys_of(parents: list[str]) -> list[str]:
    section: Any = Config
    for parent in parents:
        section = section.model_fields[parent].annotation
        if dataclasses.is_dataclass(section):
            return [field.name for field in dataclasses.fields(section)]
    return list(section.model_fields)


PARTITION_FIELDS = {"dirichlet": ("alpha", "min_share"), "classes_per_client": ("classes",), "iid": (), "pooled": ()}


def _check_consistency(config: Config) -> None:
    """Refuse what no single field can see: fields that would be ignored, and sums that do not work out."""
    training, chosen = config.training, config.partition
    if (training.epochs is None) == (training.total_epochs is None):
        raise ConfigError("set exactly one of training.epochs (E_local) and training.total_epochs (T x E_local)")
    if training.total_epochs is not None and training.total_epochs % config.rounds:
        raise ConfigError(
            f"training.total_epochs={training.total_epochs} does not split into rounds={config.rounds} equal rounds: "
            "choose a multiple, or set training.epochs"
        )
    for field in ("alpha", "min_share", "classes"):
        if getattr(chosen, field) is not None and field not in PARTITION_FIELDS[chosen.name]:
            raise ConfigError(f"partition.{field} has no meaning for partition={chosen.name}: remove it")
    if chosen.name == "classes_per_client" and chosen.classes is None:
        raise ConfigError("partition=classes_per_client needs partition.classes, how many classes a client holds")
    if training.optimiser.name == "adam" and training.optimiser.momentum != Optimiser.momentum:
        raise ConfigError("training.optimiser.momentum has no meaning for adam: remove it or set optimiser.name=sgd")
    _check_method(config)


def _check_method(config: Config) -> None:
    method: Method = config.method
    name = next(n for n, info in METHODS.items() if info.method is type(method))
    objective: Objective = config.objective
    if method.needs_public and config.public is None:
        raise ConfigError(
            f"{name} distils on public data, but this run has none: set public (for example client:0 or stl10:3200)"
        )
    if not method.needs_public and config.public is not None:
        raise ConfigError(f"{name} uses no public data, got public={config.public}: set public=null")
    models = config.clients.models
    if models and method.averages_weights and set(models) != {config.model.encoder}:
        raise ConfigError(
            f"{name} averages weights, so all clients need one architecture, got {', '.join(models)}: remove "
            "clients.models or take a method for mixed models (flesd, local)"
        )
    if objective.needs_labels and method.needs_public:
        raise ConfigError(f"{name} compares representations: a supervised objective has none, take objective=simclr")
