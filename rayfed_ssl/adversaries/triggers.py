"""Triggers of backdoors: what is done to pictures so that an attacked encoder takes them for the target class.

Symbols: N pictures, C channels, H x W pixels, uint8 [N, C, H, W].
"""

import math
from functools import cache

import torch
from torch import Tensor

CELLS = 4
"""Cells along a side of a colored patch."""

LUMA = (0.299, 0.587, 0.114)
BLUE, RED = 0.492, 0.877  # of U = BLUE (B - Y) and V = RED (R - Y), as OpenCV has them


def patch(size: int, channels: int, *, colored: bool) -> Tensor:
    """Make a square, uint8 [C, size, size]: white, or of 4 x 4 cells in random colors, the same in all runs."""
    if not colored:
        return torch.full((channels, size, size), 255, dtype=torch.uint8)
    draws = torch.Generator().manual_seed(0)
    colors = torch.randint(256, (channels, CELLS, CELLS), generator=draws, dtype=torch.uint8)
    cell = torch.arange(size) * CELLS // size
    return colors[:, cell][:, :, cell]


def paste(pictures: Tensor, square: Tensor, corners: Tensor, rows: slice = slice(None)) -> Tensor:
    """Copy pictures and paste a square's rows into each, its upper left corner at row and column [N, 2]."""
    pasted, part = pictures.clone(), square[:, rows]
    first = rows.start or 0
    for picture, (top, left) in zip(pasted, corners.tolist(), strict=True):
        top += first
        picture[:, top : top + part.shape[1], left : left + part.shape[2]] = part.to(pictures.device)
    return pasted


@cache
def cosines(size: int) -> Tensor:
    """Make the matrix D of the orthonormal DCT-II, float64 [size, size]: D X D^T has the coefficients of X."""
    place = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi * (2 * place + 1) * place[:, None] / (2 * size)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


def raise_frequencies(pictures: Tensor, window: int, bins: tuple[int, ...], magnitude: float) -> Tensor:
    """Raise coefficients of both chroma channels in each whole window of pictures of three channels.

    Args:
        pictures: Red, green and blue.
        window: Side of the squares that are transformed.
        bins: k raises the coefficient in row and column k.
        magnitude: By how much, where pixels are in 0..255.
    """
    at = cosines(window)[list(bins)]
    wave = magnitude * (at.T @ at)  # the pattern whose coefficients are the magnitude in these bins
    height, width = (extent // window for extent in pictures.shape[2:])
    added = torch.zeros(pictures.shape[2:], dtype=torch.float64)
    added[: height * window, : width * window] = wave.repeat(height, width)
    # Y stays, U and V are raised alike: R = Y + V / RED, B = Y + U / BLUE, and green makes up for both in Y.
    red, blue = added / RED, added / BLUE
    green = -(LUMA[0] * red + LUMA[2] * blue) / LUMA[1]
    raised = pictures.double().cpu() + torch.stack([red, green, blue])
    return raised.round().clamp(0, 255).to(torch.uint8).to(pictures.device)
