"""From addresses to storage backends."""

from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.storage.backend import StorageBackend
from rayfed_ssl.storage.filesystem import LocalDirectory
from rayfed_ssl.validation import absolute

Directory: TypeAlias = Path | StorageBackend


def backend_of(directory: Directory) -> StorageBackend:
    """Take a path for the directory that it names."""
    return directory if isinstance(directory, StorageBackend) else LocalDirectory(directory)


def open_backend(address: str) -> StorageBackend:
    """Open a backend: a path, file:///path, s3://bucket/prefix or gs://bucket/prefix.

    Raises:
        ConfigError: The scheme is unknown, or the address holds a password.
    """
    if "://" not in address:
        return LocalDirectory(absolute(address))
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise ConfigError(
            f"engine.checkpoints={address} is no address ({error}): name a directory or s3://BUCKET/PREFIX"
        ) from None
    if parts.scheme == "file":
        return LocalDirectory(parts.path)
    if parts.scheme not in ("s3", "gs", "gcs") or not parts.netloc:
        raise ConfigError(
            f"engine.checkpoints={address} is no storage address: give a directory, s3://bucket/prefix or gs://..."
        )
    if parts.username or parts.password:
        raise ConfigError(
            "engine.checkpoints holds a password, which the run's record would show: leave it out and set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or an instance's role"
        )
    from rayfed_ssl.storage.cloud import Bucket  # importing cloud clients takes a tenth of a second

    return Bucket(address)


def join(address: str, name: str) -> str:
    """Append a name to an address; options after a question mark stay at the end."""
    base, mark, options = address.partition("?") if "://" in address else (address, "", "")
    return f"{base.rstrip('/')}/{name}{mark}{options}"
