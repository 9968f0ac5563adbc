"""Signatures: whether this user has written a file where it lies.

A signature is an HMAC-SHA256 of a file's place and content, with a key that only this user can read. Where it fits, this
user has made the run or the sweep here, and what it names may be imported. What was copied, moved or changed is of
somebody else.
"""

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

import platformdirs
from filelock import FileLock

from rayfed_ssl.foreign.reading import read_bytes

KEY_BYTES = 32


def sign(file: Path, content: bytes) -> str | None:
    """Sign a file's content at its place; None where this user's key can be neither read nor made."""
    with suppress(OSError):
        return _signature(_key() or _make_key(), file, content)
    return None


def is_signed(file: Path, content: bytes, signature: str | None) -> bool:
    """Whether this user has signed the content at this place."""
    key = None if signature is None else _key()
    return key is not None and hmac.compare_digest(_signature(key, file, content).encode(), str(signature).encode())


def _signature(key: bytes, file: Path, content: bytes) -> str:
    place = os.fsencode(file.parent.resolve() / file.name)
    return hmac.new(key, place + b"\0" + content, hashlib.sha256).hexdigest()


def _key_file() -> Path:
    return platformdirs.user_state_path("rayfed-ssl") / "key"


def _key() -> bytes | None:
    with suppress(OSError):
        key = read_bytes(_key_file(), KEY_BYTES)
        return key if len(key) == KEY_BYTES else None
    return None


def _make_key() -> bytes:
    """Make the key; of several processes that do so at once, one wins."""
    file = _key_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if (key := _key()) is None:
            key = secrets.token_bytes(KEY_BYTES)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK  # a pipe is an error and waits for no reader
            with os.fdopen(os.open(file, flags, 0o600), "wb") as opened:
                opened.write(key)
    return key
