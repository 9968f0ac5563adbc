"""Smaller uploads: number formats and sparse rows. What is packed here is what crosses the client's boundary."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Format: TypeAlias = Literal["fp32", "fp16", "int8"]


@dataclass(frozen=True)
class Packed:
    """Numbers in a smaller format.

    Attributes:
        values: float32, float16 or int8, any shape.
        scales: float32, one per row for int8, else None: value = int8 * scale.
    """

    values: Tensor
    scales: Tensor | None


def pack(values: Tensor, format: Format) -> Packed:
    """Convert rows of floats; int8 rounds to the nearest of 255 levels between minus and plus the row's largest value.

    Args:
        values: float32 [N, D].
        format: "fp32" (exact), "fp16" (relative error 2^-11) or "int8" (absolute error of at most half a 127th of the
            row's largest value).
    """
    if format == "int8":
        scales = values.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny) / 127
        return Packed((values / scales).round().to(torch.int8), scales.squeeze(1))
    return Packed(values.half() if format == "fp16" else values, None)


def unpack(packed: Packed) -> Tensor:
    """Restore float32 [N, D] up to the format's rounding."""
    values = packed.values.float()
    return values if packed.scales is None else values * packed.scales.unsqueeze(1)


@dataclass(frozen=True)
class SparseRows:
    """The largest entries of each row.

    Attributes:
        columns: Where they stand, [N, K], uint16 where N allows it, else int32.
        values: The entries, [N, K].
        num_columns: Width of the full rows.
    """

    columns: Tensor
    values: Packed
    num_columns: int


def keep_largest(matrix: Tensor, fraction: float, format: Format) -> SparseRows:
    """Keep the largest int(fraction * N) + 1 entries of each row of [N, N]: the sample itself is not counted.

    FLESD's ablation on the similarities that are kept (1, 10, 20, 50 %); counted as in its code.
    """
    num_columns = matrix.shape[1]
    kept = min(int(fraction * num_columns) + 1, num_columns)
    values, columns = matrix.topk(kept, dim=1)
    width = torch.uint16 if num_columns <= 2**16 else torch.int32
    return SparseRows(columns.to(width), pack(values, format), num_columns)


def fill_rows(sparse: SparseRows) -> Tensor:
    """Restore full rows [N, N]; entries that were not sent are 0."""
    full = torch.zeros(len(sparse.columns), sparse.num_columns, device=sparse.columns.device)
    return full.scatter_(1, sparse.columns.long(), unpack(sparse.values))


def upper_triangle(matrix: Tensor, offset: int = 0) -> Tensor:
    """Read the entries of a square matrix [N, N] on its `offset`-th diagonal and above, row by row."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix), offset, device=matrix.device)
    return matrix[rows, columns]


def from_triangle(packed: Tensor, offset: int = 0) -> Tensor:
    """Restore a matrix [N, N] from its upper triangle; other entries are 0."""
    width = (math.isqrt(8 * len(packed) + 1) - 1) // 2 + offset
    matrix = packed.new_zeros(width, width)
    rows, columns = torch.triu_indices(width, width, offset, device=packed.device)
    matrix[rows, columns] = packed
    return matrix


def symmetric(packed: Tensor, offset: int = 0) -> Tensor:
    """Restore a symmetric matrix [N, N] from its upper triangle; with `offset` 1 its diagonal is 0."""
    upper = from_triangle(packed, offset)
    return upper + upper.triu(1).T
