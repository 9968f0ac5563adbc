"""Files in a bucket, through pyarrow's file systems: S3 and compatible stores, Google Cloud Storage.

Credentials come from environment variables, profiles or an instance's role. An address may end in options:
s3://bucket/prefix?region=eu-west-1&endpoint_override=host:9000&scheme=http.
"""

import errno
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from pyarrow import ArrowException, fs

from rayfed_ssl.errors import CheckpointError
from rayfed_ssl.storage.backend import StorageBackend
from rayfed_ssl.storage.tensor_files import RESTORE, Chunk, read_bytes
from rayfed_ssl.trees import Tree

PARALLEL_DELETES = 16
"""Objects that are removed in parallel, as each takes a request."""


TIMEOUT, ATTEMPTS = 5.0, 3
"""Seconds without a byte after which a request has failed, and how often one is made: S3's own take a minute and a half."""


class Bucket(StorageBackend):
    """A prefix in a bucket."""

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        with self.explained():
            opened, path = fs.FileSystem.from_uri(self.address)
            if opened.type_name == "s3":  # an address has no options for these; pyarrow pickles all others
                times = {"connect_timeout": TIMEOUT, "request_timeout": TIMEOUT}
                retries = fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS)
                opened = fs.S3FileSystem(**opened.__reduce__()[1][0] | times, retry_strategy=retries)
            return opened, path

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    def file(self, name: str) -> str:
        """Name an object in messages."""
        return f"{self.address.partition('?')[0]}/{name}"

    def names(self) -> list[str]:
        """List all objects."""
        with self.explained():
            system, path = self._opened
            infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
            return [info.base_name for info in infos if info.type == fs.FileType.File]

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""
        with self.explained(name):
            info = self._opened[0].get_file_info(self._path(name))
            return bool(info.type == fs.FileType.File)

    def write(self, name: str, content: Iterable[Chunk]) -> None:
        """Upload an object, which appears when all of it has arrived.

        pyarrow completes an interrupted upload with what it has, so a thread does it, which signals do not interrupt.
        """

        def upload() -> None:
            with self.explained(name), self._opened[0].open_output_stream(self._path(name)) as stream:
                for chunk in content:
                    stream.write(chunk)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(upload).result()

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
            raise CheckpointError(f"{self.file(name)} is missing: {RESTORE}") from None

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, several in parallel."""
        with ThreadPoolExecutor(PARALLEL_DELETES) as pool:
            list(pool.map(self._delete, names))

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError), self.explained(name):
            self._opened[0].delete_file(self._path(name))

    @contextmanager
    def explained(self, name: str = "") -> Iterator[None]:
        """Shorten a cloud client's message to one line, and name the object."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ArrowException) as error:
            place = self.file(name) if name else self.address
            number = getattr(error, "errno", None) or errno.EIO
            raise OSError(number, str(error).partition("\n")[0], place) from error
