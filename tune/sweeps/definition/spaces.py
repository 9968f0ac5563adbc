"""Search spaces: which settings a sweep varies, over what, and when; the points of a grid, and what a sampler asks for.

A parameter is written as

    key: [1, 2, 4]                            these values, or {values: [1, 2, 4]}
    key: {uniform: [0, 1]}                    a number between two others
    key: {log: [0.01, 1]}                     the same, evenly over the orders of magnitude
    key: {integer: [64, 1024], log: true}     a whole number; `step: 64` in place of `log`
    key: {equals: 40 // rounds}               follows from other parameters by arithmetic
    name: {variants: {A: {recipe: flesd}, B: {recipe: fedavg, set: {method.parts: encoder}}}}

`key` is a key of the configuration, such as method.mu. All but `equals` take `when: {other: value or list}`: the
parameter is there only where an earlier one has such a value.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from rayfed_ssl.errors import ConfigError
from tune.sweeps.definition.arithmetic import calculate

if TYPE_CHECKING:
    from optuna import Trial

Value = Any
"""A setting's value as YAML reads it."""

Point = Mapping[str, Value]
"""Values of the parameters that are there, by name; of variants the name of one."""

When = Mapping[str, tuple[Value, ...]]


@dataclass(frozen=True)
class Variant:
    """Several settings that go together under one name.

    Attributes:
        recipe: What they change; None is the sweep's.
        settings: Values by key of the configuration.
    """

    recipe: str | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One dimension of a space.

    Attributes:
        name: A key of the configuration, or of variants any word.
        when: The parameter is there only where others have one of these values.
    """

    name: str
    when: When = field(default_factory=dict)

    def is_there(self, point: Point) -> bool:
        """Whether the values chosen so far let it be."""
        return all(point.get(other, _ABSENT) in values for other, values in self.when.items())


_ABSENT = object()

MOST = 10_000
"""Points that a grid may have."""


@dataclass(frozen=True, kw_only=True)
class Choice(Parameter):
    """One of several values, or of several variants by name."""

    values: tuple[Value, ...]
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def suggest(self, trial: "Trial") -> Value:
        """Ask a sampler."""
        return _plain(trial.suggest_categorical(self.name, [_hashable(value) for value in self.values]))

    def check(self, value: Value) -> None:
        """Refuse a value from elsewhere.

        Raises:
            ConfigError: It is none of these.
        """
        if value not in self.values:
            raise ConfigError(f"{self.name} has the values {', '.join(map(str, self.values))}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Range(Parameter):
    """A number between two others, both of which it may be."""

    low: float
    high: float
    log: bool = False
    integer: bool = False
    step: int = 1

    def suggest(self, trial: "Trial") -> Value:
        """Ask a sampler."""
        if self.integer:
            return trial.suggest_int(self.name, int(self.low), int(self.high), step=self.step, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)


@dataclass(frozen=True, kw_only=True)
class Derived(Parameter):
    """What follows from others, such as 40 // rounds."""

    formula: str

    def value(self, point: Point) -> Value:
        """Compute it.

        Raises:
            ConfigError: What it follows from is not there, or the arithmetic is impossible.
        """
        return calculate(self.formula, point)


@dataclass(frozen=True)
class Space:
    """The parameters of a sweep, in the order of the file."""

    parameters: tuple[Parameter, ...]

    @property
    def free(self) -> tuple[Choice | Range, ...]:
        """Those that are chosen and not computed."""
        return tuple(one for one in self.parameters if isinstance(one, Choice | Range))

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(one.name for one in self.parameters)

    def suggest(self, trial: "Trial") -> dict[str, Value]:
        """Ask a sampler for a point."""
        point: dict[str, Value] = {}
        for one in self.free:
            if one.is_there(point):
                point[one.name] = one.suggest(trial)
        return point

    def grid(self) -> list[dict[str, Value]]:
        """List all points, the last parameter running fastest.

        Raises:
            ConfigError: A parameter is a range, or there are too many points.
        """
        for one in self.free:
            if isinstance(one, Range):
                raise ConfigError(f"a grid needs values of {one.name}, got a range: list them, or set search: random")
        points = list(islice(_products(self.free, {}), MOST + 1))
        if len(points) > MOST:
            raise ConfigError(
                f"a grid of more than {MOST:,} points would take for ever: narrow it, or set search: random"
            )
        return points

    def derived(self, point: Point) -> dict[str, Value]:
        """Compute what follows from a point."""
        found: dict[str, Value] = {}
        for one in self.parameters:
            if isinstance(one, Derived):
                found[one.name] = one.value({**point, **found})
        return found

    def variant(self, point: Point) -> Iterator[Variant]:
        """Give the variants of a point, in order."""
        for one in self.free:
            if isinstance(one, Choice) and one.variants and one.name in point:
                yield one.variants[point[one.name]]

    def settings(self, point: Point) -> dict[str, Value]:
        """Give a point's values by key of the configuration, without its variants."""
        named = {one.name for one in self.free if isinstance(one, Choice) and one.variants}
        return {key: value for key, value in {**point, **self.derived(point)}.items() if key not in named}


def _products(parameters: Sequence[Choice | Range], point: dict[str, Value]) -> Iterator[dict[str, Value]]:
    if not parameters:
        yield point
        return
    first, *others = parameters
    if not first.is_there(point):
        yield from _products(others, point)
        return
    assert isinstance(first, Choice), "a grid has no ranges"
    for value in first.values:
        yield from _products(others, {**point, first.name: value})


def _hashable(value: Value) -> bool | int | float | str | None:
    """Write lists and mappings as JSON: Optuna chooses among plain values."""
    return value if value is None or isinstance(value, bool | int | float | str) else "json:" + json.dumps(value)


def _plain(value: Value) -> Value:
    return json.loads(value[5:]) if isinstance(value, str) and value.startswith("json:") else value


def stored(point: Point) -> dict[str, Value]:
    """Write a point as Optuna keeps it."""
    return {key: _hashable(value) for key, value in point.items()}
