"""Our numbers are set against published ones of the same dataset and score, and against no others."""

from dataclasses import replace

import pytest

from rayfed_ssl.reports.reproduced import CellResult, ReproductionResults, describe
from rayfed_ssl.reproductions.comparable import unlike
from rayfed_ssl.reproductions.definition import load_reproduction, reproduction_names


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("flesd-figure4", (), {"cifar10 for cifar100"}),
        ("fedfoa-figure4", (), {"cifar10 for cifar100, knn for linear"}),
        ("fedfoa-figure5", ("data.name=parquet", "data.path=/x"), {"cifar10 for cifar100"}),
        ("fedca-table1", (), set()),
        ("fedca-table1", ("data.name=parquet", "data.path=/x"), set()),
        ("fedca-table1", ("data.name=digits",), {"digits for cifar10"}),
        ("fcl-table3", (), set()),
        ("fedca-table3", (), set()),
        ("flesd-figure2", (), set()),
        ("fedfoa-table3", (), set()),
    ],
)
def test_numbers_of_another_dataset_or_score_are_known(name: str, settings: tuple[str, ...], expected: set[str]):
    assert set(unlike(name, load_reproduction(name, "cpu"), settings).values()) == expected


def test_papers_sizes_are_of_what_was_published_but_for_the_monitors_curves():
    for name in reproduction_names():
        expected = {"knn for linear"} if name == "fedfoa-figure4" else set()
        assert set(unlike(name, load_reproduction(name, "paper"), ()).values()) == expected


def test_what_is_unlike_has_no_difference_and_no_part_in_the_order():
    reproduction = load_reproduction("fedca-table1", "cpu")
    first, second = (replace(cell, published=10.0) for cell in reproduction.cells[:2])
    cells = [CellResult.of(first, [], [1.0]), CellResult.of(second, [], [2.0], unlike="cifar10 for cifar100")]
    results = ReproductionResults.of(reproduction, cells)
    assert results.agreement.cells == 1
    assert [cell.difference for cell in results.cells] == [-9.0, None]
    assert describe(cells[1]) == "2.00 [10]"
    assert results.notes[-1].endswith("the published: cifar10 for cifar100.")
    assert results.notes[-1] in results.remarks()
