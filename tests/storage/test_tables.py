"""Growing tables: every row once, wherever a process is killed, at a cost that does not grow."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.foreign.parquet import table_of
from rayfed_ssl.storage import tables
from rayfed_ssl.storage.tables import TABLES, GrowingTable

SCHEMA = pa.schema([("round", pa.int32()), ("name", pa.string())])


def rows(*rounds: int) -> list[dict[str, object]]:
    return [{"round": round, "name": name} for round in rounds for name in ("a", "ß")]


def opened(directory: Path) -> GrowingTable:
    return GrowingTable(directory / "t.parquet", SCHEMA)


@pytest.fixture
def grown(tmp_path: Path) -> GrowingTable:
    """Round 0 in the merged file, rounds 1 to 3 in files of their own."""
    table = opened(tmp_path)
    table.create(rows(0))
    for round in (1, 2, 3):
        table.append(rows(round))
    return table


def test_rows_are_read_in_order_while_they_are_appended(grown: GrowingTable, tmp_path: Path):
    assert grown.rows == opened(tmp_path).rows == rows(0, 1, 2, 3)
    opened(tmp_path).append(rows(4))
    assert opened(tmp_path).rows == rows(0, 1, 2, 3, 4)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_table_of_rows_is_what_pyarrow_makes_of_them(number: int):
    schema = pa.schema([("i", pa.int32()), ("n", pa.int64()), ("s", pa.string()), ("x", pa.float64())])
    values = [
        {"x": -0.5, "s": "", "n": 1 << 40, "i": -7},
        {"x": 1e300, "s": "ß€", "n": -1, "i": 0},
        dict.fromkeys("xni", 2),
    ]
    values[2]["s"] = "last"
    made = table_of(values[:number], schema)
    made.validate(full=True)
    assert made.equals(pa.Table.from_pylist(values[:number], schema=schema))


def test_appending_touches_no_other_file(grown: GrowingTable, tmp_path: Path):
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.parquet")}
    for round in range(4, 30):
        grown.append(rows(round))
    assert {path: path.stat().st_ino for path in before} == before
    sizes = [path.stat().st_size for path in (tmp_path / TABLES).iterdir()]
    assert max(sizes) - min(sizes) < 10  # numbers compress a little differently


def test_merging_leaves_one_file_and_every_row(grown: GrowingTable, tmp_path: Path):
    grown.merge()
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    assert pq.read_table(tmp_path / "t.parquet").to_pylist() == rows(0, 1, 2, 3)
    grown.append(rows(4))
    assert opened(tmp_path).rows == rows(0, 1, 2, 3, 4)


@pytest.mark.parametrize("method", ["merge", "truncate"])
def test_a_merge_that_was_killed_before_it_removed_files_counts_no_row_twice(
    grown: GrowingTable, tmp_path: Path, method: str
):
    files = {path: path.read_bytes() for path in (tmp_path / TABLES).iterdir()}
    grown.merge() if method == "merge" else grown.truncate(1)
    expected = rows(0, 1, 2, 3) if method == "merge" else rows(0, 1)
    (tmp_path / TABLES).mkdir()
    for path, content in files.items():
        path.write_bytes(content)
    assert opened(tmp_path).rows == expected
    again = opened(tmp_path)
    again.append(rows(4))
    assert again.rows == opened(tmp_path).rows == expected + rows(4)


def test_truncating_removes_later_rounds(grown: GrowingTable, tmp_path: Path):
    grown.truncate(1)
    assert grown.rows == opened(tmp_path).rows == rows(0, 1)
    grown.append(rows(2))
    assert opened(tmp_path).rows == rows(0, 1, 2)


@pytest.mark.parametrize("name", ["t.parquet", "tables/t-000002.parquet"])
def test_a_damaged_file_is_named(grown: GrowingTable, tmp_path: Path, name: str):
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1])
    for call in (opened(tmp_path).read, lambda: opened(tmp_path).truncate(3)):
        with pytest.raises(ConfigError, match=rf"{name} is damaged \(.*\): restore it from a copy"):
            call()


def test_a_reader_counts_each_row_once_while_a_writer_merges(
    grown: GrowingTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reader = opened(tmp_path)
    monkeypatch.setattr(
        reader, "_parts", lambda merged, list_parts=reader._parts: [list_parts(merged), grown.merge()][0]
    )
    assert reader.rows == rows(0, 1, 2, 3)


def test_other_columns_are_refused(tmp_path: Path):
    tables.write_table(tmp_path / "t.parquet", pa.table({"round": [1], "value": [2]}))
    with pytest.raises(ConfigError, match=r"has columns .*'value' .* instead of .*'name'"):
        opened(tmp_path).read()


def test_many_rows_of_few_bytes_are_refused_before_they_are_unpacked(tmp_path: Path):
    rows = 2_900_000
    pq.write_table(pa.table({"round": pa.array(np.ones(rows, np.int32)), "name": ["x"] * rows}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=r"it has 2900000 rows, more than the \d+ that it may have"):
        opened(tmp_path).read()


def test_a_table_of_another_codec_is_refused_before_a_page_is_unpacked(tmp_path: Path):
    long = pa.table({"round": pa.array([1], pa.int32()), "name": ["x" * 10_000_000]})
    pq.write_table(long, tmp_path / "t.parquet", compression="zstd")
    with pytest.raises(ConfigError, match=r"compressed by ZSTD, and the tables of runs by snappy"):
        opened(tmp_path).read()
