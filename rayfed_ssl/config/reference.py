"""Every key of the configuration with its default and meaning, read off the classes that define them."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, get_args

from pydantic_core import PydanticUndefined

from rayfed_ssl.config.choices import METHOD, Choice
from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.strict import fields
from rayfed_ssl.method import Method


class Key(NamedTuple):
    """One key: its dotted name, its default as YAML would write it, and one sentence."""

    name: str
    default: str
    meaning: str


def all_keys() -> Iterator[Key]:
    """List every key in the order of the configuration, then the fields of what can be chosen, with whose they are."""
    choices: dict[str, Choice] = {}
    yield from _section_keys(Config, "", choices)
    for prefix, choice in choices.items():
        owners: dict[Key, list[str]] = {}
        for name in choice.built_in():
            for row in _section_keys(choice.model(name), f"{prefix}.", {}):
                owners.setdefault(row, []).append(name)
        for row, names in owners.items():
            if row.name != f"{prefix}.name":
                yield row._replace(meaning=f"({', '.join(names)}) {row.meaning}")


def _section_keys(settings: Any, prefix: str, choices: dict[str, Choice]) -> Iterator[Key]:
    """List a section's keys, and note the choices among them."""
    for name, field in fields(settings).items():
        choice = next((item for item in field.metadata if isinstance(item, Choice)), None)
        if choice is not None:
            choices[prefix + name] = choice
            yield Key(
                f"{prefix}{name}.name",
                "null" if choice.optional else choice.default or "required",
                meanings(settings)[name],
            )
        elif section := next((kind for kind in (field.annotation, *get_args(field.annotation)) if fields(kind)), None):
            yield from _section_keys(section, f"{prefix}{name}.", choices)
        else:
            yield Key(prefix + name, _plain(field.default), meanings(settings)[name])


def _plain(default: Any) -> str:
    if default is PydanticUndefined or default is dataclasses.MISSING:
        return "required"
    if isinstance(default, Method):
        return METHOD.name_of(default)
    if isinstance(default, bool) or default is None:
        return {True: "true", False: "false", None: "null"}[default]
    return f"{default:g}" if isinstance(default, float) else str(default)


def meanings(settings: type) -> dict[str, str]:
    """Give the strings below the fields of a class and of its parents, or the descriptions of a function's parameters."""
    texts = {key: field.description or "" for key, field in fields(settings).items()}
    for source in reversed(settings.__mro__):
        texts |= _below_fields(source)
    return texts


@cache
def _below_fields(source: type) -> dict[str, str]:
    """Read them from the source; pydantic can do so as it makes a class, which takes every process a third of a second."""
    try:
        (tree,) = ast.parse(inspect.getsource(source)).body
    except (OSError, TypeError):  # a class without a file
        return {}
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(getattr(tree, "body", ()))
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


TABLE = "| key | default | meaning |"
"""First line of the table in docs/configuration.md."""


def page(old: str) -> str:
    """Write docs/configuration.md: what stands before the table of keys, and the table."""
    rows = (f"| `{key.name}` | {key.default} | {key.meaning.replace('|', '/')} |" for key in all_keys())
    return "\n".join([old.partition(TABLE)[0] + TABLE, "|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    import sys
    from pathlib import Path

    file = Path(sys.argv[1])
    file.write_text(page(file.read_text()))
