"""Hugging Face datasets, torchvision's by name, and clients by a column of the data."""

import json
import os
import shutil
import sys
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision
from PIL import Image

from rayfed_ssl.data import hub
from rayfed_ssl.data.image_store import open_store
from rayfed_ssl.data.partitions import by_column
from rayfed_ssl.data.torch_datasets import keep
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from tests.data.pictures import channels_first, pictures, png

PIXELS, TEST_PIXELS = pictures(12, 8, 8, 3), pictures(4, 8, 8, 3)
LABELS = [number % 3 for number in range(12)]
HOSPITALS = ["north", "south", "east", "north", "south", "west"] * 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A dataset that save_to_disk has written: two splits, two columns of numbers, one of names."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "scan": datasets.Image(),
            "grade": datasets.ClassLabel(names=["low", "middle", "high"]),
            "age": datasets.Value("int64"),
            "hospital": datasets.Value("string"),
        }
    )

    def split(pixels, hospitals):
        rows = {
            "scan": [{"bytes": png(picture), "path": None} for picture in pixels],
            "grade": LABELS[: len(pixels)],
            "age": list(range(len(pixels))),
            "hospital": hospitals,
        }
        return datasets.Dataset.from_dict(rows, features=features)

    path = tmp_path_factory.mktemp("hub") / "scans"
    both = {"train": split(PIXELS, HOSPITALS), "validation": split(TEST_PIXELS, HOSPITALS[:4])}
    datasets.DatasetDict(both).save_to_disk(str(path))
    return path


def test_a_directory_of_save_to_disk_is_read_as_it_is(saved, opened):
    dataset = opened("hub", path=saved)
    assert np.array_equal(dataset.train.images, channels_first(PIXELS))
    assert np.array_equal(dataset.test.images, channels_first(TEST_PIXELS))
    assert dataset.train.labels.tolist() == LABELS
    assert dataset.train.classes == ("low", "middle", "high")
    assert dataset.train.groups is None


def test_columns_can_be_named(saved, opened):
    dataset = opened("hub", path=saved, image="scan", label="age", train_limit=5)
    assert len(set(dataset.train.labels.tolist())) == 5
    with pytest.raises(ValueError, match=r"data.label: .* has no column 'graad': did you mean 'grade'"):
        opened("hub", path=saved, label="graad")
    with pytest.raises(ValueError, match=r"partition.column: .* has no column 'clinic': choose from age, grade"):
        opened("hub", path=saved, group="clinic")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5] * 12, r"are integers or strings, got 0.5: name another column$"),
        ([["a"]] * 12, r"are integers or strings, got list<"),
        ([{"bytes": b"x"}] * 12, r"are integers or strings, got struct<"),
        ([10**9 + row for row in range(12)], r"numbers up to 1000000011 in .* are no classes: name the column of"),
    ],
)
def test_a_column_that_holds_no_classes_is_refused(tmp_path, opened, values, message):
    rows = {"image": [png(picture) for picture in PIXELS], "what": values}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=rf"^data.label: .*{message}"):
        opened("parquet", path=tmp_path, label="what", image="image")


def test_splits_whose_classes_differ_in_type_are_refused(tmp_path, opened):
    for name, labels in (("train", [0, 1] * 6), ("test", ["a", "b"] * 6)):
        pq.write_table(
            pa.table({"image": [png(picture) for picture in PIXELS], "label": labels}), tmp_path / f"{name}.parquet"
        )
    with pytest.raises(ValueError, match=r"^data.label: classes of .* are strings and integers: use one of them"):
        opened("parquet", path=tmp_path)


def test_a_column_that_holds_no_pictures_is_refused(saved, tmp_path, opened):
    with pytest.raises(ValueError, match=r"^data.image: 'age' of .* is no picture column"):
        opened("hub", path=saved, image="age")
    rows = {"image": [png(picture) for picture in PIXELS], "label": LABELS, "file": ["x.png"] * 12}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"^data.image: 'file' of .* is no picture column \(struct with bytes"):
        opened("parquet", path=tmp_path, image="file")


def test_a_row_of_the_hub_without_a_picture_is_unreadable(tmp_path, opened):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"scan": datasets.Image(), "grade": datasets.ClassLabel(names=["low", "high"])})
    pictures = [None if row == 3 else {"bytes": png(PIXELS[row]), "path": None} for row in range(12)]
    rows = {"scan": pictures, "grade": [row % 2 for row in range(12)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "scans"))
    with pytest.raises(ValueError, match=r"^1 of \d+ pictures are unreadable: row 3 \(it is empty"):
        opened("hub", path=tmp_path / "scans", test_fraction=0.25)


def overwrite_offsets(file):
    """Let every picture begin far behind the file's end."""
    pictures = pa.ipc.open_stream(file.read_bytes()).read_all()["scan"].chunk(0).field("bytes")
    offsets = pictures.buffers()[1].to_pybytes()
    changed = (np.arange(len(offsets) // 4, dtype=np.int32) * 16 + 0x7F000000).tobytes()
    file.write_bytes(file.read_bytes().replace(offsets, changed, 1))


def compress(file):
    table = pa.ipc.open_stream(file.read_bytes()).read_all()
    with pa.ipc.new_stream(str(file), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)


def many_rows(file):
    """Have a thousand million rows without a byte of them."""
    ends, values = pa.array([10**9], pa.int32()), pa.array([0])
    table = pa.table({"grade": pa.RunEndEncodedArray.from_arrays(ends, values)})
    with pa.ipc.new_stream(str(file), table.schema) as writer:
        writer.write_table(table)


def replace_by_pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (overwrite_offsets, "Struct child array #0 invalid: Invalid: .* binary offset"),
        (compress, "is compressed, and save_to_disk compresses nothing"),
        (many_rows, r"says that it has 10{9} rows in \d+ bytes"),
        (replace_by_pipe, "it is no regular file"),
    ],
)
def test_an_arrow_file_is_checked_before_its_pictures_are_read(saved, tmp_path, opened, change, message):
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    change(copy / "train" / "data-00000-of-00001.arrow")
    with pytest.raises(ValueError, match=rf"^data.path={copy} is no complete directory of save_to_disk \(.*{message}"):
        opened("hub", path=copy)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("dataset_dict.json", {"splits": ["../scans/train"]}),
        ("dataset_dict.json", {"splits": [".."]}),
        ("dataset_dict.json", {"splits": ["x::http://127.0.0.1:9/y"]}),
        ("train/state.json", {"_data_files": [{"filename": "/dev/zero"}]}),
    ],
)
def test_a_directory_names_only_files_of_its_own(saved, tmp_path, opened, file, content):
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    (copy / file).write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"is no complete directory of save_to_disk \(it names '.*', which lies outside"
    ):
        opened("hub", path=copy)


def test_a_column_travels_with_the_samples_and_changes_no_fingerprint(saved, opened):
    plain, grouped = opened("hub", path=saved), opened("hub", path=saved, group="hospital")
    assert plain.fingerprint == grouped.fingerprint
    for dataset in (grouped, open_store(grouped.train.path)):
        assert [sorted({*HOSPITALS})[number] for number in dataset.train.groups] == HOSPITALS
    some = opened("hub", path=saved, group="hospital", train_limit=6)
    place = {picture.tobytes(): name for picture, name in zip(channels_first(PIXELS), HOSPITALS, strict=True)}
    names = [place[picture.tobytes()] for picture in some.train.images]
    assert [sorted({*names})[number] for number in some.train.groups] == names


def test_a_column_of_a_parquet_file_travels_too(tmp_path, opened):
    rows = {"image": [png(picture) for picture in PIXELS], "label": LABELS, "site": [10, 9, 2] * 4}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    dataset = opened("parquet", path=tmp_path, label="label", group="site", test_fraction=0.25)
    wanted = {png_pixels.tobytes(): site for png_pixels, site in zip(channels_first(PIXELS), rows["site"], strict=True)}
    sites = [wanted[picture.tobytes()] for picture in dataset.train.images]
    assert [[2, 9, 10][number] for number in dataset.train.groups] == sites


def test_each_value_is_a_client_or_values_are_dealt():
    groups = np.array([2, 0, 1, 0, 3, 2, 1, 3])
    labels = np.zeros(8, np.int64)
    assert [shard.tolist() for shard in by_column(labels, 4, 0, groups, column="site")] == [
        [1, 3],
        [2, 6],
        [0, 5],
        [4, 7],
    ]
    dealt = by_column(labels, 2, 0, groups, column="site")
    assert sorted(row for shard in dealt for row in shard.tolist()) == list(range(8))
    assert [len(set(groups[shard])) for shard in dealt] == [2, 2]
    assert not set(groups[dealt[0]]) & set(groups[dealt[1]])
    other = {tuple(by_column(labels, 2, seed, groups, column="site")[0].tolist()) for seed in range(9)}
    assert len(other) > 1
    with pytest.raises(
        ValueError, match=r"partition.column=site has 4 values for clients.number=5: set clients.number=4"
    ):
        by_column(labels, 5, 0, groups, column="site")


def test_clients_of_a_run_are_the_values_of_a_column(saved, tiny):
    config = tiny(
        "fedavg",
        f"data={{name: hub, path: {saved}}}",
        "partition={name: column, column: hospital}",
        "clients.number=3",
        "public=null",
    )
    federation = Federation.open(config)
    hospitals = [{HOSPITALS[row] for row in rows} for rows in federation.shards.values()]
    assert sorted(map(len, hospitals)) == [1, 1, 2]
    assert not set.intersection(*hospitals)
    digits = tiny("fedavg", "partition={name: column, column: hospital}")
    with pytest.raises(
        ConfigError, match=r"dataset digits has no columns, got hospital: take parquet, hub, folder, or another"
    ):
        Federation.open(digits)


def test_a_name_without_the_hub_and_a_missing_library_cost_one_line(opened, monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")

    def offline(name):
        raise ConnectionError(f"Couldn't reach {name!r} on the Hub (offline)")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ValueError, match=r"^data.path=owner/name is neither .*offline\)\): write it with save_to_disk"):
        opened("hub", path=Path("owner/name"))
    told = Event()
    monkeypatch.setattr(hub, "SILENCE", 0.01)
    monkeypatch.setattr(
        "warnings.warn", lambda line: told.set() if "fetching owner/name from the Hub" in line else None
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name: told.wait(20) and offline(name))
    with pytest.raises(ValueError, match="offline"):
        opened("hub", path=Path("owner/name"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'rayfed-ssl\[hub\]'$"):
        opened("hub", path=tmp_path)


def test_any_dataset_of_torchvision_opens_by_its_class(opened, tmp_path, monkeypatch):
    class Pets(torchvision.datasets.VisionDataset):
        """Two splits, of which the first is called trainval, as OxfordIIITPet's."""

        def __init__(self, root, split="trainval", download=False):
            super().__init__(root)
            self.rows = {"trainval": PIXELS, "test": TEST_PIXELS}[split]
            if not (tmp_path / "pets" / "file").exists():
                if not download:
                    raise RuntimeError("Dataset not found. You can use download=True")
                (tmp_path / "pets" / "file").write_text("x")

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, row):
            return Image.fromarray(self.rows[row]), row % 3

    monkeypatch.setattr(torchvision.datasets, "OxfordIIITPet", Pets)
    (tmp_path / "pets").mkdir()
    with pytest.raises(
        ValueError, match=r"no complete copy of OxfordIIITPet in .*data.download=true to fetch it \(Dataset"
    ):
        opened("torchvision:OxfordIIITPet", path=tmp_path / "pets")
    first = opened("torchvision:OxfordIIITPet", path=tmp_path / "pets", download=True)
    assert np.array_equal(first.train.images, channels_first(PIXELS))
    assert np.array_equal(first.test.images, channels_first(TEST_PIXELS))
    assert opened("torchvision:OxfordIIITPet", path=tmp_path / "pets").train.path == first.train.path
    with pytest.raises(ValueError, match="torchvision has no dataset 'SVNH': did you mean 'SVHN'"):
        opened("torchvision:SVNH", path=tmp_path)
    with pytest.raises(ValueError, match=r"CocoDetection needs annFile: write a function .*data.name=my_module:my_fu"):
        opened("torchvision:CocoDetection", path=tmp_path)
    with pytest.raises(ValueError, match=r"has no default place: set data.path"):
        opened("torchvision:SVHN")


def test_torch_s_advice_to_run_what_a_file_holds_is_not_handed_on(tmp_path, opened):
    (tmp_path / "MNIST" / "processed").mkdir(parents=True)
    for file in ("training.pt", "test.pt"):
        torch.save(Path("objects"), tmp_path / "MNIST" / "processed" / file)
    with pytest.raises(
        ConfigError, match=r"^a file of MNIST in .* in place of tensors, which would run code: get it anew$"
    ):
        opened("torchvision:MNIST", path=tmp_path)


def test_classes_that_are_no_integers_are_refused():
    with pytest.raises(ValueError, match=r"^dataset list must give classes as integers, or none, got 'cat'$"):
        keep([(np.zeros((1, 8, 8), np.uint8), "cat")] * 4, test_fraction=0.25)


def test_pictures_of_16_bits_are_scaled_and_4_channels_refused():
    deep = [(Image.fromarray(np.full((8, 8), value << 8, np.uint16)), 0) for value in (0, 7, 200, 255)]
    stored = open_store(keep(deep, deep))
    assert stored.train.images[:, 0, 0, 0].tolist() == [0, 7, 200, 255]
    with pytest.raises(ValueError, match=r"C 1 or 3, got \[4, 8, 8\]"):
        keep([(np.zeros((4, 8, 8), np.uint8), 0)] * 4, test_fraction=0.25)
