"""Search spaces as a sweep file writes them, read and checked; `tune/sweeps/definition/spaces.py` says what they mean."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rayfed_ssl.errors import ConfigError, nearest
from tune.sweeps.definition.arithmetic import parse
from tune.sweeps.definition.spaces import Choice, Derived, Parameter, Range, Space, Value, Variant, When

_KINDS = ("values", "uniform", "log", "integer", "equals", "variants")


LARGEST = 2**63
"""What whole numbers in tables stay below."""


def read_space(tree: Any) -> Space:
    """Read a space from a sweep file.

    Raises:
        ConfigError: It is not what a space looks like; the message names the parameter.
    """
    if not isinstance(tree, Mapping) or not tree:
        raise ConfigError(f"space maps parameters to what they run over, got {tree!r}")
    parameters: list[Parameter] = []
    for name, entry in tree.items():
        try:
            parameter = _parameter(str(name), entry)
        except ConfigError as error:
            raise ConfigError(f"space, {name}: {error}") from None
        _check_when(parameter, parameters)
        parameters.append(parameter)
    return Space(tuple(parameters))


def _parameter(name: str, entry: Any) -> Parameter:
    if isinstance(entry, list):
        return Choice(name=name, values=_values(entry))
    if not isinstance(entry, Mapping):
        raise ConfigError(f"must be a list of values or one of {', '.join(_KINDS)}, got {entry!r}")
    kinds = [kind for kind in _KINDS if kind in entry and not (kind == "log" and "integer" in entry)]
    if len(kinds) != 1:
        raise ConfigError(f"must have one of {', '.join(_KINDS)}, got {', '.join(map(str, entry)) or 'nothing'}")
    (kind,) = kinds
    allowed = {kind, "when"} | ({"log", "step"} if kind == "integer" else set())
    if kind == "equals":
        allowed.discard("when")
    for key in entry:
        if key not in allowed:
            raise ConfigError(f"{kind} takes no {key!r}{nearest(str(key), allowed)}")
    when = _when(entry.get("when", {}))
    if kind == "values":
        return Choice(name=name, values=_values(entry["values"]), when=when)
    if kind == "variants":
        variants = _variants(entry["variants"])
        return Choice(name=name, values=tuple(variants), variants=variants, when=when)
    if kind == "equals":
        parse(str(entry["equals"]))
        return Derived(name=name, formula=str(entry["equals"]))
    return _range(name, kind, entry, when)


def _values(entry: Any) -> tuple[Value, ...]:
    if not isinstance(entry, list) or not entry:
        raise ConfigError(f"needs at least one value, got {entry!r}")
    for value in entry:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ConfigError(
                f"values are finite numbers, words, lists or mappings, got {value!r}: write it in quotes if it is a word"
            ) from None
    if any(isinstance(value, int) and abs(value) >= LARGEST for value in entry):
        raise ConfigError(f"whole numbers lie below 2**63, got {max(map(str, entry), key=len)}")
    plain = [value if isinstance(value, str | int | float) else json.dumps(value, sort_keys=True) for value in entry]
    if len(set(plain)) < len(plain):
        raise ConfigError(f"each value counts once, and 1, 1.0 and true are equal, got {', '.join(map(str, entry))}")
    return tuple(entry)


def _variants(entry: Any) -> dict[str, Variant]:
    if not isinstance(entry, Mapping) or not entry:
        raise ConfigError(f"variants maps names to {{recipe, set}}, got {entry!r}")
    found = {}
    for name, own in entry.items():
        if not isinstance(name, str):
            raise ConfigError(
                f"variants have words as names, got {name!r}: write it in quotes (YAML reads on, off as true, false)"
            )
        own = own or {}
        if (
            not isinstance(own, Mapping)
            or set(own) - {"recipe", "set"}
            or not isinstance(own.get("set") or {}, Mapping)
        ):
            raise ConfigError(f"variant {name} takes recipe and set, got {own!r}")
        if not isinstance(own.get("recipe"), str | None):
            raise ConfigError(f"variant {name}: recipe is a name or a file, got {own['recipe']!r}")
        found[name] = Variant(own.get("recipe"), dict(own.get("set") or {}))
    return found


def _range(name: str, kind: str, entry: Mapping[str, Any], when: When) -> Range:
    ends = entry[kind]
    numbers = isinstance(ends, list) and len(ends) == 2 and all(_is_number(end) for end in ends)
    if not numbers or ends[0] >= ends[1]:
        raise ConfigError(
            f"{kind} takes [low, high], two numbers below 2**63 of which the first is smaller, got {ends!r}"
        )
    low, high = ends
    log = kind == "log" or bool(entry.get("log", False))
    if log and low <= 0:
        raise ConfigError(f"orders of magnitude have no zero: {kind} must begin above it, got {low}")
    if kind != "integer":
        return Range(name=name, low=float(low), high=float(high), log=log, when=when)
    step = entry.get("step", 1)
    if not all(isinstance(number, int) for number in (low, high, step)) or step < 1:
        raise ConfigError(f"integer takes whole numbers and a step of at least 1, got {ends!r}, step {step!r}")
    if step > high - low:
        raise ConfigError(f"a step fits between both ends, got {ends!r}, step {step}")
    if log and step != 1:
        raise ConfigError("integer takes log or step, got both")
    return Range(name=name, low=low, high=high, log=log, integer=True, step=step, when=when)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < LARGEST
    )


def _when(entry: Any) -> When:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"when maps other parameters to values, got {entry!r}")
    return {str(key): tuple(value) if isinstance(value, list) else (value,) for key, value in entry.items()}


def _check_when(parameter: Parameter, before: Sequence[Parameter]) -> None:
    known = {one.name: one for one in before}
    for other, values in parameter.when.items():
        if other not in known:
            raise ConfigError(
                f"space, {parameter.name}: when names {other!r}, which is no parameter before it{nearest(other, known)}"
            )
        earlier = known[other]
        if isinstance(earlier, Derived) or (isinstance(earlier, Range) and not earlier.integer):
            why = (
                f"follows from others ({earlier.formula})" if isinstance(earlier, Derived) else "runs over all numbers"
            )
            raise ConfigError(
                f"space, {parameter.name}: when names {other!r}, which {why}: name a list of values instead"
            )
        if isinstance(earlier, Choice):
            for value in values:
                earlier.check(value)
