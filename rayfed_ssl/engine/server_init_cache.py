"""Cache of the server's state before round 1, shared by runs that start alike (`engine.shared`).

One run makes a state while the others wait at a file lock.
"""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rayfed_ssl.config.choices import METHOD
from rayfed_ssl.config.sections import BITS
from rayfed_ssl.data.image_store import alone
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.result_cache import CachedResult
from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import STATES, Stored
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
    cached = CachedResult(directory, facts_of(federation), str)
    if (state := _read(cached, directory)) is not None:
        return state
    try:
        lock = alone(directory / cached.key)
    except OSError as error:
        raise ConfigError(
            f"engine.shared={directory} cannot be written ({error.strerror}): name another directory, or leave it out"
        ) from None
    with lock:
        if (state := _read(cached, directory)) is None:  # another run may just have made it
            state = federation.init_server()
            with suppress(OSError):  # without room other runs make their own
                cached.write(checkpoints.store(state, directory, cached.key).sha256)
        return state


def facts_of(federation: Federation) -> dict[str, Any]:
    """Collect what the server's first state may depend on."""
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
        "start": task.start and task.start.sha256,
    }


def _read(cached: CachedResult[str], directory: Path) -> Any | None:
    """Read a state, of which the cached result is the digest."""
    if (sha256 := cached.read()) is None:
        return None
    with suppress(CheckpointError):
        return checkpoints.read(Stored(cached.key + STATES, sha256), directory)
    return None
