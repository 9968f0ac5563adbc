"""Pictures as they come, encoded or not, and how they become uint8 [C, H, W].

Decoding runs in threads, not processes: PIL releases the interpreter lock while it decompresses and resizes, and
threads need neither a second import of the caller's script nor copies of the pixels between processes.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from rayfed_ssl.data.image_store import Block
from rayfed_ssl.errors import printable, reason
from rayfed_ssl.foreign.file_kinds import file_seems, seems
from rayfed_ssl.foreign.reading import open_regular

Picture = np.ndarray | bytes | Path
"""Pixels uint8 or uint16 [C, H, W] with C 1 or 3, an encoded picture, or the file that holds one."""

OnBad = Literal["error", "skip"]

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
"""What pictures are opened as: of other kinds, Pillow would start Ghostscript for one."""

DIM = 16
"""Pictures whose largest and smallest of 256 values differ by less are dim."""

MAX_PIXELS = 64_000_000
"""Of a picture; decoded they take 256 MB."""

MOST_PIXELS = 178_956_970
"""Pillow opens nothing larger."""

WINDOW = 256
"""Pictures that are decoded at a time."""

_GRAY_MODES = ("1", "L", "LA")
_NO_PIXELS = np.empty((0, 1, 1, 1), np.uint8)


@dataclass(frozen=True)
class Split:
    """One part of a dataset before it is stored.

    Attributes:
        labels: Classes, int64 [N]; -1 for a sample without a label.
        read: Yields the pictures of ascending rows, each with a name for messages.
        groups: What each sample belongs to, integers or strings [N]; None where no column was asked for.
        notes: What the user should know about how it was read.
    """

    labels: np.ndarray
    read: Callable[[np.ndarray], Iterator[tuple[str, Picture]]]
    groups: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of_pixels(cls, pixels: np.ndarray, labels: np.ndarray) -> "Split":
        """Wrap pixels in memory, uint8 [N, C, H, W]."""
        return cls(labels.astype(np.int64), lambda rows: ((f"row {row}", pixels[row]) for row in rows))

    def select(self, rows: np.ndarray) -> "Split":
        """Keep the given ascending rows."""
        groups = None if self.groups is None else self.groups[rows]
        return Split(self.labels[rows], lambda chosen: self.read(rows[chosen]), groups)


@dataclass(frozen=True)
class Source:
    """A dataset that was found but not read.

    Attributes:
        files: What it consists of; their sizes and times name the store.
        read: Reads labels and prepares the pictures: train, test where there is one, class names.
        has_test: Whether it comes with a test split; else one is split off by the seed.
        notes: What the user should know about its directories.
    """

    files: tuple[Path, ...]
    read: Callable[[], tuple[Split, Split | None, tuple[str, ...]]]
    has_test: bool
    notes: tuple[str, ...] = ()


@cache
def picture_suffixes() -> tuple[str, ...]:
    """List the suffixes of files that Pillow opens as one of `FORMATS`."""
    return tuple(sorted(suffix for suffix, kind in Image.registered_extensions().items() if kind in FORMATS))


def decode(
    split: Split,
    *,
    size: int | None,
    channels: int,
    on_bad: OnBad = "error",
    max_pixels: int = MAX_PIXELS,
    white: int | None = None,
    on_progress: Callable[[int, int, int], None] | None = None,
) -> Iterator[Block]:
    """Decode a split in order, in parallel, a bounded number of pictures at a time.

    Without a size all pictures must have the same. `on_progress` gets the number of pictures done, their total, and the
    bytes of pixels.
    """
    total, done, num_bytes, shape = len(split.labels), 0, 0, None
    bad: list[str] = []
    pictures = split.read(np.arange(total))
    convert = partial(_decoded, size=size, channels=channels, max_pixels=max_pixels, white=white)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while window := list(itertools.islice(pictures, WINDOW)):
            results = list(pool.map(convert, window))
            labels = split.labels[done : done + len(window)]
            groups = None if split.groups is None else split.groups[done : done + len(window)]
            done += len(window)
            failures = tuple(result for result in results if isinstance(result, str))
            bad.extend(failures)
            pixels = [result for result in results if not isinstance(result, str)]
            for picture in pixels:
                shape = shape or picture.shape
                if picture.shape != shape:
                    raise ValueError(
                        f"the pictures differ in size, {_side(shape)} and {_side(picture.shape)}: set data.size, to which "
                        "each will be fitted (center crop, then bilinear resize)"
                    )
            num_bytes += sum(picture.nbytes for picture in pixels)
            readable = [not isinstance(result, str) for result in results]
            readable_groups = None if groups is None else groups[readable]
            dim = tuple(values for values in pool.map(_values_if_dim, window, results) if values is not None)
            yield Block(np.stack(pixels) if pixels else _NO_PIXELS, labels[readable], failures, readable_groups, dim)
            if on_progress:
                on_progress(done, total, num_bytes)
    if bad and on_bad == "error":
        first = "; ".join(bad[:3] + ["..."] * (len(bad) > 3))
        raise ValueError(f"{len(bad)} of {total} pictures are unreadable: {first}: repair them or set data.on_bad=skip")


def to_pixels(
    picture: Picture, *, size: int | None, channels: int, max_pixels: int = MAX_PIXELS, white: int | None = None
) -> np.ndarray:
    """Turn one picture into uint8 [C, H, W].

    The value `white` becomes 255; None takes the largest of 8 or 16 bits. With a size, the largest centered square is
    resized with PIL's antialiased bilinear filter. Palettes become colors and transparency is dropped. An encoded picture
    is turned as its EXIF orientation says.

    Raises:
        ValueError: It has more pixels than `max_pixels`; it is not decoded.
    """
    if isinstance(picture, np.ndarray):
        if white is not None:
            picture = _scaled(picture, white)
        elif picture.dtype == np.uint16:
            picture = (picture >> 8).astype(np.uint8)
        if len(picture) == channels and (size is None or picture.shape[1:] == (size, size)):
            return picture
        array = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
    opened = Image.fromarray(array) if isinstance(picture, np.ndarray) else _open(picture, max_pixels)
    with opened as image:
        if not isinstance(picture, np.ndarray):
            ImageOps.exif_transpose(image, in_place=True)
        converted = in_channels(image, channels, None if isinstance(picture, np.ndarray) else white)
        if size is not None:
            converted = ImageOps.fit(converted, (size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(converted)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def all_gray(split: Split) -> bool:
    """Tell whether every readable picture is gray; stops at the first colored one."""
    return all(_is_gray(picture) for _, picture in split.read(np.arange(len(split.labels))))


def _is_gray(picture: Picture) -> bool:
    if isinstance(picture, np.ndarray):
        return len(picture) == 1
    try:
        with _open(picture) as image:
            return image.mode in _GRAY_MODES or _has_16_bits(image)
    except Exception:  # decode() reports unreadable pictures; here they have no say
        return True


@contextmanager
def _open(picture: bytes | Path, max_pixels: int = MOST_PIXELS) -> Iterator[Image.Image]:
    """Open a picture, of which only the header is read; a ValueError for one that has too many pixels."""
    content = BytesIO(picture) if isinstance(picture, bytes) else open_regular(picture)
    with content as file, Image.open(file, formats=FORMATS) as image:
        if (pixels := image.width * image.height) > max_pixels:
            raise ValueError(
                f"{image.width}x{image.height} pixels: set data.max_pixels={pixels} to take more than {max_pixels}"
            )
        yield image


def in_channels(image: Image.Image, channels: int, white: int | None = None) -> Image.Image:
    """Convert a picture to 8 bits and 1 or 3 channels; ValueError for pixels of neither 8 nor 16 bits.

    The value `white` becomes 255; None takes the largest.
    """
    if _has_16_bits(image):
        # PIL's own conversion clips 16-bit values at 255 instead of scaling them.
        values = np.asarray(image)
        image = Image.fromarray((values >> 8).astype(np.uint8) if white is None else _scaled(values, white))
        white = None
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels ({image.mode}) have neither 8 nor 16 bits")
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")
    image = image.convert("RGB" if channels == 3 else "L")
    return image if white is None else Image.fromarray(_scaled(np.asarray(image), white))


def _has_16_bits(image: Image.Image) -> bool:
    """Whether values run to 65,535: Pillow scales those of a PGM of more than 8 bits to it."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")


def _scaled(values: np.ndarray, white: int) -> np.ndarray:
    """Scale values so that `white` becomes 255, and clip larger ones."""
    scaled: np.ndarray = np.rint(np.minimum(values, white) * (255 / white)).astype(np.uint8)
    return scaled


def _values_if_dim(item: tuple[str, Picture], decoded: np.ndarray | str) -> tuple[int, int] | None:
    """Give the smallest and the largest value of a dim picture as it is stored; None for one that is not, or unreadable."""
    if isinstance(decoded, str) or np.ptp(decoded) >= DIM:
        return None
    _, values = item
    if not isinstance(values, np.ndarray):
        with _open(values) as image:
            values = np.asarray(image if _has_16_bits(image) else in_channels(image, 3))
    return int(values.min()), int(values.max())


def _decoded(item: tuple[str, Picture], **settings: Any) -> np.ndarray | str:
    """Decode a named picture; gives its name and the reason where it is unreadable."""
    name, picture = item
    try:
        return to_pixels(picture, **settings)
    except Exception as error:  # PIL's plug-ins raise whatever their parsers meet, as SyntaxError or struct.error
        kind = file_seems(picture) if isinstance(picture, Path) else seems(bytes(picture))
        other_kind = kind or f"not a picture of the kinds {', '.join(FORMATS)}"
        why = other_kind if isinstance(error, UnidentifiedImageError) else reason(error) or type(error).__name__
        return printable(f"{name} ({why})")


def _side(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}x{shape[1]}"
