"""Keys that choose a class or function by name and hold its fields: {name: fedprox, mu: 0.1}.

A class validates its own fields; a function's parameters become a section. Those of outside this package join when they
are named.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationInfo, create_model
from pydantic_core import CoreSchema, core_schema

from rayfed_ssl.adversaries import ADVERSARIES
from rayfed_ssl.adversaries.adversary import Adversary
from rayfed_ssl.aggregation.robust import RULES
from rayfed_ssl.aggregation.robust.rule import Rule
from rayfed_ssl.clock.devices import DEVICES, Devices
from rayfed_ssl.clock.policies import POLICIES, Policy
from rayfed_ssl.config.recipes import suggestion
from rayfed_ssl.config.strict import StrictModel, fields, parse
from rayfed_ssl.data.partitions import GIVEN, PARTITIONS, check_partition
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.evaluation.registry import PROTOCOLS, Protocol
from rayfed_ssl.foreign import plugins
from rayfed_ssl.method import Method
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models.adapters import ADAPTERS, Adapters
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
        optional: Whether nothing may be chosen, None.
    """

    kind: str
    built_in: Callable[[], Mapping[str, Any]]
    parent: type | None = None
    default: str | None = None
    optional: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Validate by `build` and serialize by `dump`."""
        return core_schema.with_info_plain_validator_function(
            self.build, serialization=core_schema.plain_serializer_function_ser_schema(self.dump)
        )

    def build(self, value: Any, info: ValidationInfo) -> Any:
        """Make the chosen one from its name and fields; pydantic adds the key to the messages.

        With {"foreign": True} as context it is `Foreign` where it is not imported or not known.
        """
        if value is None and self.optional:
            return None
        if self.parent is not None and isinstance(value, self.parent):
            value = self.dump(value)
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise ValueError(f"name one of {', '.join(self.names())}, got {value!r}")
        name = value.get("name", self.default)
        if name is None and value:
            raise ValueError("needs a name beside its fields")
        if not isinstance(name, str):
            raise ValueError(f"unknown {self.kind} {name!r}{nearest(str(name), self.names())}")
        settings = {key: field for key, field in value.items() if key != "name"}
        try:
            model = self.model(name)
        except ConfigError:
            if info.context and info.context["foreign"]:
                return Foreign(name, settings)
            raise
        for key in settings:
            if key not in fields(model):
                raise ValueError(f"{name} has no field {key!r}{self._hint(str(key), model)}")
        held = {key: settings[key] for key, hint in get_type_hints(model).items() if hint is Method and key in settings}
        inner = _INNER_METHODS.validate_python(held, context=info.context)
        if any(isinstance(method, Foreign) for method in inner.values()):
            return Foreign(name, settings)
        return _adapter(model).validate_python(settings | inner)

    def dump(self, value: Any) -> dict[str, Any]:
        """Give back the name and all fields as plain data."""
        if isinstance(value, Foreign):
            return {"name": value.name, **value.fields}
        plain_fields: dict[str, Any] = _adapter(value.__class__).dump_python(value, mode="json")
        if self.parent is None:
            return plain_fields
        held = {key: field for key, field in vars(value).items() if isinstance(field, Method)}
        return {"name": self.name_of(value)} | plain_fields | {key: METHOD.dump(method) for key, method in held.items()}

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

    def model(self, name: str) -> type:
        """Give what holds the fields behind a name: the class itself, or a section made of a function's parameters."""
        target = self.target(name)
        return target if self.parent is not None else _section(name, target)

    def models(self) -> list[type]:
        """Give what holds the fields of all built-in ones."""
        return [self.model(name) for name in self.built_in()]

    def _hint(self, key: str, model: type) -> str:
        owners = [name for name in self.built_in() if key in fields(self.model(name))]
        return f"; it belongs to {', '.join(owners)}" if owners else nearest(key, set(fields(model)) - {"name"})


@cache
def _adapter(model: type) -> TypeAdapter[Any]:
    return TypeAdapter(model)


@cache
def _section(name: str, function: Callable[..., Any]) -> type[Section]:
    hints = get_type_hints(function, include_extras=True)
    parameters = {
        key: (hints.get(key, Any), ... if parameter.default is parameter.empty else parameter.default)
        for key, parameter in inspect.signature(function).parameters.items()
        if key not in GIVEN and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    section: type[Section] = create_model(
        plugins.short(name), __base__=Section, __doc__=function.__doc__, name=(Literal[name], name), **parameters
    )  # type: ignore[call-overload]
    return section


def plain(value: Any) -> Any:
    """Turn what the Python API takes beside plain data into it: methods, objectives, sections, paths."""
    for choice in (METHOD, OBJECTIVE, OPTIMIZER, CLOCK_DEVICES, CLOCK_POLICY, ROBUST, ADVERSARY, MODEL_ADAPTERS):
        if choice.parent is not None and isinstance(value, choice.parent):
            return choice.dump(value)
    return value.model_dump(mode="json") if isinstance(value, Section) else str(value)


def configured(name: str, changes: Mapping[str, Any]) -> Protocol:
    """Take a protocol by name and change its settings."""
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}{nearest(name, PROTOCOLS)}")
    protocol = PROTOCOLS[name]
    return parse(type(protocol), {**vars(protocol), **changes}, f"protocol {name}")


METHOD = Choice("method", lambda: {name: info.method for name, info in METHODS.items()}, Method)
INNER_METHOD = Choice(
    "method", lambda: {name: info.method for name, info in METHODS.items() if info.rounds is None}, Method
)
OBJECTIVE = Choice("objective", lambda: OBJECTIVES, Objective)
OPTIMIZER = Choice("optimizer", lambda: OPTIMIZERS, Optimizer, default="adam")
PARTITION = Choice("partition", lambda: PARTITIONS, default="dirichlet")
CLOCK_DEVICES = Choice("clock.devices", lambda: DEVICES, Devices, default="even")
CLOCK_POLICY = Choice("clock.policy", lambda: POLICIES, Policy, default="synchronous")
MODEL_ADAPTERS = Choice("model.adapters", lambda: ADAPTERS, Adapters, optional=True)
ROBUST = Choice("robust", lambda: RULES, Rule, optional=True)
ADVERSARY = Choice("adversary", lambda: ADVERSARIES, Adversary, optional=True)

_INNER_METHODS = TypeAdapter(dict[str, Annotated[Any, INNER_METHOD]])
"""Methods that a method holds, by its field."""

MethodField = Annotated[Method, METHOD]
ObjectiveField = Annotated[Objective, OBJECTIVE]
OptimizerField = Annotated[Optimizer, OPTIMIZER]
PartitionField = Annotated[Any, PARTITION]
DevicesField = Annotated[Devices, CLOCK_DEVICES]
PolicyField = Annotated[Policy, CLOCK_POLICY]
AdaptersField = Annotated[Adapters | None, MODEL_ADAPTERS]
RuleField = Annotated[Rule | None, ROBUST]
AdversaryField = Annotated[Adversary | None, ADVERSARY]
