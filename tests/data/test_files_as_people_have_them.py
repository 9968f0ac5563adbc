"""Files as people have them: labels of every type or none, 12-bit pictures, side files, files of another kind."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.datasets import find_dataset, open_dataset
from rayfed_ssl.data.image_store import Dataset, open_store
from rayfed_ssl.data.torch_datasets import keep
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.foreign.file_kinds import seems

Opened = Callable[..., Dataset]

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Open a dataset of 8x8 pictures in a cache of its own."""
    return lambda name, path, **more: open_dataset(
        name, path=path, size=8, cache=tmp_path_factory.mktemp("stores"), **more
    )


def png(value: int = 0, mode: str = "L") -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((8, 8), 90).convert(mode).point(lambda pixel: (pixel + value) % 256).save(buffer, "PNG")
    return buffer.getvalue()


def write_table(path: Path, labels: pa.Array | None, image: pa.DataType = IMAGE, **columns: Any) -> Path:
    number = 24
    pictures = [png(row) for row in range(number)]
    values = [{"bytes": one, "path": None} for one in pictures] if pa.types.is_struct(image) else pictures
    table = {"image": pa.array(values, image), **columns} | ({} if labels is None else {"label": labels})
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table(table), path / "train.parquet")
    return path


WORDS, NUMBERS = ["bird", "car", "plane"] * 8, [0, 1, 2] * 8

LABELS = {
    "dictionary": pa.array(WORDS).dictionary_encode(),
    "large_string": pa.array(WORDS, pa.large_string()),
    "string_view": pa.array(WORDS, pa.string_view()),
    "uint8": pa.array(NUMBERS, pa.uint8()),
    "double": pa.array(NUMBERS, pa.float64()),
    "float": pa.array(NUMBERS, pa.float32()),
    "dictionary of numbers": pa.array(NUMBERS).dictionary_encode(),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_every_type_are_classes(kind: str, tmp_path: Path, opened: Opened):
    dataset = opened("parquet", write_table(tmp_path / "data", LABELS[kind]))
    named = LABELS[kind].to_pylist()[0] == "bird"
    assert dataset.train.classes == (("bird", "car", "plane") if named else ("0", "1", "2"))
    assert np.bincount(dataset.train.labels).sum() + len(dataset.test) == 24


def test_truth_values_are_two_classes_and_numbers_that_are_missing_no_label(tmp_path: Path, opened: Opened):
    dataset = opened("parquet", write_table(tmp_path / "a", pa.array([True, False] * 12)))
    assert dataset.train.classes == ("0", "1")
    dataset = opened("parquet", write_table(tmp_path / "b", pa.array([0.0, 1.0, float("nan")] * 8)))
    assert (dataset.train.labels < 0).sum() == 8


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (pa.array([0.5] * 24), "classes of .* are integers or strings, got 0.5"),
        (pa.array([[1]] * 24), r"classes of .* are integers or strings, got list<"),
        (pa.array([1] * 24, pa.timestamp("s")), r"cannot be used: its column 'label' holds timestamp"),
    ],
)
def test_other_labels_are_named_by_their_type(labels: pa.Array, message: str, tmp_path: Path, opened: Opened):
    with pytest.raises(ValueError, match=message) as caught:
        opened("parquet", write_table(tmp_path / "data", labels), label="label")
    assert "get it again" not in str(caught.value)


@pytest.mark.parametrize(
    "labels", [pa.array([b"x"] * 24), pa.array([1] * 24, pa.decimal128(4))], ids=["binary", "decimal"]
)
def test_a_usual_label_of_another_type_is_named_and_not_left_out(labels: pa.Array, tmp_path: Path, opened: Opened):
    with pytest.raises(ValueError, match=r"classes of .* are integers or strings, got (binary|decimal.*) in label"):
        opened("parquet", write_table(tmp_path / "data", labels), image="image")


def test_transparency_palettes_and_bright_pictures_give_no_wrong_advice(tmp_path: Path, opened: Opened):
    dark = Image.fromarray(np.tile(np.arange(8, dtype=np.uint8), (8, 1)))
    alpha = dark.convert("RGBA")
    colors = Image.fromarray(np.tile(np.arange(0, 80, 10, dtype=np.uint8), (8, 1))).convert("P")
    for name, picture, note in (("rgba", alpha, "from 0 to 7: data.white=7"), ("palette", colors, None)):
        data = folder(tmp_path / name, {f"{c}/{i}.png": picture for c in "ab" for i in range(6)})
        notes = opened("folder", data).notes
        assert notes == () if note is None else note in notes[0]
    bright = Image.fromarray(np.tile(np.arange(248, 256, dtype=np.uint8), (8, 1)))
    assert (
        opened("folder", folder(tmp_path / "b", {f"{c}/{i}.png": bright for c in "ab" for i in range(6)})).notes == ()
    )


@pytest.mark.parametrize("image", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_pictures_may_lie_in_memory_as_they_like(image: pa.DataType, tmp_path: Path, opened: Opened):
    assert len(opened("parquet", write_table(tmp_path / "data", pa.array(NUMBERS), image)).train) > 0


@pytest.mark.parametrize(
    "columns", [{}, {"id": list(range(24))}, {"name": list(map(str, range(24)))}], ids=["none", "id", "name"]
)
def test_a_table_without_classes_has_no_labels(columns: dict[str, Any], tmp_path: Path, opened: Opened):
    dataset = opened("parquet", write_table(tmp_path / "data", None, **columns))
    assert set(dataset.train.labels) == {-1}
    assert dataset.train.classes == ()
    assert dataset.notes[0].startswith("no labels: no column (image")


def test_a_table_is_there_before_anybody_knows_which_column_holds_its_classes(tmp_path: Path, opened: Opened):
    two = {"age": pa.array(NUMBERS), "site": pa.array(NUMBERS)}
    data = write_table(tmp_path / "data", None, **two)
    assert find_dataset("parquet", data, False)[1].files == (data / "train.parquet",)
    with pytest.raises(ValueError, match=r"needs one label column, but 2 of its columns"):
        opened("parquet", data)
    assert set(opened("parquet", data, label="site").train.labels) == {0, 1, 2}


def test_the_hubs_partial_splits_are_training_data(tmp_path: Path, opened: Opened):
    (tmp_path / "default").mkdir()
    write_table(tmp_path / "default" / "partial-train", pa.array(NUMBERS))
    assert len(opened("parquet", tmp_path).train) > 0


@pytest.mark.parametrize("missing", [24, 10])
def test_an_objective_that_needs_labels_is_refused_without_them(missing: int, tmp_path: Path):
    data = write_table(tmp_path / "data", pa.array([-1] * missing + [0, 1] * ((24 - missing) // 2)))
    settings = ["data.name=parquet", f"data.path={data}", "data.size=8", "clients.number=2", "partition=iid"]
    with pytest.raises(
        ConfigError, match=r"^objective=supervised needs a class for every sample, but .* have none: take"
    ):
        Federation.open(Config.load("fedavg-supervised", *settings))
    if missing < 24:
        assert Federation.open(Config.load("fedavg-supervised", *settings, "clients.labeled=1")).shards


def test_one_class_is_nothing_to_tell_apart(tmp_path: Path):
    data = write_table(tmp_path / "data", pa.array([0] * 24))
    settings = ["data.name=parquet", f"data.path={data}", "data.size=8", "clients.number=2", "partition=iid"]
    with pytest.raises(ConfigError, match=r"supervised needs two classes or more, but all \d+ samples are of one"):
        Federation.open(Config.load("fedavg-supervised", *settings))


def test_what_save_to_disk_wrote_is_named_where_something_else_is_expected(tmp_path: Path, opened: Opened):
    (tmp_path / "dataset_dict.json").write_text("{}")
    for name in ("parquet", "folder"):
        with pytest.raises(ValueError, match=r"it was written by save_to_disk: set data\.name=hub"):
            opened(name, tmp_path)


def test_labels_that_are_all_null_are_none(tmp_path: Path, opened: Opened):
    data = write_table(tmp_path / "data", pa.nulls(24))
    assert set(opened("parquet", data).train.labels) == {-1}


def folder(path: Path, pictures: dict[str, Image.Image]) -> Path:
    for name, picture in pictures.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        picture.save(path / name)
    return path


def values(high: int, dtype: type = np.uint16) -> Image.Image:
    return Image.fromarray((np.arange(64).reshape(8, 8) * high // 63).astype(dtype))


def test_pictures_that_use_hardly_any_of_their_range_are_a_note_with_what_scales_them(tmp_path: Path, opened: Opened):
    data = folder(tmp_path / "d", {f"{c}/{i}.png": values(4095) for c in "ab" for i in range(6)})
    dataset = opened("folder", data)
    assert dataset.train.images.max() == 15
    assert dataset.notes == (
        "dim: 12 of 12 pictures fill less than a sixteenth of their range, with values from 0 to 4095: data.white=4095 "
        "makes the largest white",
    )
    scaled = opened("folder", data, white=4095)
    assert (scaled.train.images.max(), scaled.notes) == (255, ())
    bright = folder(tmp_path / "b", {f"{c}/{i}.tif": values(65535) for c in "ab" for i in range(6)})
    assert (opened("folder", bright).train.images.max(), opened("folder", bright).notes) == (255, ())


def test_eight_bits_may_be_dim_too(tmp_path: Path, opened: Opened):
    data = folder(tmp_path / "d", {f"{c}/{i}.png": values(9, np.uint8) for c in "ab" for i in range(6)})
    assert "from 0 to 9: data.white=9" in opened("folder", data).notes[0]
    assert opened("folder", data, white=9).train.images.max() == 255


def test_16_bits_of_every_container_scale_alike(tmp_path: Path, opened: Opened):
    data = folder(tmp_path / "d", {f"{s}/{i}.{s}": values(65535) for s in ("pgm", "png", "tif") for i in range(4)})
    train = opened("folder", data).train
    assert len(np.unique(train.images, axis=0)) == 1
    assert train.images[0].max() == 255


def test_every_suffix_that_pillow_opens_is_a_picture(tmp_path: Path, opened: Opened):
    names = [
        "a.jfif",
        "b.jpe",
        "c.jpg",
        "d.PNG",
        "e.dib",
        "f.bmp",
        "g.apng",
        "h.pnm",
        "i.webp",
        "j.tiff",
        "k.gif",
        "l.jp2",
    ]
    data = tmp_path / "d"
    for label in ("x", "y"):
        (data / label).mkdir(parents=True)
        for name in names:
            kind = {"jfif": "JPEG", "jpe": "JPEG", "jpg": "JPEG", "dib": "BMP", "pnm": "PPM"}.get(name[2:].lower())
            values(255, np.uint8).save(data / label / name, kind)
    taken = opened("folder", data)
    assert (len(taken.train) + len(taken.test), taken.notes) == (2 * len(names) - 2, ("passed over: 2 files .dib",))


def test_what_is_passed_over_is_counted_by_reason_in_one_line(tmp_path: Path, opened: Opened):
    data = folder(tmp_path / "d", {f"{c}/{i}.png": values(255, np.uint8) for c in "ab" for i in range(6)})
    folder(data, {"beside.png": values(255, np.uint8)})
    for name in (
        "notes.txt",
        "a/x.TXT",
        "a/Thumbs.db",
        "a/.DS_Store",
        ".cache/z.png",
        "empty/readme",
        "b/photo.xmp",
        "a/@eaDir/0.png",
    ):
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text("x")
    assert opened("folder", data).notes == (
        "passed over: 2 hidden directories, 2 files .txt, 1 hidden file, 1 file .db, 1 file .xmp, 1 file without a suffix, "
        "1 picture beside the directories of classes, 1 directory without pictures",
    )


def test_directories_beside_the_splits_are_counted(tmp_path: Path, opened: Opened):
    names = [f"{split}/{c}/{i}.png" for split in ("train", "test", "val", "extra") for c in "ab" for i in range(4)]
    data = folder(tmp_path / "d", {name: values(255, np.uint8) for name in names})
    (data / "license.md").write_text("x")
    assert opened("folder", data).notes == (
        "passed over: 8 pictures in val, which is not used, 1 directory beside train, 1 file .md",
    )


def test_what_lies_beside_parquet_files_is_counted(tmp_path: Path, opened: Opened):
    data = write_table(tmp_path / "data", pa.array(NUMBERS))
    pq.write_table(pq.read_table(data / "train.parquet"), data / "test.parquet")
    pq.write_table(pq.read_table(data / "train.parquet"), data / "other.parquet")
    (data / "README.md").write_text("x")
    assert opened("parquet", data).notes == ("passed over: 1 Parquet file of another split or directory, 1 file .md",)


def test_test_samples_without_a_label_are_counted(tmp_path: Path, opened: Opened):
    data = write_table(tmp_path / "data", pa.array(NUMBERS))
    write_table(tmp_path / "other", pa.array([-1, 0, 1] * 8))
    (tmp_path / "other/train.parquet").rename(data / "test.parquet")
    for _ in range(2):  # decoded, and from the store
        assert opened("parquet", data).notes == ("passed over: 8 test samples without a label",)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
        (b"\n <!DOCTYPE html><html>", "a web page"),
        (b"PK\x03\x04....", "a zip archive"),
        (b"\x80\x02}q\x00", "a pickle"),
        (b"", "empty"),
    ],
)
def test_a_file_of_another_kind_is_named(content: bytes, kind: str, tmp_path: Path, opened: Opened):
    assert kind in seems(content)
    data = write_table(tmp_path / "data", pa.array(NUMBERS))
    (data / "train.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=kind):
        opened("parquet", data)
    pictures = folder(tmp_path / "d", {f"{c}/{i}.png": values(255, np.uint8) for c in "ab" for i in range(6)})
    (pictures / "a/0.png").write_bytes(content)
    with pytest.raises(ValueError, match=kind):
        opened("folder", pictures, test_fraction=0.5)
    (tmp_path / "start.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"cannot be read as safetensors \(it .*{kind}"):
        Federation.open(Config.load("digits", f"model.start={tmp_path / 'start.safetensors'}")).check_ready()


def test_nothing_is_said_of_bytes_that_tell_nothing():
    assert seems(b"hello") == ""


class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Twelve gray pictures of a type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.arange(64).reshape(1, 8, 8).mul(4).to(self.dtype), row % 2


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.int16], ids=str)
def test_a_dataset_may_give_integers_of_any_type(dtype: torch.dtype):
    expected = torch.arange(64).mul(4)
    assert open_store(keep(Pictures(dtype))).train.images[0].ravel().tolist() == expected.tolist()


def test_a_dataset_may_give_16_bits_or_truth_values():
    assert open_store(keep(Pictures(torch.bool))).train.images.max() == 255
    dataset = open_store(keep(Pictures(torch.uint16)))
    assert dataset.train.images.max() == 0  # 252 of 65,535
    assert dataset.notes[0].endswith("with values from 0 to 252: data.white=252 makes the largest white")
    with pytest.raises(ValueError, match=r"got int16 from -4 to"):
        keep(Negative(torch.int16))


class Negative(Pictures):
    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(row)[0] - 4, 0
