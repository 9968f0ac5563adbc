"""Cache of the server's state before round 1, shared by runs that start alike (`engine.shared`).

KEY.safetensors holds a state, KEY.json its digest and what it was made from. KEY is a digest of everything that the state
may depend on; a version of this package counts as one code. One run makes a state while the others wait at a file lock.
A damaged file does not match its digest, and the state is made anew.
"""

import errno
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rayfed_ssl.config.choices import METHOD
from rayfed_ssl.config.sections import BITS
from rayfed_ssl.data.image_store import alone
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.environment import cpu_model, environment
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import STATES, Stored
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.trees import digest


def first_state(federation: Federation) -> Any:
    """Make the server's state before round 1, or read it from the cache.

    Raises:
        ServerError: The step failed.
        ConfigError: `engine.shared` cannot be written.
    """
    directory = federation.config.engine.shared
    if directory is None or federation.method.costly_start() is None:
        return federation.init_server()
    facts = facts_of(federation)
    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]
    cached = _read(directory, key)
    if cached is not None:
        return cached
    with ExitStack() as lock:
        try:
            lock.enter_context(alone(directory / key))
        except OSError as error:
            raise ConfigError(
                f"engine.shared={directory} cannot be written ({error.strerror}): name another directory, or leave it out"
            ) from None
        cached = _read(directory, key)  # another run may just have made it
        return _make(federation, directory, key, facts) if cached is None else cached


def facts_of(federation: Federation) -> dict[str, Any]:
    """Collect everything that the server's first state may depend on."""
    config, task, public = federation.config.dump(), federation.task, federation.public
    # How private samples are divided tells the server nothing; which samples are public is looked at below.
    settings = {key: value for key, value in config.items() if key not in ("engine", "evaluation", "partition")}
    return {
        **settings,
        "method": METHOD.dump(federation.method.costly_start() or federation.method),
        "engine": {key: config["engine"][key] for key in BITS} | {"device": str(task.device)},
        "precision": asdict(task.precision),
        "threads": torch.get_num_threads(),
        "fingerprint": federation.dataset.fingerprint,
        "public_images": None if public is None else digest(public.images.images[public.rows]),
        "start": start_of(federation),
        "processor": cpu_model(),
        **environment(),
    }


def start_of(federation: Federation) -> dict[str, str] | None:
    """Name the file that a run's first weights come from."""
    start = federation.task.start
    return None if start is None else {"file": str(start.file), "sha256": start.sha256}


def _read(directory: Path, key: str) -> Any | None:
    """Read a cached state; None if it is missing or damaged."""
    try:
        sha256 = json.loads((directory / f"{key}.json").read_text())["sha256"]
        return checkpoints.read(Stored(key + STATES, sha256), directory)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make(federation: Federation, directory: Path, key: str, facts: Mapping[str, Any]) -> Any:
    """Make a state and cache it; if the disk is full, later runs make their own."""
    state = federation.init_server()
    try:
        stored = checkpoints.store(state, directory, key)
        text = json.dumps({"sha256": stored.sha256, "made_from": facts}, indent=1, default=str)
        write_atomically(directory / f"{key}.json", text.encode())
    except OSError as error:
        warnings.warn(
            f"what the server begins with could not be kept in engine.shared={directory} "
            f"({os.strerror(error.errno or errno.EIO)}): other runs make their own",
            RuntimeWarning,
            stacklevel=2,
        )
    return state
