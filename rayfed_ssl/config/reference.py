"""Every key of the configuration with its default and meaning, read off the classes that define them."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic_core import PydanticUndefined

from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import Section
from rayfed_ssl.method import Method
from rayfed_ssl.methods import METHODS
from rayfed_ssl.objectives import OBJECTIVES


class Key(NamedTuple):
    """One key: its dotted name, its default as YAML would write it, and one sentence."""

    name: str
    default: str
    meaning: str


def all_keys() -> Iterator[Key]:
    """List every key in the order of the configuration; fields of methods and objectives say whose they are."""
    yield from _keys_of(Config, "")
    methods = {info.method: name for name, info in METHODS.items() if info.rounds is None}
    for chosen, name in methods.items():
        yield from (key._replace(meaning=f"({name}) {key.meaning}") for key in _keys_of(chosen, "method."))
    for name, objective in OBJECTIVES.items():
        yield from (key._replace(meaning=f"({name}) {key.meaning}") for key in _keys_of(objective, "objective."))


def _keys_of(section: type, prefix: str) -> Iterator[Key]:
    meanings = attributes(section)
    for name, annotation, default in _fields(section):
        if _is_section(annotation):
            yield from _keys_of(annotation, f"{prefix}{name}.")
        elif name in meanings:
            yield Key(prefix + name, _plain(default), meanings[name])


def _fields(section: type) -> Iterator[tuple[str, Any, Any]]:
    if issubclass(section, Section):
        for name, field in section.model_fields.items():
            yield name, field.annotation, field.default
    else:
        for own in dataclasses.fields(section):  # type: ignore[arg-type]  # every other section is a dataclass
            yield own.name, own.type, own.default


def _is_section(annotation: Any) -> bool:
    return inspect.isclass(annotation) and (issubclass(annotation, Section) or dataclasses.is_dataclass(annotation))


def _plain(default: Any) -> str:
    if default is PydanticUndefined or default is dataclasses.MISSING:
        return "required"
    if isinstance(default, Method):
        return next(name for name, info in METHODS.items() if info.method is type(default))
    if isinstance(default, bool) or default is None:
        return {True: "true", False: "false", None: "null"}[default]
    return f"{default:g}" if isinstance(default, float) else str(default)


def attributes(documented: type) -> dict[str, str]:
    """Read the "Attributes:" section of a class's docstring."""
    text = inspect.cleandoc(documented.__doc__ or "")
    _, _, section = text.partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def page() -> str:
    """Write docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Made by `uv run python -m rayfed_ssl.config.reference > docs/configuration.md`. A recipe is a YAML file of these",
        "keys; on the",
        "command line they are written `section.key=value`. A bare value for a section replaces it: `method=fedavg`,",
        "`model=resnet18`. Unknown keys, and keys that the chosen method would ignore, are errors.",
        "",
        "| key | default | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{key.name}` | {key.default} | {key.meaning.replace('|', '/')} |" for key in all_keys()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
