"""Growing tables: every row once, whatever is killed when, at a cost that does not grow."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.storage import tables
from rayfed_ssl.storage.tables import GrowingTable

SCHEMA = pa.schema([("round", pa.int32()), ("name", pa.string())])


def rows(*rounds: int) -> list[dict[str, object]]:
    return [{"round": round, "name": name} for round in rounds for name in ("a", "ß")]


def opened(directory: Path) -> GrowingTable:
    return GrowingTable(directory / "t.parquet", SCHEMA)


@pytest.fixture
def grown(tmp_path: Path) -> GrowingTable:
    """Round 0 in the Parquet file, rounds 1 to 3 in the journal."""
    table = opened(tmp_path)
    table.create(rows(0))
    for round in (1, 2, 3):
        table.append(rows(round))
    return table


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_rows_are_read_in_order_while_they_are_added(grown: GrowingTable, tmp_path: Path):
    assert grown.rows == opened(tmp_path).rows == rows(0, 1, 2, 3)
    grown.append(rows(4))
    assert grown.rows == opened(tmp_path).rows == rows(0, 1, 2, 3, 4)


def test_adding_rows_leaves_the_parquet_file_alone(grown: GrowingTable, tmp_path: Path):
    before = (tmp_path / "t.parquet").stat().st_ino
    sizes = []
    for round in range(4, 30):
        size = (tmp_path / "t.arrows").stat().st_size
        grown.append(rows(round))
        sizes.append((tmp_path / "t.arrows").stat().st_size - size)
    assert (tmp_path / "t.parquet").stat().st_ino == before
    assert len(set(sizes)) == 1


def test_merging_leaves_one_file_and_every_row(grown: GrowingTable, tmp_path: Path):
    grown.merge()
    assert files(tmp_path) == {"t.parquet"}
    assert pq.read_table(tmp_path / "t.parquet").to_pylist() == rows(0, 1, 2, 3)
    grown.append(rows(4))
    assert opened(tmp_path).rows == rows(0, 1, 2, 3, 4)


def test_whoever_is_killed_while_merging_leaves_every_row_once(grown: GrowingTable, tmp_path: Path):
    journal = (tmp_path / "t.arrows").read_bytes()
    grown.merge()
    (tmp_path / "t.arrows").write_bytes(journal)
    assert opened(tmp_path).rows == rows(0, 1, 2, 3)
    again = opened(tmp_path)
    again.append(rows(4))
    assert again.rows == opened(tmp_path).rows == rows(0, 1, 2, 3, 4)


def test_whoever_is_killed_while_cutting_back_leaves_what_was_or_what_shall_be(grown: GrowingTable, tmp_path: Path):
    journal = (tmp_path / "t.arrows").read_bytes()
    grown.truncate("round", 1)
    assert opened(tmp_path).rows == rows(0, 1)
    (tmp_path / "t.arrows").write_bytes(journal)
    assert opened(tmp_path).rows == rows(0, 1, 2, 3)
    opened(tmp_path).truncate("round", 1)
    assert opened(tmp_path).rows == rows(0, 1)
    assert files(tmp_path) == {"t.parquet"}


def test_a_journal_that_follows_rows_which_were_cut_back_counts_no_more(grown: GrowingTable, tmp_path: Path):
    journal = (tmp_path / "t.arrows").read_bytes()
    grown.truncate("round", -1)
    (tmp_path / "t.arrows").write_bytes(journal)
    assert opened(tmp_path).rows == []


def test_a_journal_that_was_cut_anywhere_gives_the_rounds_before_the_cut(tmp_path: Path):
    table = opened(tmp_path)
    table.create(rows(0))
    journal, ends = tmp_path / "t.arrows", []
    for round in (1, 2, 3):
        table.append(rows(round))
        ends.append(journal.stat().st_size)
    content = journal.read_bytes()
    for cut in range(len(content) + 1):
        journal.write_bytes(content[:cut])
        whole = sum(cut >= end for end in ends)
        assert opened(tmp_path).rows == rows(*range(whole + 1)), cut


def test_a_table_goes_on_after_a_cut(grown: GrowingTable, tmp_path: Path):
    journal = tmp_path / "t.arrows"
    journal.write_bytes(journal.read_bytes()[:-7])
    again = opened(tmp_path)
    again.append(rows(7))
    assert again.rows == opened(tmp_path).rows == rows(0, 1, 2, 7)


def test_other_columns_are_refused(tmp_path: Path):
    tables.write_table(tmp_path / "t.parquet", pa.table({"round": [1], "value": [2]}))
    with pytest.raises(ValueError, match="has columns round, value instead of round, name"):
        opened(tmp_path).load()


def test_what_can_be_read_of_a_damaged_table_stays(grown: GrowingTable, tmp_path: Path):
    opened(tmp_path).salvage()
    assert opened(tmp_path).rows == rows(0, 1, 2, 3)
    assert files(tmp_path) == {"t.parquet", "t.arrows"}  # nothing was wrong with it
    journal = (tmp_path / "t.arrows").read_bytes()
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    opened(tmp_path).salvage(rows(-1))
    assert opened(tmp_path).rows == rows(-1, 1, 2, 3)
    assert (tmp_path / "t.parquet.damaged").read_bytes() == b"PAR1 and no more"
    assert (tmp_path / "t.arrows.damaged").read_bytes() == journal


def test_what_was_put_aside_before_stays(grown: GrowingTable, tmp_path: Path):
    for content in (b"first", b"second", b"third"):
        (tmp_path / "t.parquet").write_bytes(content)
        opened(tmp_path).salvage()
    aside = [tmp_path / f"t.parquet.damaged{end}" for end in ("", "-2", "-3")]
    assert [path.read_bytes() for path in aside] == [b"first", b"second", b"third"]


def other_columns(path: Path) -> None:
    other = pa.schema([("x", pa.int8())], metadata={tables.AFTER: "8"})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, other) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([{"x": 1}], other))


@pytest.mark.parametrize(
    "spoil",
    [other_columns, lambda path: path.write_bytes(b"junk" * 100), Path.mkdir],
    ids=["of another table", "junk", "a directory"],
)
def test_what_is_no_journal_does_not_spoil_its_table(grown: GrowingTable, tmp_path: Path, spoil):
    grown.merge()
    spoil(tmp_path / "t.arrows")
    opened(tmp_path).salvage()
    assert opened(tmp_path).rows == rows(0, 1, 2, 3)
    assert files(tmp_path) == {"t.parquet", "t.arrows.damaged"}


@pytest.mark.parametrize("name", ["t.parquet", "t.arrows"])
def test_no_byte_that_is_turned_ends_in_more_than_lost_rows(grown: GrowingTable, tmp_path: Path, name: str):
    content = (tmp_path / name).read_bytes()
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for place in range(0, len(content), 5):
        for found in tmp_path.iterdir():
            found.unlink()
        for file, bits in whole.items():
            (tmp_path / file).write_bytes(bits)
        (tmp_path / name).write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        opened(tmp_path).salvage(rows(0))
        found_rows = opened(tmp_path).rows  # readable, whatever was lost
        if name == "t.parquet":
            assert found_rows == rows(0, 1, 2, 3), place  # a checksum tells; the journal has the rest


def test_a_table_that_cannot_be_read_now_is_left_as_it_is(grown: GrowingTable, tmp_path: Path, monkeypatch):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    for broken in ("pq.read_table", "pa.OSFile"):
        with monkeypatch.context() as patch:
            patch.setattr(f"rayfed_ssl.storage.tables.{broken}", refuse)
            with pytest.raises(PermissionError):
                opened(tmp_path).salvage()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_no_row_is_counted_twice_if_a_salvage_is_cut_short(grown: GrowingTable, tmp_path: Path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"?")
    with monkeypatch.context() as patch:
        patch.setattr(
            tables, "write_table", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(OSError, match="No space"):
            opened(tmp_path).salvage(rows(0))
    opened(tmp_path).salvage(rows(0))
    assert opened(tmp_path).rows == rows(0)
    assert files(tmp_path) == {"t.parquet", "t.parquet.damaged", "t.arrows.damaged"}
