import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.data.partitions import partition

LABELS = np.arange(12) % 3
LISTS = [[7, 0, 3], [11, 2], [5, 4, 9, 1]]


def write(path: Path, content: object) -> Path:
    if path.suffix == ".json":
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=4))
    else:
        pq.write_table(pa.table(content), path)
    return path


def divided(path: Path) -> list[list[int]]:
    return [shard.tolist() for shard in partition("file", LABELS, 3, 0, path=path)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("split.json", LISTS),
        ("split.json", {"2": LISTS[2], "0": LISTS[0], "1": LISTS[1]}),
        ("split.json", {"9": LISTS[1], "10": LISTS[2], "1": LISTS[0]}),
        ("split.JSON", str(LISTS)),
        ("split.json", {"b": LISTS[1], "a": LISTS[0], "c": LISTS[2]}),
        ("split.parquet", {"client": [1, 0, 2, 2, 0, 1, 2, 2, 0], "index": [11, 7, 5, 4, 0, 2, 9, 1, 3]}),
        (
            "split.parquet",
            {"client": pa.array([*"aaabbcccc"]).dictionary_encode(), "index": [7, 0, 3, 11, 2, 5, 4, 9, 1]},
        ),
        ("split.parquet", {"client": [*"aaabb", *"cccc"], "index": [7, 0, 3, 11, 2, 5, 4, 9, 1]}),
        (
            "split.parquet",
            {"index": [7, 0, 3, 11, 2, 5, 4, 9, 1], "x": [0.0] * 9, "client": ["9"] * 3 + ["10"] * 2 + ["11"] * 4},
        ),
    ],
)
def test_a_file_gives_each_client_its_samples(tmp_path, name, content):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        write(path, content)
    assert divided(path) == [sorted(rows) for rows in LISTS]


MISTAKES = {
    "number": ([[0], [1]], "has 2 clients, but clients.number is 3: set clients.number=2"),
    "float": ([[0], [1, 2.0], [3]], "for each client: client 1, entry 1: input should be a valid integer, got '2.0'"),
    "truth": ([[0], [True], [3]], "client 1, entry 0: input should be a valid integer, got 'True'"),
    "huge": ([[0], [2**64], [3]], "client 1, entry 0: input should be less than"),
    "flat": ([0, 1, 2], "client 0: input should be a valid list, got '0'"),
    "number alone": (7, "must hold a list of indices for each client: the file: input should be a valid list, got '7'"),
    "no JSON": ("[[0], [1", r"cannot be read as JSON \("),
    "deep": ("[" * 100_000 + "]" * 100_000, r"cannot be read as JSON \(recursion limit"),
    "columns": ({"client": [0, 1], "row": [1, 2]}, "no column 'index', but client, row.: write the columns"),
    "null": ({"client": [0, 1], "index": [1, None]}, "as index in every row, got int64 and int64, or empty cells"),
    "text": ({"client": [0, 1], "index": ["1", "2"]}, "an integer as index in every row, got int64 and string"),
    "float clients": ({"client": [9.0, 10.0], "index": [1, 2]}, "an integer or a string as client .* got double and int64"),
    "list clients": ({"client": [[0], [1]], "index": [1, 2]}, "its column 'client' holds list<"),
    "struct clients": ({"client": [{"a": 0}, {"a": 1}], "index": [1, 2]}, "its column 'client' holds struct<"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0], [1], [3, 12]], "partition file must give rows from 0 to 11, got 0 to 12"),
        ({"a": [0], "b": [1], "c": [-1]}, "must give rows from 0 to 11, got -1 to 1"),
        ([[0, 4], [1], [3, 4]], "partition file gives 1 rows more than once"),
    ],
)
def test_rows_that_are_not_there_or_come_twice_are_refused(tmp_path, lists, message):
    with pytest.raises(ValueError, match=message):
        divided(write(tmp_path / "split.json", lists))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_file_is_one_line(tmp_path, mistake):
    content, message = MISTAKES[mistake]
    parquet = isinstance(content, dict) and "client" in content
    path = write(tmp_path / ("split.parquet" if parquet else "split.json"), content)
    with pytest.raises(ValueError, match=message) as caught:
        divided(path)
    assert len(str(caught.value).splitlines()) == 1
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    for name in ("none.json", "none.parquet"):
        with pytest.raises(ValueError, match=re.escape(f"{tmp_path / name} cannot be read (")):
            divided(tmp_path / name)
    (tmp_path / "split.csv").write_text("client,index\n0,1\n")
    with pytest.raises(
        ValueError, match=re.escape("split.csv is neither .json nor a Parquet file of numbers and strings (")
    ):
        divided(tmp_path / "split.csv")
