"""Small picture files for the tests of datasets."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def pictures(num_samples, *shape):
    return RNG.integers(0, 256, (num_samples, *shape), np.uint8)


def png(pixels):
    """Encode uint8 [H, W] or [H, W, C]."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def save(path: Path, content: bytes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def channels_first(pixels):
    return pixels.transpose(0, 3, 1, 2)


def write_folder(root, layout, shape=(7, 6, 3)):
    """Write one picture per path; returns the pixels by path."""
    pixels = {path: pictures(1, *shape)[0] for path in layout}
    for path, picture in pixels.items():
        save(root / path, png(picture))
    return pixels
