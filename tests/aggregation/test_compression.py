"""Compression against naive loops: error bounds, what is kept, and bytes."""

import pytest
import torch
from torch import Tensor

from rayfed_ssl.aggregation.compression import (
    fill_rows,
    from_triangle,
    keep_largest,
    pack,
    symmetric,
    unpack,
    upper_triangle,
)
from rayfed_ssl.methods import FLESD, flesd
from rayfed_ssl.methods.flesd import Upload
from rayfed_ssl.trees import nbytes
from tests.tensors import rows, unit_rows


def values() -> Tensor:
    """Rows of different magnitudes, one of zeros."""
    return rows(5, 7, 0).float() * torch.tensor([1.0, 1e-3, 0.0, 300.0, 0.1])[:, None]


def test_fp32_is_exact():
    assert torch.equal(unpack(pack(values(), "fp32")), values())


def test_fp16_errs_by_half_a_unit_in_the_last_of_11_places():
    original = values()
    error = (unpack(pack(original, "fp16")) - original).abs()
    # Below 2^-14 numbers are subnormal with an absolute spacing of 2^-24.
    assert bool((error <= (original.abs() * 2.0**-11).clamp_min(2.0**-25)).all())
    assert bool((error > 0).any())


def test_int8_errs_by_half_a_127th_of_the_rows_largest():
    original = values()
    error = (unpack(pack(original, "int8")) - original).abs()
    bound = original.abs().amax(1, keepdim=True) / 127 / 2
    assert bool((error <= bound * (1 + 1e-5)).all())  # the scale itself is rounded to float32
    assert bool((error[0] > bound[0] / 4).any())


def test_int8_uses_levels_from_minus_127_to_127_and_restores_zeros():
    packed = pack(torch.tensor([[-2.0, 2.0, 0.0, 1.0]]), "int8")
    assert packed.values.tolist() == [[-127, 127, 0, 64]]
    assert unpack(pack(values(), "int8"))[2].tolist() == [0.0] * 7


def symmetric_matrix(num: int) -> Tensor:
    return flesd.similarity(unit_rows(num, 3, 1).float())


@pytest.mark.parametrize("num", [1, 2, 6])
def test_a_triangle_is_read_row_by_row_and_restored_exactly(num: int):
    matrix = symmetric_matrix(num)
    for offset in (0, 1):
        triangle = upper_triangle(matrix, offset)
        assert triangle.tolist() == [float(matrix[i, j]) for i in range(num) for j in range(i + offset, num)]
        assert torch.equal(from_triangle(triangle, offset), matrix.triu(offset))
        restored = symmetric(triangle, offset)
        assert torch.equal(restored, restored.T)
        assert torch.equal(restored.triu(offset), matrix.triu(offset))


@pytest.mark.parametrize(("fraction", "kept"), [(0.01, 1), (0.1, 2), (0.2, 3), (0.5, 6), (0.99, 10), (1.0, 10)])
def test_the_largest_of_each_row_are_kept_and_the_rest_is_zero(fraction: float, kept: int):
    matrix = symmetric_matrix(10)
    sparse = keep_largest(matrix, fraction, "fp32")
    filled = fill_rows(sparse)
    assert sparse.columns.shape == (10, kept)
    for i, row in enumerate(matrix.tolist()):
        largest = sorted(range(10), key=lambda j, row=row: -row[j])[:kept]
        assert filled[i].tolist() == [value if j in largest else 0.0 for j, value in enumerate(row)]


@pytest.mark.parametrize(("num", "dtype"), [(2**16, torch.uint16), (2**16 + 1, torch.int32)], ids=["narrow", "wide"])
def test_columns_are_as_narrow_as_their_number_allows(num: int, dtype: torch.dtype):
    matrix = torch.zeros(1, num)
    matrix[0, -1] = 1.0
    sparse = keep_largest(matrix, 1e-9, "fp32")
    assert sparse.columns.dtype == dtype
    assert sparse.columns.long().tolist() == [[num - 1]]
    assert float(fill_rows(sparse)[0, -1]) == 1.0


FORMS = {
    "representations": (FLESD(), 6 * 3 * 4),
    "representations int8": (FLESD(upload_format="int8"), 6 * 3 + 6 * 4),
    "similarities": (FLESD(upload="similarities"), 15 * 4),
    "similarities fp16": (FLESD(upload="similarities", upload_format="fp16"), 15 * 2),
    "similarities int8": (FLESD(upload="similarities", upload_format="int8"), 15 + 4),
    "largest": (FLESD(upload="similarities", keep=0.4), 6 * 3 * (2 + 4) + 8),
    "largest int8": (FLESD(upload="similarities", keep=0.4, upload_format="int8"), 6 * 3 * (2 + 1) + 6 * 4 + 8),
}


def representations() -> Tensor:
    return unit_rows(6, 3, 2).float()


@pytest.mark.parametrize("name", FORMS)
def test_bytes_of_an_upload(name: str):
    method, size = FORMS[name]
    assert nbytes(method.pack(representations())) == size


@pytest.mark.parametrize("name", FORMS)
def test_an_upload_holds_one_form_and_restores_the_similarities(name: str):
    method, _ = FORMS[name]
    upload = method.pack(representations())
    assert sum(getattr(upload, field) is not None for field in Upload.__dataclass_fields__) == 1
    matrix, restored = flesd.similarity(representations()), method.unpack(upload)
    if upload.largest_similarities is not None:
        matrix = torch.where(restored != 0, matrix, 0.0)
        assert bool((restored != 0).sum(1).eq(3).all())
    # fp32: rounding; fp16 2^-11; int8 of unit rows: 3 products of values in [-1, 1] that err by 1/254 each.
    bound = {"fp32": 1e-6, "fp16": 2.0**-11, "int8": 2 * 3 / 254}[method.upload_format]
    assert float((restored - matrix).abs().max()) <= bound
