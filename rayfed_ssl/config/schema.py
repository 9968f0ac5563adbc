"""A run's configuration: sections of keys, a method and an objective, checked together."""

import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter, ValidationError

from rayfed_ssl.config.recipes import SCALAR_MEANS, apply_override, read_recipe
from rayfed_ssl.config.sections import Clients, Data, Engine, Evaluation, ModelChoice, Partition, Section, Training
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.method import Method
from rayfed_ssl.methods import METHODS
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.training.objective import Objective
from rayfed_ssl.training.optimizers import Optimizer


def _chosen(kind: str, registry: Mapping[str, Any]) -> Any:
    """Validator that turns {name: ..., field: ...} into the registered dataclass."""

    def build(value: Any) -> Any:
        if isinstance(value, tuple(getattr(entry, "method", entry) for entry in registry.values())):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"name one of {', '.join(registry)}, got {value!r}")
        fields = dict(value)
        name = fields.pop("name", None)
        if not isinstance(name, str) or name not in registry:
            raise ValueError(f"unknown {kind} {name!r}{nearest(str(name), registry)}")
        built_class = getattr(registry[name], "method", registry[name])
        _refuse_unknown(fields, built_class, kind, name, registry)
        for field in dataclasses.fields(built_class):
            if field.type is Method and field.name in fields:
                fields[field.name] = build(_named_base(fields[field.name], f"{kind}.{field.name}", registry))
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
            hint = f"; it belongs to {', '.join(owners)}" if owners else nearest(str(field), known)
            raise ValueError(f"{kind} {name} has no field {field!r}{hint}")


def _named_base(value: Any, key: str, registry: Mapping[str, Any]) -> Any:
    named = {"name": value} if isinstance(value, str) else value
    if isinstance(named, Mapping):
        name = named.get("name")
        if name is None:
            raise ValueError(f"{key} needs a name beside its fields: set {key}.name")
        if getattr(registry.get(str(name)), "rounds", None) is not None:
            raise ValueError(f"{key} cannot stand for a number of rounds, got {name}: take the method without it")
    return named


def _named(registry: Mapping[str, Any]) -> PlainSerializer:
    def dump(value: Any) -> dict[str, Any]:
        name = next(n for n, entry in registry.items() if getattr(entry, "method", entry) is type(value))
        inner = {
            field.name: dump(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if isinstance(getattr(value, field.name), Method)
        }
        return {"name": name, **dataclasses.asdict(value), **inner}

    return PlainSerializer(dump)


REGISTRIES: Mapping[str, Mapping[str, Any]] = {"method": METHODS, "objective": OBJECTIVES}

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
        tree = copy.deepcopy(dict(source)) if isinstance(source, Mapping) else read_recipe(source)
        for override in overrides:
            apply_override(tree, override)
        config = validate(tree)
        if tree.get("rounds", config.rounds) != config.rounds and any(o.startswith("rounds=") for o in overrides):
            raise ConfigError(
                f"{config.method_name} stands for rounds={config.rounds}, got rounds={tree['rounds']}: remove it"
            )
        return config

    @property
    def epochs(self) -> int:
        """E_local, from `training.epochs` or as E_total / T."""
        assert self.training.epochs is not None or self.training.total_epochs is not None
        return self.training.epochs or int(self.training.total_epochs or 0) // self.rounds

    @property
    def method_name(self) -> str:
        """The method's name in `list methods`: of two names of one class, the one that stands for this many rounds."""
        names = {info.rounds: name for name, info in METHODS.items() if info.method is type(self.method)}
        return names.get(self.rounds, names[None])

    @property
    def system(self) -> str:
        """Method, the one that it holds, and the objective unless it is SimCLR or the method's own: fedfoa-fedema-byol."""
        names, method = [self.method_name], self.method
        while (method := method.inner) is not None:
            names.append(_name_of(method))
        objective = next(name for name, kind in OBJECTIVES.items() if kind is type(self.objective))
        return "-".join(names + [objective] * (objective != "simclr" and self.objective.belongs_to is None))

    def dump(self) -> dict[str, Any]:
        """Give the configuration back as plain data that `load` reads."""
        return self.model_dump(mode="json")


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
    plain = config.model_dump(mode="python")
    _refuse_infinite(plain, "")
    _refuse_booleans(prepared, plain, "")
    _check_consistency(config)
    return config


def _refuse_infinite(value: Any, key: str) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_infinite(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key} must be a finite number, got {value}")


def _refuse_booleans(given: Any, taken: Any, key: str) -> None:
    """Refuse true and false where numbers are meant, for which Python takes them."""
    if isinstance(given, Mapping) and isinstance(taken, Mapping):
        for name, inner in given.items():
            _refuse_booleans(inner, taken.get(name), f"{key}.{name}" if key else str(name))
    elif isinstance(given, list | tuple) and isinstance(taken, list | tuple):
        for inner, one in zip(given, taken, strict=False):
            _refuse_booleans(inner, one, key)
    elif isinstance(given, bool) and isinstance(taken, int | float) and not isinstance(taken, bool):
        raise ConfigError(f"{key} must be a number, got {str(given).lower()}")


def _explain(error: ValidationError) -> Iterable[str]:
    for mistake in error.errors():
        where = ".".join(str(part) for part in mistake["loc"])
        if mistake["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            *parents, _ = [str(part) for part in mistake["loc"]]
            yield f"unknown key {where!r}{nearest(where, ['.'.join([*parents, known]) for known in _keys_of(parents)])}"
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
    known: Mapping[str, Any] = {name: field.annotation for name, field in Config.model_fields.items()}
    for parent in parents:
        registry = REGISTRIES.get(parent)
        chosen = [known[parent]] if registry is None else [getattr(e, "method", e) for e in registry.values()]
        known = {name: kind for section in chosen for name, kind in _fields_of(section)}
    return list(known)


def _fields_of(section: Any) -> Iterable[tuple[str, Any]]:
    if dataclasses.is_dataclass(section):
        return [(field.name, field.type) for field in dataclasses.fields(section)]
    return [(name, field.annotation) for name, field in section.model_fields.items()]


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
    if training.optimizer.name == "adam" and training.optimizer.momentum != Optimizer.momentum:
        raise ConfigError("training.optimizer.momentum has no meaning for adam: remove it or set optimizer.name=sgd")
    if config.clients.labeled is None and config.clients.label_choice != Clients().label_choice:
        raise ConfigError("clients.label_choice has no meaning without clients.labeled: set both or neither")
    if config.clients.labeled is not None and not config.objective.needs_labels:
        raise ConfigError(
            "clients.labeled has no meaning for an objective without labels, which learns from every sample: remove it or "
            "take objective=supervised"
        )
    _check_method(config)


def _name_of(method: Method) -> str:
    return next(name for name, info in METHODS.items() if info.method is type(method))


def _check_method(config: Config) -> None:
    method: Method = config.method
    name = _name_of(method)
    objective: Objective = config.objective
    innermost = method
    while innermost.inner is not None:
        innermost = innermost.inner
    if objective.belongs_to not in (None, _name_of(innermost)):
        raise ConfigError(
            f"objective={objective.belongs_to} belongs to method={objective.belongs_to} alone, got method={name}: take "
            f"another objective or method={objective.belongs_to}"
        )
    if method.needs_public and config.public is None:
        inner = method.inner
        who = f"{name} over {_name_of(inner)}" if inner is not None and inner.needs_public else name
        raise ConfigError(
            f"{who} works on public data, but this run has none: set public (for example client:0 or stl10:3200)"
        )
    if not method.needs_public and config.public is not None:
        raise ConfigError(f"{name} uses no public data, got public={config.public}: set public=null")
    models = config.clients.models
    mixed = [other for other, info in METHODS.items() if not info.method.averages_weights]
    if models and method.averages_weights and set(models) != {config.model.encoder}:
        raise ConfigError(
            f"{name} averages weights, so all clients need one architecture, got {', '.join(models)}: remove "
            f"clients.models or take a method for mixed models ({', '.join(mixed)})"
        )
    if objective.needs_labels and method.needs_public:
        raise ConfigError(f"{name} compares representations: a supervised objective has none, take objective=simclr")


__all__ = ["Config", "ConfigError", "Engine", "validate"]
