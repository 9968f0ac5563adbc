"""Search spaces: which settings a sweep varies and over what, the points of a grid, and what a sampler is asked for.

A parameter is written as

    key: [1, 2, 4]                            these values, or {values: [1, 2, 4]}
    key: {uniform: [0, 1]}                    a number between two others
    key: {log: [0.01, 1]}                     the same, evenly over the orders of magnitude
    key: {integer: [64, 1024], log: true}     a whole number; `step: 64` in place of `log`
    name: {variants: {A: {recipe: flesd}, B: {recipe: fedavg, set: {method.parts: encoder}}}}

`key` is a key of the configuration, such as method.mu.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from rayfed_ssl.config.strict import EMPTY_IF_NULL, StrictModel
from rayfed_ssl.errors import ConfigError
from tune.studies.definition.layers import Variant

if TYPE_CHECKING:
    from optuna import Trial

Value = Any
"""A setting's value as YAML reads it."""

Point = Mapping[str, Value]
"""Values of the parameters by name; of variants the name of one."""

MAX_GRID_POINTS = 10_000


class Choice(StrictModel):
    """One of several values."""

    values: Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, entry: Any) -> Any:
        return {"values": entry} if isinstance(entry, list) else entry

    @model_validator(mode="after")
    def _check(self) -> "Choice":
        for value in self.values:
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                raise ValueError(f"values are finite numbers, texts, lists and mappings, got {value!r}") from None
        if any(value in self.values[:index] for index, value in enumerate(self.values)):
            raise ValueError("each value counts once, and 1, 1.0 and true are equal")
        return self

    def suggest(self, name: str, trial: "Trial") -> Value:
        """Ask a sampler."""
        return _decoded(trial.suggest_categorical(name, [_encoded(value) for value in self.values]))


class Variants(StrictModel):
    """One of several variants by name."""

    variants: Annotated[dict[str, Annotated[Variant, EMPTY_IF_NULL]], Field(min_length=1)]

    @property
    def values(self) -> tuple[str, ...]:
        """The names."""
        return tuple(self.variants)

    def suggest(self, name: str, trial: "Trial") -> Value:
        """Ask a sampler."""
        return trial.suggest_categorical(name, self.values)


Finite = Annotated[float, Field(allow_inf_nan=False, gt=-(2.0**63), lt=2.0**63)]


Ends = Annotated[tuple[Finite, Finite], Field(strict=False)]


class Range(StrictModel):
    """A number between two others, both included."""

    ends: Ends

    @property
    def is_log(self) -> bool:
        """Whether it is even over orders of magnitude."""
        return False

    @model_validator(mode="after")
    def _check_ends(self) -> "Range":
        low, high = self.ends
        if low >= high:
            raise ValueError(f"a range is [low, high] of which the first is smaller, got {[low, high]}")
        if self.is_log and low <= 0:
            raise ValueError(f"a logarithmic range starts above 0, got {low:g}")
        return self

    def suggest(self, name: str, trial: "Trial") -> Value:
        """Ask a sampler."""
        return trial.suggest_float(name, *self.ends, log=self.is_log)


class Uniform(Range):
    """A number, evenly."""

    ends: Ends = Field(alias="uniform")


class Log(Range):
    """A number, evenly over orders of magnitude."""

    ends: Ends = Field(alias="log")

    @property
    def is_log(self) -> bool:
        """Whether it is even over orders of magnitude."""
        return True


class Integer(Range):
    """A whole number, in steps or evenly over orders of magnitude."""

    ends: Annotated[tuple[int, int], Field(strict=False, alias="integer")]
    log: bool = False
    step: int = Field(1, ge=1)

    @property
    def is_log(self) -> bool:
        """Whether it is even over orders of magnitude."""
        return self.log

    @model_validator(mode="after")
    def _check_step(self) -> "Integer":
        if self.log and self.step != 1:
            raise ValueError("integer takes log or step, got both")
        if self.step > self.ends[1] - self.ends[0]:
            raise ValueError(f"a step is at most the distance of both ends, got {self.step}")
        return self

    def suggest(self, name: str, trial: "Trial") -> Value:
        """Ask a sampler."""
        return trial.suggest_int(name, *self.ends, step=self.step, log=self.log)


KINDS = {"values": Choice, "variants": Variants, "uniform": Uniform, "integer": Integer, "log": Log}


def _kind(entry: Any) -> str | None:
    if isinstance(entry, list):
        return "values"
    if isinstance(entry, Mapping):
        return next((kind for kind in KINDS if kind in entry), None)
    return next((kind for kind, model in KINDS.items() if type(entry) is model), None)


Parameter = Annotated[
    Annotated[Choice, Tag("values")]
    | Annotated[Variants, Tag("variants")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[Integer, Tag("integer")]
    | Annotated[Log, Tag("log")],
    Discriminator(
        _kind,
        custom_error_type="parameter",
        custom_error_message=f"must be a list of values or one of {', '.join(KINDS)}",
    ),
]


@dataclass(frozen=True)
class Space:
    """The parameters of a sweep by name, in the order of the file."""

    parameters: Mapping[str, Choice | Variants | Range]

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self.parameters)

    def suggest(self, trial: "Trial") -> dict[str, Value]:
        """Ask a sampler for a point."""
        return {name: parameter.suggest(name, trial) for name, parameter in self.parameters.items()}

    def grid(self) -> list[dict[str, Value]]:
        """List all points, the last parameter running fastest."""
        axes = []
        for name, parameter in self.parameters.items():
            if isinstance(parameter, Range):
                raise ConfigError(f"a grid needs values of {name}, got a range: list them, or set search: random")
            axes.append(parameter.values)
        points = [dict(zip(self.names, values, strict=True)) for values in islice(product(*axes), MAX_GRID_POINTS + 1)]
        if len(points) > MAX_GRID_POINTS:
            raise ConfigError(f"a grid has at most {MAX_GRID_POINTS:,} points: narrow it, or set search: random")
        return points

    def variants(self, point: Point) -> Iterator[Variant]:
        """Give the variants of a point, in order."""
        for name, parameter in self.parameters.items():
            if isinstance(parameter, Variants):
                yield parameter.variants[point[name]]

    def settings(self, point: Point) -> dict[str, Value]:
        """Give a point's values by key of the configuration, without its variants."""
        return {key: value for key, value in point.items() if not isinstance(self.parameters[key], Variants)}


def encoded(point: Point) -> dict[str, Value]:
    """Write a point as Optuna stores it."""
    return {key: _encoded(value) for key, value in point.items()}


def _encoded(value: Value) -> bool | int | float | str | None:
    """Write lists and mappings as JSON: Optuna chooses among plain values."""
    return value if value is None or isinstance(value, bool | int | float | str) else "json:" + json.dumps(value)


def _decoded(value: Value) -> Value:
    return json.loads(value[5:]) if isinstance(value, str) and value.startswith("json:") else value


def value_text(value: Value) -> str:
    """Write a parameter's value for people."""
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def point_text(point: Point) -> str:
    """Write a point for people: "rounds=4, system=FLESD"."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in point.items())
