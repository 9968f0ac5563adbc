"""States in a bucket, through pyarrow's file systems: S3 and what speaks its protocol, Google Cloud Storage.

Who may enter is decided as everywhere: by environment variables, profiles or an instance's role. An address may say more
after a question mark: s3://bucket/prefix?region=eu-west-1&endpoint_override=host:9000&scheme=http.
"""

import errno
import json
import os
import re
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from pyarrow import fs

from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.storage.background import Task, side_by_side
from rayfed_ssl.storage.filesystem import Place
from rayfed_ssl.storage.tensor_files import EARLIER, Chunk, read_bytes
from rayfed_ssl.trees import Tree

DELETED_AT_ONCE = 16
"""Objects that are removed side by side, as each takes a request."""

CAUSES = (
    (("NO_SUCH_BUCKET", "NoSuchBucket"), "there is no such bucket: make it, or correct engine.checkpoints"),
    (
        ("ACCESS_DENIED", "AccessDenied", "Forbidden", "HTTP status 403", "PERMISSION_DENIED"),
        "no permission: the role or key needs to list, read, write and delete objects there",
    ),
    (
        (
            "INVALID_ACCESS_KEY_ID",
            "SIGNATURE_DOES_NOT_MATCH",
            "UNRECOGNIZED_CLIENT",
            "EXPIRED_TOKEN",
            "redentials",
            "HTTP status 401",
            "UNAUTHENTICATED",
        ),
        "credentials are missing, wrong or expired: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role",
    ),
    (
        ("NETWORK_CONNECTION", "curlCode", "timed out", "REQUEST_TIMEOUT"),
        "it cannot be reached: see to the network, the region and the endpoint",
    ),
)
"""What pyarrow's messages hold, and what they mean to a user."""


class Bucket(Place):
    """A prefix in a bucket."""

    is_durable = True

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        with self.explained():
            found: tuple[Any, str] = fs.FileSystem.from_uri(self.address)
            return found

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    def file(self, name: str) -> str:
        """Name an object for people."""
        return f"{self.address.partition('?')[0]}/{name}"

    def create(self) -> None:
        """Write, read and remove an object: a bucket that forbids one of it is noticed before the run begins."""
        try:
            content = json.dumps({"host": socket.gethostname(), "directory": os.getcwd()}).encode()
            self.write("probe", [content])
            if self.read("probe") != content or "probe" not in self.names():
                raise ConfigError(f"{self.address} does not show what is written to it: take a consistent store")
            self.delete(["probe"])
        except OSError as error:
            raise ConfigError(f"states cannot be written to {self.address}: {error.strerror or error}") from None

    def _names(self) -> list[str]:
        """List all objects."""
        with self.explained():
            system, path = self._opened
            found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
            return [info.base_name for info in found if info.type == fs.FileType.File]

    def write(self, name: str, content: Iterable[Chunk], *, durably: bool = False) -> None:
        """Upload an object, which appears when all of it is there.

        An upload that is left before its end is completed as far as it came, so a thread does it that no signal reaches.
        """

        def upload() -> None:
            with self.explained(name), self._opened[0].open_output_stream(self._path(name)) as stream:
                for chunk in content:
                    stream.write(chunk)

        Task(upload, "upload").wait()

    def read(self, name: str) -> bytes:
        """Download an object."""
        with self.explained(name), self._opened[0].open_input_file(self._path(name)) as file:
            content: bytes = file.readall()
            return content

    def read_tree(self, name: str) -> Tree:
        """Download an object that holds a tree."""
        try:
            return read_bytes(self.read(name), self.file(name))
        except FileNotFoundError:
            raise CheckpointError(f"{self.file(name)} is missing: {EARLIER}") from None

    def settle(self, names: Collection[str]) -> None:
        """Do nothing: an object that is there is there to stay."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, several at a time."""
        side_by_side(self._delete, list(names), DELETED_AT_ONCE)

    def _delete(self, name: str) -> None:
        try:
            with self.explained(name):
                self._opened[0].delete_file(self._path(name))
        except FileNotFoundError:
            pass

    @contextmanager
    def explained(self, name: str = "") -> Iterator[None]:
        """Turn a cloud's message into one line that says what to do."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise OSError(
                error.errno or errno.EIO, meaning(str(error)), self.file(name) if name else self.address
            ) from error


def meaning(message: str) -> str:
    """Say in one line what a cloud's message means, and in brackets what it said."""
    found = message.partition("\n")[0]
    _, mark, told = found.rpartition("AWS Error ")
    # What is quoted is a name, which may hold any word.
    said = mark + told if mark else re.sub(r"'[^']*'", "''", found)
    known = next((what for words, what in CAUSES if any(word in said for word in words)), None)
    return f"{known} ({said})" if known else found
