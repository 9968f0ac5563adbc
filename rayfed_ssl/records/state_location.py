"""Where a run's states are: in its own directory, or below the root that `engine.checkpoints` names."""

import hashlib
import secrets
import socket
from pathlib import Path

from rayfed_ssl.errors import ConfigError, UntrustedError
from rayfed_ssl.foreign.own_files import refuse_links_out
from rayfed_ssl.records.manifest import RunManifest
from rayfed_ssl.storage.addresses import join, open_backend
from rayfed_ssl.storage.backend import StorageBackend
from rayfed_ssl.storage.filesystem import LocalDirectory

MARKER = "rayfed-ssl-run"
"""File beside states outside a run's directory, which holds `RunManifest.states_id`."""


def open_states(directory: Path, manifest: RunManifest, *, trusted: bool) -> StorageBackend:
    """Open the backend that run.json names.

    Raises:
        UntrustedError: It lies outside the run's directory, and somebody else has made the run: reading a bucket sends
            credentials to the address, and the id of the marker is known to whoever has a copy of the run.
        ConfigError: It lies outside the run's directory, and no marker of this run is there.
    """
    if manifest.checkpoints is not None and not trusted:
        raise UntrustedError(
            f"{directory / 'run.json'} says that its states are in {manifest.checkpoints}, outside of the run, which you "
            "have not made here: nothing there was read or changed; to use them, add --trust, or resume with "
            "engine.checkpoints=ROOT"
        )
    backend = states_backend(directory, manifest)
    if manifest.checkpoints is not None:
        if isinstance(backend, LocalDirectory):
            refuse_links_out(backend.path)
        if manifest.states_id is None or _marker(backend) != manifest.states_id:
            raise ConfigError(
                f"{directory / 'run.json'} says that its states are in {backend}, where no marker of this run is "
                f"({backend.file(MARKER)}): nothing there was read or changed; if they were moved, resume with "
                "engine.checkpoints=ROOT"
            )
    return backend


def states_backend(directory: Path, manifest: RunManifest) -> StorageBackend:
    """Name the backend that run.json names, whosever it is: it must not be written."""
    address = manifest.checkpoints
    return LocalDirectory(directory / "checkpoints") if address is None else open_backend(address)


def mark_states(backend: StorageBackend, manifest: RunManifest) -> None:
    """Mark states outside the run's directory as this run's.

    Raises:
        ConfigError: They are another run's.
    """
    before = _marker(backend)
    manifest.states_id = manifest.states_id or secrets.token_hex(16)
    if before is None:
        backend.write(MARKER, [manifest.states_id.encode()])
    elif before != manifest.states_id:
        raise ConfigError(f"{backend} holds the states of another run: name another place with engine.checkpoints")


def _marker(backend: StorageBackend) -> str | None:
    try:
        return backend.read(MARKER).decode(errors="replace")
    except FileNotFoundError:
        return None


def states_address(root: str | None, directory: Path, manifest: RunManifest) -> str | None:
    """Name a run's states below a root that many runs share; None is the run's own directory."""
    if root is None:
        return None
    if manifest.checkpoints:
        name = manifest.checkpoints.partition("?")[0].rpartition("/")[2]
        if name in ("", ".", ".."):
            raise ConfigError(f"run.json names no directory for its states, got {manifest.checkpoints}: restore it")
    else:
        path = directory.resolve()
        origin = f"{socket.gethostname()}:{path}:{manifest.started}"
        name = f"{path.name}-{hashlib.sha256(origin.encode()).hexdigest()[:8]}"
    return open_backend(join(root, name)).address
