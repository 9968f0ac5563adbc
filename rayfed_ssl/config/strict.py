"""Files and records as strict pydantic models; a mistake in one is a line that names the key."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.validation import STRICT, Validated


class StrictModel(Validated, BaseModel):
    """Part of a file: frozen, no type is converted, and every unknown key is an error."""

    model_config = STRICT | ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=True)


Model = TypeVar("Model", bound=BaseModel)
Parsed = TypeVar("Parsed")

MAX_MISTAKES = 50
"""How many mistakes of one file are listed."""

EMPTY_IF_NULL = BeforeValidator(lambda value: {} if value is None else value)
"""Takes `key:` without a value for an empty mapping."""

Settings = Annotated[dict[str, Any], EMPTY_IF_NULL]
"""Values by dotted key of the configuration."""


def parse(model: type[Parsed], tree: Any, name: str) -> Parsed:
    """Validate plain data; a ConfigError has one line per mistake, each after the name."""
    try:
        return TypeAdapter(model).validate_python(tree)
    except ValidationError as error:
        raise ConfigError(*(f"{name}: {line}" for line in explain(error, model))) from None


def explain(error: ValidationError, model: type, *, dotted: bool = False) -> Iterator[str]:
    """Write each of the first mistakes as a line, with the nearest key in place of an unknown one.

    `dotted` suggests keys as overrides have them: training.epochs.
    """
    lines = _lines(_joined(error.errors(include_url=False)[:MAX_MISTAKES]), model, dotted)
    return (line if line.isprintable() else repr(line)[1:-1] for line in lines)


def _joined(mistakes: Sequence[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Join what the types of a union say of the same value, each at a place that is named after the type.

    Where one of them says what is wrong further inside, one level down, as it is of the value's kind, it alone is heard
    beside numbers with bounds, which pydantic names "constrained-", as no key is named.
    """
    inside = {mistake["loc"][:-1] for mistake in mistakes}  # where an item is wrong, a list is called too short as well
    mistakes = [each for each in mistakes if each["type"] != "too_short" or each["loc"] not in inside]
    for outer in [each for each in mistakes if "".join(map(str, each["loc"][-1:])).startswith("constrained-")]:
        base = outer["loc"][:-1]
        inner = {id(each) for each in mistakes if each["loc"][: len(base)] == base and _lies_in(each, outer)}
        mistakes = [
            {**each, "loc": base + each["loc"][len(base) + 1 :]} if id(each) in inner else each
            for each in mistakes
            if not (inner and each is outer)
        ]
    for (place, _), together in groupby(mistakes, lambda mistake: (mistake["loc"][:-1], id(mistake["input"]))):
        first, *others = together
        if not others or any(str(each["loc"][-1]).isidentifier() for each in (first, *others)):
            yield from (first, *others)
            continue
        wanted = [each["msg"].removeprefix("Input should be ") for each in others]
        message = " or ".join([first["msg"], *wanted]).replace("a valid tuple", "a list such as [a, b]")
        yield {**first, "loc": place, "msg": message, "type": "union"}


def _lies_in(mistake: ErrorDetails, outer: ErrorDetails) -> bool:
    """Whether a mistake is about a part of the value that an outer mistake is about, one type of a union further in."""
    value = outer["input"]
    for part in (path := mistake["loc"][len(outer["loc"]) :]):
        try:
            value = value[part]
        except (LookupError, TypeError):
            return False
    return bool(path) and value is mistake["input"]


def _lines(mistakes: Iterable[ErrorDetails], model: type, dotted: bool) -> Iterator[str]:
    for mistake in mistakes:
        where = ".".join(str(part) for part in mistake["loc"])
        prefix = f"{where}: " if where else ""
        if mistake["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            *parents, key = mistake["loc"]
            path = "".join(f"{parent}." for parent in parents) if dotted else ""
            named = keys_named(model, str(key)) if dotted and isinstance(key, str) else []
            if meant := [name for name in named if name.startswith(path)]:
                yield f"unknown key {where!r}: did you mean {' or '.join(map(repr, meant))}?"
                continue
            yield f"unknown key {where!r}{nearest(f'{path}{key}', [path + name for name in _keys_at(model, parents)])}"
        elif mistake["type"] == "missing":
            yield f"{where} is missing: set {where}=..." if dotted else f"{where} is missing"
        elif mistake["type"] in ("model_type", "dataclass_type") and where:
            keys = ", ".join(f"{where}.{key}" for key in dict.fromkeys(_keys_at(model, mistake["loc"])))
            yield f"{where} is a section of keys, got {mistake['input']!r:.200}: set one of {keys}"
        elif mistake["type"] in ("list_type", "tuple_type"):
            yield f"{prefix}input should be a list such as [a, b], got {mistake['input']!r:.200}"
        elif mistake["type"] == "value_error":
            yield f"{prefix}{mistake['ctx']['error']}"
        else:
            yield f"{prefix}{mistake['msg'][0].lower()}{mistake['msg'][1:]}, got {mistake['input']!r:.200}"


def keys_named(model: type, name: str) -> list[str]:
    """Find the key of a name, or else up to three that end in it, the shortest first: training.optimizer.lr by lr."""
    keys = sorted(dict.fromkeys(_ending_in(model, name, 2)), key=lambda key: key.count("."))
    return keys[:1] if name in keys else keys[:3]


def _ending_in(model: type, name: str, depth: int) -> Iterator[str]:
    for key, field in fields(model).items():
        if key == name:
            yield key
        for nested in _models_in(field) if depth else ():
            yield from (f"{key}.{inner}" for inner in _ending_in(nested, name, depth - 1))


def _keys_at(model: type, parents: Sequence[int | str]) -> list[str]:
    """List the keys of the models at a place; indices and a mapping's keys change no model, a union's tag selects one."""
    models = [model]
    for part in parents:
        owners = [candidate for candidate in models if part in fields(candidate)]
        inner = [nested for owner in owners for nested in _models_in(fields(owner)[str(part)])]
        tagged = [model for model in models if any(part in get_args(f.annotation) for f in fields(model).values())]
        models = inner or tagged or owners or models
    return [name for candidate in models for name in fields(candidate)]


def fields(model: Any) -> dict[str, FieldInfo]:
    """Describe the fields of a pydantic model or a dataclass; none of anything else."""
    if dataclasses.is_dataclass(model) and isinstance(model, type):
        return {
            field.name: FieldInfo(annotation=field.type, default=field.default)  # type: ignore[arg-type]
            for field in dataclasses.fields(model)
        }
    return {field.alias or name: field for name, field in getattr(model, "model_fields", {}).items()}


def is_text(model: type, key: Sequence[str]) -> bool:
    """Whether all that stands at a key of a model is text or a path, or None."""
    *parents, last = key
    models = [model]
    for part in parents:
        models = [inner for owner in models if part in fields(owner) for inner in _models_in(fields(owner)[part])]
    annotations = [fields(owner)[last].annotation for owner in models if last in fields(owner)]
    return bool(annotations) and all(map(is_text_type, annotations))


def is_text_type(annotation: Any) -> bool:
    """Whether values of a type are text or paths, or None."""
    kind, arguments = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return is_text_type(arguments[0])
    if kind is Literal:
        return all(isinstance(value, str) for value in arguments)
    if kind in (Union, UnionType):
        return all(is_text_type(argument) for argument in arguments if argument is not type(None))
    return annotation in (str, Path)


def _models_in(field: FieldInfo) -> list[type]:
    for choice in field.metadata:
        if hasattr(choice, "models"):
            return list(choice.models())
    return _nested(field.annotation)


def _nested(annotation: Any) -> list[type]:
    if fields(annotation):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _nested(argument)]
