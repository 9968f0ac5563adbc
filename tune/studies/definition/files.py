"""Reading study files: those that come with the package, a user's own, and the settings on the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rayfed_ssl.config.recipes import plain_data, read_shipped, shipped_names
from rayfed_ssl.config.strict import parse
from rayfed_ssl.errors import ConfigError, nearest
from tune.studies.definition.schema import StudyFile
from tune.studies.definition.study import Study

OWN_KEYS = ("trials", "seeds", "generation", "selection", "search")
"""Keys of the study itself that a user may set on the command line."""

VERBS = {"sweep": "sweep", "reproduction": "reproduce", "benchmark": "benchmark"}
"""The command that runs a study of a kind."""

SHIPPED = {kind: f"tune.studies.shipped.{kind}s" for kind in VERBS}
"""Where the files of each kind lie."""


def study_names(kind: str) -> list[str]:
    """Name the studies of a kind that come with the package."""
    return shipped_names(SHIPPED[kind])


def read_study_file(name: str, kind: str = "sweep") -> dict[str, Any]:
    """Read a study's file, one of the package's by name or another by its path, as plain data."""
    from rayfed_ssl.config.schema import takes_text  # loads torch, which a study's state does without

    return read_shipped(kind, SHIPPED[kind], name, takes_text)


def load_study(
    source: str | Mapping[str, Any],
    *overrides: str,
    kind: str = "sweep",
    name: str | None = None,
    size: str | None = None,
) -> Study:
    """Read a study by name, by file or as plain data.

    Args:
        source: What to read.
        overrides: A user's settings, "key=value": of the study itself, or of all trials.
        kind: Of a name: "sweep", "reproduction" or "benchmark"; a file is checked to be one.
        name: What plain data are called.
        size: One of its sizes, for a study that has some.

    Raises:
        ConfigError: There is no such study, or it does not fit together; the message names the key.
    """
    tree = dict(source) if isinstance(source, Mapping) else read_study_file(source, kind)
    name = name or (Path(source).stem if isinstance(source, str) else "study")
    settings = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{name}: a setting looks like key=value, got {text!r}")
        if key not in OWN_KEYS:
            settings.append(text)
            continue
        try:
            tree[key] = plain_data(value)
        except yaml.YAMLError:
            raise ConfigError(f"{name}: {key} cannot be read, got {value!r}") from None
    file = parse(StudyFile, tree, name)
    if isinstance(source, str) and file.kind != kind:
        raise ConfigError(f"{name} is a {file.kind}: run it with `rayfed-ssl {VERBS[file.kind]} {source}`")
    if (size is not None or file.sizes) and size not in file.sizes:
        raise ConfigError(f"{name} has no size {size!r}{nearest(size or '', file.sizes)}")
    keys = {text.partition("=")[0] for text in settings}
    if "seed" in keys:
        raise ConfigError(f"{name}: a seed is a repeat and no parameter: set seeds")
    for key in keys.intersection(file.space.names):
        raise ConfigError(f"{name}: {key} is what {name} varies: narrow it with {key}: [...] in a file of your own")
    return Study.model_validate({**tree, "name": name, "overrides": tuple(settings), "size": size})
