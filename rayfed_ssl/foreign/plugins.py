"""Names of methods, objectives, encoders, partitions, datasets and views: built in, installed, or `module:name`.

An installed package offers names through entry points of the groups `rayfed_ssl.methods` and so on. `module:name` needs no
installation: the working directory can be imported from, in actors the driver's too. It is imported only where its exact
text was allowed in this process: by the user who named it for a new run, or who trusts the file that names it.
"""

import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from traceback import extract_tb
from typing import Any

from rayfed_ssl.errors import ConfigError, UntrustedError, nearest

_allowed: set[str] = set()

_named_in: dict[str, str] = {}
"""The file that each name was read from."""


def allow(tree: Any) -> None:
    """Let every `module:name` in plain data be imported from now on in this process."""
    _allowed.update(_module_names(tree))


def note(tree: Any, file: object, *, trust: bool = False) -> None:
    """Remember which file names what, for messages, and allow it on trust."""
    _named_in.update(dict.fromkeys(_module_names(tree), str(file)))
    if trust:
        allow(tree)


def check_allowed(kind: str, name: str, effect: str | None = None) -> None:
    """Raise UntrustedError for a `module:name` that may not be imported, or have another effect."""
    if name not in _allowed:
        effect, file = effect or f"import the module {name.partition(':')[0]!r}", _named_in.get(name, "a file")
        raise UntrustedError(
            f"{file} names {kind}={name!r}, which would {effect}: to allow it, add --trust (Python: trust=True)"
        )


def _module_names(tree: Any) -> Iterator[str]:
    if isinstance(tree, str) and ":" in tree:
        yield tree
    elif isinstance(tree, Mapping | list | tuple):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _module_names(value)


def find(kind: str, name: str, built_in: Mapping[str, Any], hint: Callable[[str, list[str]], str] = nearest) -> Any:
    """Find what a name stands for: a key of `built_in`, an entry point of the kind, or `module:name`.

    Raises:
        ConfigError: There is no such name; `hint` gives the end of the message from it and all names.
        UntrustedError: It is a `module:name` that nobody has allowed.
    """
    if name in built_in:
        return built_in[name]
    if name in (points := _installed(kind)).names:
        return _load(kind, points[name].value)
    if ":" in name:
        check_allowed(kind, name)
        return _load(kind, name)
    raise ConfigError(f"unknown {kind} {name!r}{hint(name, names(kind, built_in))}")


def names(kind: str, built_in: Mapping[str, Any]) -> list[str]:
    """List the names of a kind: built-in ones, then those of installed packages."""
    return [*built_in, *sorted(_installed(kind).names)]


def name_of(kind: str, target: Any, built_in: Mapping[str, Any]) -> str:
    """Name a class or function so that `find` gives it back in any process that allows the name; this one does."""
    for name, candidate in built_in.items():
        if candidate is target:
            return name
    path = f"{target.__module__}:{target.__qualname__}"
    _allowed.add(path)  # its code has run
    return next((point.name for point in _installed(kind) if point.value == path), path)


def parameters(
    kind: str, name: str, target: Any, given: Collection[str], others: str = ""
) -> Mapping[str, inspect.Parameter]:
    """Read the parameters of what a name stands for, before it is called.

    Raises:
        ConfigError: It is no Python function that takes one of those `given`; the message begins with `others`.
    """
    if inspect.isfunction(inspect.unwrap(target)):
        with suppress(TypeError, ValueError):
            by_name = inspect.signature(target).parameters
            if by_name.keys() & set(given):
                return by_name
    raise ConfigError(
        f"{kind}={name} must be {others}a Python function that takes {' or '.join(given)}, got "
        f"{type(target).__name__} {getattr(target, '__name__', '')}"
    )


@contextmanager
def named_errors(kind: str, name: str, built_in: Collection[str] = ()) -> Iterator[None]:
    """Raise ConfigError for what a user's code raises: whose it is, what it says and where; built-in code passes."""
    try:
        yield
    except (ConfigError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if name in built_in:
            raise
        *_, frame = extract_tb(error.__traceback__)
        raise ConfigError(
            f"{kind}={name} raised {type(error).__name__}: {error} (line {frame.lineno} of {frame.filename})"
        ) from error


def import_from(directory: str) -> None:
    """Let `module:name` be a module in a directory."""
    if directory not in sys.path:
        sys.path.append(directory)


def summary(target: Any) -> str:
    """Take the first line of a docstring."""
    return (target.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def short(name: str) -> str:
    """Shorten `module:name` to the name, for directories and titles."""
    return name.rpartition(":")[2]


@cache
def _installed(kind: str) -> EntryPoints:
    """Read what installed packages offer, once in a process: each reading opens a file for each of them."""
    return entry_points(group=f"rayfed_ssl.{kind}s")


def _load(kind: str, path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    import_from(os.getcwd())
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{kind}={path} cannot be imported: there is no module {error.name!r}; install it, or run in the directory "
            f"that holds it, got {os.getcwd()}"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{kind}={path} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        target = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        public = [name for name in vars(module) if not name.startswith("_")]
        raise ConfigError(f"module {module_name} has no {attribute!r}{nearest(attribute, public)}") from None
    if not callable(target):
        raise ConfigError(f"{kind}={path} must name a class or a function, got {type(target).__name__}")
    return target
