"""Clients that are there in the data: writers in FEMNIST's layout, hospitals in a folder's and in the Hub's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl import Config, ConfigError
from rayfed_ssl.data.partitions import partition
from rayfed_ssl.engine.federation import Federation
from tests.data.pictures import pictures, png, write_folder

Open = Callable[..., Any]

WRITERS = ["f0003_41"] * 4 + ["f0001_41"] * 6 + ["f0002_03"] * 5
"""Of the pictures that are left to train on, in their order."""


def write_femnist(root: Path, writers: list[str]) -> None:
    """Write train and test in FEMNIST's layout: image, writer_id and character, whose names the schema has."""
    names = '{"info": {"features": {"character": {"names": ["0", "1", "A"], "_type": "ClassLabel"}}}}'
    for split, ids in (("train", writers), ("test", ["f0009_00"] * 3)):
        table = pa.table(
            {
                "image": [{"bytes": png(picture), "path": None} for picture in pictures(len(ids), 28, 28)],
                "writer_id": ids,
                "hsf_id": pa.array([4] * len(ids), pa.int64()),
                "character": pa.array([row % 3 for row in range(len(ids))], pa.int64()),
            }
        )
        root.mkdir(exist_ok=True)
        pq.write_table(table.replace_schema_metadata({"huggingface": names}), root / f"{split}-00000-of-00001.parquet")


def config(data: str, root: Path, number: int, column: str, *settings: str) -> Config:
    return Config.load(
        "fedsimclr",
        f"data={{name: {data}, path: {root}, size: 28}}",
        f"clients.number={number}",
        f"partition={{name: column, column: {column}}}",
        *settings,
    )


def hospitals(root: Path, *, test: str = "test/tumor") -> None:
    """Write DIR/train/SITE/CLASS and DIR/test."""
    write_folder(
        root,
        [f"train/{site}/{label}/{n}.png" for site in ("a", "b b", "c") for label in ("ok", "tumor") for n in range(3)],
    )
    write_folder(root, [f"{test}/0.png", f"{test}/1.png"])


def test_each_writer_is_a_client_and_has_its_name(tmp_path: Path) -> None:
    write_femnist(tmp_path / "femnist", WRITERS)
    federation = Federation.open(config("parquet", tmp_path / "femnist", 3, "writer_id"))
    assert federation.client_names == {0: "f0001_41", 1: "f0002_03", 2: "f0003_41"}
    assert {client: rows.tolist() for client, rows in federation.shards.items()} == {
        0: [4, 5, 6, 7, 8, 9],
        1: [10, 11, 12, 13, 14],
        2: [0, 1, 2, 3],
    }
    assert federation.dataset.train.classes == ("0", "1", "A")
    again = Federation.open(config("parquet", tmp_path / "femnist", 3, "writer_id"))  # from its store
    assert again.client_names == federation.client_names
    assert federation.client_name(2) == "client 2 f0003_41"


def test_more_writers_than_clients_are_dealt_and_the_run_says_so(tmp_path: Path) -> None:
    write_femnist(tmp_path / "femnist", WRITERS)
    federation = Federation.open(config("parquet", tmp_path / "femnist", 2, "writer_id"))
    assert sorted(federation.client_names.values())[0] == "2 values"
    assert (
        "3 values of partition.column=writer_id are dealt at random to 2 clients: set clients.number=3 for a client each"
        in federation.notes
    )


@pytest.mark.parametrize("test", ["test/tumor", "test/a/tumor"])
def test_a_folder_has_its_sites_above_its_classes(test: str, tmp_path: Path) -> None:
    hospitals(tmp_path / "scans", test=test)
    federation = Federation.open(config("folder", tmp_path / "scans", 3, "site"))
    assert federation.client_names == {0: "a", 1: "b b", 2: "c"}
    train = federation.dataset.train
    assert train.classes == ("ok", "tumor")
    assert all(np.bincount(train.labels[rows]).tolist() == [3, 3] for rows in federation.shards.values())
    assert federation.dataset.test.labels.tolist() == [1, 1]
    assert not any("passed over" in note for note in federation.notes)


def test_a_column_of_the_hubs_numbers_has_the_names_that_these_stand_for(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["ok", "ill"]),
            "hospital": datasets.ClassLabel(names=["oslo", "lima"]),
        }
    )
    rows = {
        "image": [{"bytes": png(p), "path": None} for p in pictures(12, 28, 28)],
        "label": [0, 1] * 6,
        "hospital": [0, 1, 1] * 4,
    }
    split = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": split, "test": split.select(range(4))}).save_to_disk(tmp_path / "scans")
    federation = Federation.open(config("hub", tmp_path / "scans", 2, "hospital", "data.label=label"))
    assert federation.client_names == {0: "lima", 1: "oslo"}
    assert federation.shards[1].tolist() == [0, 3, 6, 9]


def by_column(groups: list[int], number: int, **fields: Any) -> tuple[np.ndarray, ...]:
    names = [f"site {value}" for value in range(max(groups) + 1)]
    labels = np.zeros(len(groups), np.int64)
    return partition("column", labels, number, 0, groups=np.array(groups), group_names=names, column="site", **fields)


def test_values_of_few_samples_are_left_out() -> None:
    shards = by_column([0, 0, 1, 2, 2, 2, 3], 2, min_samples=2)
    assert [shard.tolist() for shard in shards] == [[0, 1], [3, 4, 5]]


@pytest.mark.parametrize(
    ("groups", "number", "fields", "message"),
    [
        ([2, 2, 2], 1, {}, "partition.column=site has one value in all 3 samples"),
        ([0, 1, 2], 3, {}, "partition.column=site has another value in each of 3 samples"),
        ([0, 0, 1, 1], 3, {}, "has 2 values for clients.number=3: set clients.number=2 or lower"),
        (
            [0, 0, 1],
            2,
            {"min_samples": 2},
            "has 1 values of 2 samples or more for clients.number=2: set clients.number=1",
        ),
        ([0, 0, 1], 2, {"min_samples": 9}, "has 0 values of 9 samples or more .*: lower partition.min_samples"),
        ([0, 0, 1, 2, 2], 3, {}, "has a single sample of 'site 1', .*partition.min_samples=2 and clients.number=2"),
    ],
)
def test_columns_that_divide_nothing_or_leave_clients_without_samples_are_refused(
    groups: list[int], number: int, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        by_column(groups, number, **fields)


def test_a_column_that_is_not_there_has_the_nearest_name(tmp_path: Path) -> None:
    write_femnist(tmp_path / "femnist", WRITERS)
    with pytest.raises(ConfigError, match=r"partition\.column: .* has no column 'writer': did you mean 'writer_id'\?"):
        Federation.open(config("parquet", tmp_path / "femnist", 3, "writer"))
    with pytest.raises(ConfigError, match=r"its column 'image' holds struct.*: it takes numbers or strings"):
        Federation.open(config("parquet", tmp_path / "femnist", 3, "image"))
    write_folder(tmp_path / "flat", [f"{label}/{n}.png" for label in ("ok", "tumor") for n in range(6)])
    with pytest.raises(ConfigError, match=r"no pictures in .*/SITE/CLASS: partition\.column=site takes the first dir"):
        Federation.open(config("folder", tmp_path / "flat", 3, "site"))
