"""Search spaces: which settings a study varies and over what, the points of a grid, and what a sampler is asked for.

A parameter is written as

    key: [1, 2, 4]                            these values
    key: {uniform: [0, 1]}                    a number between two others
    key: {log: [0.01, 1]}                     the same, evenly over the orders of magnitude
    key: {integer: [64, 1024], log: true}     a whole number

`key` is a key of the configuration, such as method.mu.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.formats import value_text

if TYPE_CHECKING:
    from optuna import Trial

MAX_GRID_POINTS = 10_000

Value = Any
"""A setting's value as YAML reads it."""

Point = Mapping[str, Value]
"""Values of the parameters by name; of rows and columns the name of one."""


class Choice(StrictModel):
    """One of several values."""

    values: Annotated[tuple[Value, ...], Field(strict=False, min_length=1, max_length=MAX_GRID_POINTS)]

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, entry: Any) -> Any:
        return {"values": entry} if isinstance(entry, list) else entry

    @model_validator(mode="after")
    def _check(self) -> "Choice":
        if again := [value for index, value in enumerate(self.values) if value in self.values[:index]]:
            raise ValueError(f"each value counts once (1, 1.0 and true are equal), got {again[0]!r} again")
        return self

    def suggest(self, name: str, trial: "Trial") -> Value:
        """Ask a sampler."""
        value = trial.suggest_categorical(name, [_encoded(value) for value in self.values])
        return json.loads(value[5:]) if isinstance(value, str) and value.startswith("json:") else value


End = Annotated[int | float, Field(gt=-(2.0**63), lt=2.0**63)]


class Range(StrictModel):
    """A number between two others, both included: evenly, or evenly over orders of magnitude (`log`)."""

    ends: Annotated[tuple[End, End], Field(strict=False)]
    log: bool = False
    integer: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_kind(cls, entry: Any) -> Any:
        kind = next((kind for kind in ("uniform", "integer", "log") if isinstance(entry.get(kind), list)), None)
        rest = {key: value for key, value in entry.items() if key != kind}
        return (
            rest if kind is None else {"ends": entry[kind], "log": kind == "log", "integer": kind == "integer"} | rest
        )

    @model_validator(mode="after")
    def _check_ends(self) -> "Range":
        low, high = self.ends
        if low >= high:
            raise ValueError(f"a range is [low, high] of which the first is smaller, got {[low, high]}")
        if self.log and low <= 0:
            raise ValueError(f"a logarithmic range starts above 0, got {low:g}")
        if self.integer and not (isinstance(low, int) and isinstance(high, int)):
            raise ValueError(f"a range of whole numbers has whole ends, got {[low, high]}")
        return self

    def suggest(self, name: str, trial: "Trial") -> Value:
        """Ask a sampler."""
        low, high = self.ends
        if self.integer:
            return trial.suggest_int(name, int(low), int(high), log=self.log)
        return trial.suggest_float(name, low, high, log=self.log)


KINDS = {"values": "values", "uniform": "range", "integer": "range", "log": "range"}
"""What a parameter may be written as, and which model that is."""


def _kind(entry: Any) -> str | None:
    if isinstance(entry, list):
        return "values"
    return next((KINDS[key] for key in KINDS if key in entry), None) if isinstance(entry, Mapping) else None


Parameter = Annotated[
    Annotated[Choice, Tag("values")] | Annotated[Range, Tag("range")],
    Discriminator(
        _kind,
        custom_error_type="parameter",
        custom_error_message=f"must be a list of values or one of {', '.join(KINDS)}; variants are rows",
    ),
]


@dataclass(frozen=True)
class Space:
    """The parameters of a study by name, in the order of the file."""

    parameters: Mapping[str, Choice | Range]

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


def _encoded(value: Value) -> bool | int | float | str | None:
    """Write lists and mappings as JSON: Optuna chooses among plain values."""
    return value if value is None or isinstance(value, bool | int | float | str) else "json:" + json.dumps(value)


def point_text(point: Point) -> str:
    """Write a point for people: "rounds=4, system=FLESD"."""
    return ", ".join(f"{name}={value_text(value, short=True)}" for name, value in point.items())
