"""Errors that a user can repair: one line that says what is wrong, what was got and what to do."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot be run."""


class BusyError(ConfigError):
    """Another process is writing what this one wants to write."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says which file, why, and what to do."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Suggest the nearest choice, or list them all where none is near."""
    words = sorted(choices)
    names = {name.lower(): name for name in words}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    if close:
        return f": did you mean {names[close[0]]!r}?"
    return f": choose from {', '.join(words)}" if words else ": there is nothing to set here"


def check_name(key: str, name: str, registry: Mapping[str, Any]) -> None:
    """Refuse a name that is not registered, and suggest the nearest."""
    if name not in registry:
        raise ConfigError(f"{key}: unknown name {name!r}{nearest(name, registry)}")
