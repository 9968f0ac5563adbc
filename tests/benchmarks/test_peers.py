"""The peers' suite: what its numbers are made of, without any peer."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table() -> ModuleType:
    """The module that makes the table; benchmarks are no installed package."""
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module("benchmarks.peers.table")
    finally:
        sys.path.remove(str(ROOT))


def row(bench: str, name: str, system: str, repeat: int = 0, **fields: Any) -> dict[str, Any]:
    case = {"cohort": 20, "actors": 2}
    return {"bench": bench, "name": name, "system": system, "repeat": repeat, "code": 0, "case": case, **fields}


def test_spread_is_the_median_and_the_range_of_repeats(table: ModuleType) -> None:
    assert table.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0, "repeats": 3}
    assert table.spread([]) is None


def test_a_repeat_counts_with_the_median_of_its_rounds(table: ModuleType) -> None:
    rows = [row("B1", "1 MB", "flower", repeat, seconds=[1.0, 2.0 + repeat, 9.0]) for repeat in range(3)]
    summary = table.summarise(rows)
    assert summary["B1 1 MB: s/round"]["flower"] == {"median": 3.0, "low": 2.0, "high": 4.0, "repeats": 3}


def test_cpu_efficiency_pairs_repeats_and_leaves_out_lost_ones(table: ModuleType) -> None:
    plain = [row("B2", "SimCLR", "plain", repeat, seconds=[4.0], core_seconds=6.0 + repeat) for repeat in range(2)]
    ours = [row("B2", "SimCLR", "rayfed-ssl", 1, seconds=[5.0], core_seconds=14.0)]
    lost = [row("B2", "SimCLR", "rayfed-ssl", 0, lost="killed")]
    summary = table.summarise([*plain, *ours, *lost])
    assert summary["B2: CPU efficiency against the plain loop"]["rayfed-ssl"]["median"] == 0.5
    assert summary["B2: clients/s"]["rayfed-ssl"]["median"] == 4.0


def test_the_ideal_makespan_is_bound_by_the_sum_and_by_the_longest_client(table: ModuleType) -> None:
    even = row("B5", "log-normal", "flower", seconds=[6.0], clients=[2.0, 2.0, 2.0, 2.0])
    uneven = row("B5", "log-normal", "flower", seconds=[6.0, 6.0], clients=[5.0, 1.0, 5.0, 1.0])
    assert table.ideal_ratio(even) == 6.0 / 4.0
    assert table.ideal_ratio(uneven) == 12.0 / 10.0


def test_memory_per_added_client_is_paired_by_repeat(table: ModuleType) -> None:
    few = row("B4", "100 clients", "rayfed-ssl", seconds=[1.0], pss_mb=800.0)
    many = row("B4", "1000 clients", "rayfed-ssl", seconds=[1.1], pss_mb=1250.0)
    summary = table.summarise([few, many])
    assert summary["B4: MB per added client"]["rayfed-ssl"]["median"] == 0.5
    assert summary["B4: s/round of 1,000 over 100"]["rayfed-ssl"]["median"] == 1.1


@pytest.mark.parametrize(
    ("killed", "told"),
    [
        ({"seconds": [1.0], "failed": [0, 0], "weights": "a"}, "0 0, exit 0, same hash"),
        ({"seconds": [1.0], "failed": [0, 5], "weights": "b"}, "0 5, exit 0, other hash"),
        ({"code": None}, "run lost, hung"),
        ({"code": 1}, "run lost, exit 1"),
    ],
)
def test_a_death_is_told_by_failed_clients_exit_code_and_hash(
    table: ModuleType, killed: dict[str, Any], told: str
) -> None:
    whole = row("B6", "undisturbed", "pfl", seconds=[1.0], failed=[0, 0], weights="a")
    assert table.summarise([whole, row("B6", "killed", "pfl", **killed)])["B6: failed clients by round"]["pfl"] == told


def test_distinct_cohorts_and_hashes_are_counted(table: ModuleType) -> None:
    runs = [("a", [1, 2]), ("a", [1, 2]), ("b", [2, 3])]
    rows = [
        row("B7", f"run {number}", "flower", seconds=[1.0], weights=weights, cohorts=[cohort, [7, 8]])
        for number, (weights, cohort) in enumerate(runs)
    ]
    assert table.summarise(rows)["B7: distinct first cohorts / hashes"]["flower"] == "2 / 2 of 3 runs"


def test_the_table_has_a_column_per_system_and_a_line_per_measurement(table: ModuleType) -> None:
    rows = [row("B1", "1 MB", "plain", repeat, seconds=[0.5 + repeat]) for repeat in range(3)]
    lines = table.markdown(table.summarise(rows)).splitlines()
    assert lines[0] == "| | plain loop | bare Ray | pfl-research | Flower | rayfed-ssl |"
    assert lines[2] == "| B1 1 MB: s/round | 1.5 (0.5 to 2.5) |  |  |  |  |"
