"""What a run may write, delete and follow: files of its own names, inside its own directory."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from rayfed_ssl.errors import ConfigError

STATE = r"(server|client-\d+)-\d+\.safetensors"
"""Names of states, as `engine.local_executor` gives them."""

TRACKER = "wandb"
"""Directory of Weights & Biases, which links to its logs elsewhere."""

FOLDERS = ("checkpoints", "encoders", "figures", "tables")
"""Directories of a run."""

_DRAFT = rf"\.({STATE}|round-\d+\.json)\.[0-9a-f]{{8}}"


def own_states(names: Iterable[str]) -> list[str]:
    """Select the names that states have."""
    return [name for name in names if re.fullmatch(STATE, name)]


def own_drafts(names: Iterable[str]) -> list[str]:
    """Select the names that `write_atomically` gives to states and manifests until they are whole."""
    return [name for name in names if re.fullmatch(_DRAFT, name)]


def refuse_links_out(directory: Path) -> None:
    """Raise ConfigError for what is neither a file nor a directory, and for a symbolic link that leads out of a directory.

    A file where a run has a directory, and a link to itself, are such too. The directory may be named through a link. What
    lies in a directory of a tracker is not looked at, as nothing here reads or writes it.
    """
    root = os.path.realpath(directory)
    for folder, subdirectories, files in os.walk(root):
        for name in (*subdirectories, *files):
            path = os.path.join(folder, name)
            if os.path.islink(path) and not f"{(target := os.path.realpath(path))}/".startswith(f"{root}/"):
                raise ConfigError(
                    f"{path} is a link to {target}, out of {directory}: nothing was read or written; put the files in its "
                    "place, or remove it"
                )
            is_kept = os.path.isdir(path) if name in FOLDERS else os.path.isfile(path) or os.path.isdir(path)
            if not is_kept and os.path.lexists(path):  # a file that its writer has just moved is none
                kind = "directory" if name in FOLDERS else "regular file or directory"
                raise ConfigError(f"{path} is no {kind}: restore it from a copy, or remove it")
        subdirectories[:] = [name for name in subdirectories if name != TRACKER]
