"""Reading sweep files: those that come with the package, a user's own, and the settings on the command line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rayfed_ssl.config.recipes import plain_data, read_shipped, shipped_names
from rayfed_ssl.config.strict import parse
from rayfed_ssl.errors import ConfigError
from tune.studies.definition.schema import Sweep, SweepFile

OWN_KEYS = ("trials", "seeds", "generation", "selection", "search")
"""Keys of the sweep itself that a user may set on the command line."""


def sweep_names() -> list[str]:
    """Name the sweeps that come with the package."""
    return shipped_names("tune.studies.shipped.sweeps")


def read_sweep(name: str) -> dict[str, Any]:
    """Read a sweep's file, one of the package's by name or another by its path, as plain data."""
    tree = read_shipped("sweep", "tune.studies.shipped.sweeps", name)
    assert isinstance(tree, dict)
    return tree


def load_sweep(source: str | Mapping[str, Any], *overrides: str, name: str | None = None) -> Sweep:
    """Read a sweep by name, by file or as plain data.

    Args:
        source: What to read.
        overrides: A user's settings, "key=value": of the sweep itself, or of all trials.
        name: What plain data are called.

    Raises:
        ConfigError: There is no such sweep, or it does not fit together; the message names the key.
    """
    tree = dict(source) if isinstance(source, Mapping) else read_sweep(source)
    name = name or (Path(source).stem if isinstance(source, str) else "sweep")
    settings = _apply(overrides, tree, name)
    file = parse(SweepFile, tree, name)
    for text in settings:
        key = text.partition("=")[0]
        if key in file.space.names:
            raise ConfigError(f"{name}: {key} is what {name} varies: narrow it with {key}: [...] in a file of your own")
        if key == "seed":
            raise ConfigError(f"{name}: a seed is a repeat and no parameter: set seeds")
    return Sweep.model_validate({**tree, "name": name, "overrides": tuple(settings)})


def _apply(overrides: Sequence[str], tree: dict[str, Any], name: str) -> list[str]:
    """Apply the user's settings of the sweep itself to its tree; returns the others."""
    others = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{name}: a setting looks like key=value, got {text!r}")
        if key not in OWN_KEYS:
            others.append(text)
            continue
        try:
            tree[key] = plain_data(value)
        except yaml.YAMLError:
            raise ConfigError(f"{name}: {key} cannot be read, got {value!r}") from None
    return others
