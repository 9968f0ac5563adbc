"""Keys that choose a class or function by name and hold its fields: {name: fedprox, mu: 0.1}.

Each class or function becomes a model as strict as the sections, with its `name` as the tag: a discriminated union that
classes from outside this package join when they are named.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Field, ValidationInfo, create_model
from pydantic_core import CoreSchema, core_schema

from rayfed_ssl import plugins
from rayfed_ssl.config.recipes import suggestion
from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.data.partitions import GIVEN, PARTITIONS, check_partition
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.method import Method
from rayfed_ssl.methods import METHODS
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.training.objective import Objective
from rayfed_ssl.training.optimizers import OPTIMIZERS, Optimizer


class Section(StrictModel):
    """Part of the configuration."""

    model_config = ConfigDict(allow_inf_nan=False)


@dataclasses.dataclass(frozen=True)
class Foreign:
    """What a record names and this process does not import or know, with its fields: it is described and never run."""

    name: str
    fields: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a key chooses from; as an annotation it validates and dumps the chosen one.

    Attributes:
        kind: "method", "objective" and so on, as in `plugins.find`.
        built_in: Classes or functions by name; called, as registries may grow.
        parent: What a chosen class must inherit from; None where functions are chosen, which stay settings.
        default: The name that an omitted one means.
    """

    kind: str
    built_in: Callable[[], Mapping[str, Any]]
    parent: type | None = None
    default: str | None = None

    def __hash__(self) -> int:
        return hash(self.kind)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Validate by `build` and serialize by `dump`."""
        return core_schema.with_info_plain_validator_function(
            self.build, serialization=core_schema.plain_serializer_function_ser_schema(self.dump)
        )

    def build(self, value: Any, info: ValidationInfo) -> Any:
        """Make the chosen one from its name and fields; pydantic adds the key to the messages.

        With {"foreign": True} as context it is `Foreign` where it is not imported or not known.
        """
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise ValueError(f"name one of {', '.join(self.names())}, got {value!r}")
        name = value.get("name", self.default)
        if name is None and value:
            raise ValueError("needs a name beside its fields")
        if not isinstance(name, str):
            raise ValueError(f"unknown {self.kind} {name!r}{nearest(str(name), self.names())}")
        try:
            model = self.model(name)
        except ConfigError:
            if info.context and info.context["foreign"]:
                return Foreign(name, {key: field for key, field in value.items() if key != "name"})
            raise
        for key in value:
            if key not in model.model_fields:
                raise ValueError(f"{name} has no field {key!r}{self._hint(key, model)}")
        text = json.dumps({**value, "name": name}, default=plain)
        settings = model.model_validate_json(text, context=info.context)
        if any(isinstance(field, Foreign) for _, field in settings):
            return Foreign(name, {key: field for key, field in value.items() if key != "name"})
        if self.parent is None:
            return settings
        return self.target(name)(**{key: getattr(settings, key) for key in model.model_fields if key != "name"})

    def dump(self, value: Any) -> dict[str, Any]:
        """Give back the name and all fields as plain data."""
        if isinstance(value, Foreign):
            return {"name": value.name, **value.fields}
        if self.parent is None:
            return dict(value.model_dump(mode="json"))
        name = self.name_of(value)
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dict(self.model(name).model_construct(**{"name": name, **fields}).model_dump(mode="json"))

    def names(self) -> list[str]:
        """List all names."""
        return plugins.names(self.kind, self.built_in())

    def name_of(self, value: Any) -> str:
        """Name the class of an instance."""
        return plugins.name_of(self.kind, type(value), self.built_in())

    def target(self, name: str) -> Any:
        """Find the class or function behind a name, and refuse one of another kind."""
        target = plugins.find(self.kind, name, self.built_in(), partial(suggestion, kind=self.kind))
        if self.parent is None:
            check_partition(name, target)
        else:
            if not (inspect.isclass(target) and issubclass(target, self.parent)):
                raise ConfigError(f"{self.kind}={name} must be a subclass of {self.parent.__name__}")
            if not dataclasses.is_dataclass(target):
                raise ConfigError(f"{self.kind}={name} must be decorated with @dataclass(frozen=True, kw_only=True)")
            if missing := sorted(getattr(target, "__abstractmethods__", ())):
                raise ConfigError(f"{self.kind}={name} must define {', '.join(missing)}")
        return target

    def model(self, name: str) -> type[Section]:
        """Describe the fields of the class or function behind a name."""
        return _model(self, name, self.target(name))

    def models(self) -> list[type[Section]]:
        """Describe the fields of all built-in ones."""
        return [self.model(name) for name in self.built_in()]

    def _hint(self, key: Any, model: type[Section]) -> str:
        owners = [name for name in self.built_in() if key in self.model(name).model_fields]
        if owners:
            return f"; it belongs to {', '.join(owners)}"
        return nearest(str(key), set(model.model_fields) - {"name"})


@cache
def _model(choice: Choice, name: str, target: Any) -> type[Section]:
    hints = get_type_hints(target, include_extras=True)
    fields = dict(_dataclass_fields(target) if choice.parent is not None else _parameters(target))
    annotations = {key: (_nested(hints.get(key, Any)), default) for key, default in fields.items()}
    tag = (Literal[name], name)
    model: type[Section] = create_model(
        plugins.short(name), __base__=Section, __doc__=target.__doc__, **{"name": tag, **annotations}
    )  # type: ignore[call-overload]
    return model


def _nested(annotation: Any) -> Any:
    """Let a field that holds a method be chosen like the method itself."""
    return Annotated[Any, INNER_METHOD] if annotation is Method else annotation


def _dataclass_fields(target: Any) -> Any:
    for field in dataclasses.fields(target):
        if field.default_factory is not dataclasses.MISSING:
            yield field.name, Field(default_factory=field.default_factory)
        else:
            yield field.name, ... if field.default is dataclasses.MISSING else field.default


def _parameters(function: Any) -> Any:
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in GIVEN:
            yield name, ... if parameter.default is parameter.empty else parameter.default


def plain(value: Any) -> Any:
    """Turn what the Python API takes beside plain data into it: methods, objectives, sections, paths."""
    for choice in (METHOD, OBJECTIVE, OPTIMIZER):
        if choice.parent is not None and isinstance(value, choice.parent):
            return choice.dump(value)
    return value.model_dump(mode="json") if isinstance(value, Section) else str(value)


METHOD = Choice("method", lambda: {name: info.method for name, info in METHODS.items()}, Method)
INNER_METHOD = Choice(
    "method", lambda: {name: info.method for name, info in METHODS.items() if info.rounds is None}, Method
)
OBJECTIVE = Choice("objective", lambda: OBJECTIVES, Objective)
OPTIMIZER = Choice("optimizer", lambda: OPTIMIZERS, Optimizer, default="adam")
PARTITION = Choice("partition", lambda: PARTITIONS, default="dirichlet")

MethodField = Annotated[Method, METHOD]
ObjectiveField = Annotated[Objective, OBJECTIVE]
OptimizerField = Annotated[Optimizer, OPTIMIZER]
PartitionField = Annotated[Any, PARTITION]
