"""What a file is by its first bytes, for messages on files of another kind than was asked for."""

from contextlib import suppress
from pathlib import Path

from rayfed_ssl.foreign.reading import open_regular

HEAD = 64
"""Bytes that tell."""

KINDS = (
    ((b"version https://git-lfs",), "a Git LFS pointer: fetch the file itself with `git lfs pull`"),
    ((b"<!doctype", b"<html", b"<?xml"), "a web page: the download gave an error or asked to log in"),
    ((b"pk\x03\x04",), "a zip archive, as torch.save and numpy.savez write"),
    (tuple(bytes([0x80, protocol]) for protocol in range(2, 6)), "a pickle, as old versions of torch.save write"),
    ((b"par1",), "a Parquet file"),
    ((b"arrow1",), "an Arrow file"),
    ((b"\x89hdf",), "an HDF5 file"),
    ((b"\x93numpy",), "a NumPy array"),
    ((b"\x1f\x8b",), "a gzip archive"),
    ((b"\x89png", b"\xff\xd8\xff", b"gif8"), "a picture"),
    ((b"%pdf", b"%!ps"), "a document (PDF or PostScript)"),
)
"""How they begin, in lower case."""


def seems(content: bytes, but: str | None = None) -> str:
    """Say what the first bytes of a file tell, as "it seems to be a web page"; "" if nothing, or what was asked for."""
    head = content[:HEAD].lstrip().lower()
    if not content:
        return "it is empty"
    found = next((kind for starts, kind in KINDS if head.startswith(starts)), None)
    return "" if found is None or (but is not None and but in found) else f"it seems to be {found}"


def file_seems(path: Path, but: str | None = None) -> str:
    """Say it of a file; "" for one that cannot be read."""
    with suppress(OSError), open_regular(path) as file:
        return seems(file.read(HEAD), but)
    return ""
