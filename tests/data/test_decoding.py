import io
import json
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl.foreign.parquet import BATCH, batches
from tests.data.pictures import RNG, channels_first, pictures, png, save, write_folder


def parquet(path, images, labels, *, image="img", label="label", names=None, as_struct=True):
    values = [{"bytes": value, "path": None} for value in images] if as_struct else images
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()}) if as_struct else pa.binary()
    table = pa.table({image: pa.array(values, kind), label: pa.array(labels)})
    if names:
        features = {image: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=5)


TRAIN = [
    ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001.parquet"),
    (
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/validation-00000-of-00001.parquet",
    ),
    ("default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"),
]


@pytest.mark.parametrize("files", TRAIN)
def test_parquet_in_hugging_faces_layouts(files, tmp_path, opened):
    pixels, labels = pictures(24, 9, 8, 3), RNG.integers(0, 3, 24)
    for file, part in zip(files, np.split(np.arange(24), [8, 16]), strict=True):
        parquet(tmp_path / file, [png(p) for p in pixels[part]], labels[part], names=["a", "b", "c"])
    dataset = opened("parquet", path=tmp_path)
    assert np.array_equal(dataset.train.images, channels_first(pixels[:16]))
    assert np.array_equal(dataset.test.images, channels_first(pixels[16:]))
    assert dataset.train.labels.tolist() == labels[:16].tolist()
    assert dataset.train.classes == ("a", "b", "c")


def test_parquet_without_splits_names_or_structs(tmp_path, opened):
    pixels = pictures(20, 6, 6)
    parquet(tmp_path / "all.parquet", [png(p) for p in pixels], ["dog", "cat"] * 10, image="picture", as_struct=False)
    for path in (tmp_path, tmp_path / "all.parquet"):
        dataset = opened("parquet", path=path, test_fraction=0.3)
        assert (len(dataset.train), len(dataset.test), dataset.train.shape) == (14, 6, (1, 6, 6))
        assert dataset.train.classes == ("cat", "dog")
        assert np.bincount(dataset.test.labels).tolist() == [3, 3]
        for images in (dataset.train, dataset.test):
            for picture, label in zip(images.images, images.labels, strict=True):
                row = next(i for i, p in enumerate(pixels) if np.array_equal(p, picture[0]))
                assert ["dog", "cat"][row % 2] == dataset.train.classes[label]


def test_parquet_labels_may_be_missing_and_pictures_may_lie_beside_it(tmp_path, opened):
    pixels = pictures(4, 6, 6, 3)
    save(tmp_path / "beside.png", png(pixels[1]))
    values = [{"bytes": png(p), "path": None} for p in pixels]
    values[1] = {"bytes": None, "path": "beside.png"}
    pq.write_table(pa.table({"image": values, "label": [2, None, 0, 1]}), tmp_path / "train.parquet")
    parquet(tmp_path / "test.parquet", [png(pixels[0])], [2], image="image")
    dataset = opened("parquet", path=tmp_path)
    assert dataset.train.labels.tolist() == [2, -1, 0, 1]
    assert np.array_equal(dataset.train.images, channels_first(pixels))
    assert dataset.train.classes == ("0", "1", "2")


@pytest.mark.parametrize("outside", ["../beside.png", "/beside.png"])
def test_a_picture_that_lies_outside_of_the_table_s_directory_is_not_read(tmp_path, opened, outside):
    save(tmp_path / "beside.png", png(pictures(1, 6, 6, 3)[0]))
    (tmp_path / "data").mkdir()
    path = outside if outside.startswith(".") else f"{tmp_path}{outside}"
    pq.write_table(
        pa.table({"img": [{"bytes": None, "path": path}] * 9, "label": [0] * 9}), tmp_path / "data/train.parquet"
    )
    with pytest.raises(ValueError, match=r"beside.png, which lies outside of"):
        opened("parquet", path=tmp_path / "data")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [1]}, "needs one picture column"),
        ({"img": [b"x"], "a": [1], "b": [2]}, "but 2 of its columns|label column .*could be it: name it in data.label"),
        ({"img": [b"x"], "label": [-7]}, "labels of .* run from -7 to -7"),
    ],
)
def test_parquet_without_the_columns_says_which_it_has(columns, message, tmp_path, opened):
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=message):
        opened("parquet", path=tmp_path)


def test_two_columns_of_one_name_hold_no_classes(tmp_path, opened):
    rows = [pa.array([b"x"]), pa.array([1]), pa.array([{"a": 1}])]
    pq.write_table(pa.Table.from_arrays(rows, names=["img", "label", "label"]), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match="label"):
        opened("parquet", path=tmp_path)


def test_parquet_directories_that_are_none_or_several_are_errors(tmp_path, opened):
    with pytest.raises(ValueError, match=r"no \*\.parquet file in"):
        opened("parquet", path=tmp_path)
    for name in ("one", "two"):
        parquet(tmp_path / name / "train.parquet", [png(pictures(1, 4, 4)[0])], [0])
    with pytest.raises(ValueError, match=r"several datasets in .* which has one/train\.parquet"):
        opened("parquet", path=tmp_path)
    save(tmp_path / "torn" / "train.parquet", b"PAR1" + 40 * b"\xff")
    with pytest.raises(ValueError, match=r"not a readable Parquet file \(Parquet magic"):
        opened("parquet", path=tmp_path / "torn")


def test_files_of_any_name_beside_a_test_file_are_trained_on_and_it_is_not(tmp_path, opened):
    parquet(tmp_path / "test.parquet", [png(p) for p in pictures(2, 4, 4)], [1, 1])
    with pytest.raises(ValueError, match=r"no training file \(train\*\.parquet\)"):
        opened("parquet", path=tmp_path)
    parquet(tmp_path / "photos.parquet", [png(p) for p in pictures(3, 4, 4)], [0, 1, 0])
    dataset = opened("parquet", path=tmp_path)
    assert (dataset.train.labels.tolist(), dataset.test.labels.tolist()) == ([0, 1, 0], [1, 1])


def test_pictures_of_unequal_size_need_a_size_and_are_cut_from_the_center(tmp_path, opened):
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 200
    save(tmp_path / "a" / "wide.png", png(wide))
    for i in range(4):
        save(tmp_path / "a" / f"{i}.png", png(np.full((8, 8, 3), 100, np.uint8)))
    with pytest.raises(ValueError, match=r"differ in size, 8x8 and 12x4: set data\.size"):
        opened("folder", path=tmp_path)
    dataset = opened("folder", path=tmp_path, size=4)
    found = np.concatenate([dataset.train.images, dataset.test.images])
    assert sorted(found.mean(axis=(1, 2, 3)).tolist()) == [100, 100, 100, 100, 200]


def test_gray_pictures_stay_gray_unless_one_is_colored(tmp_path, opened):
    gray = pictures(1, 5, 5)[0]
    save(tmp_path / "a/gray.png", png(gray))
    save(tmp_path / "a/deep.png", png(np.full((5, 5), 0x80FF, np.uint16)))
    dataset = opened("folder", path=tmp_path, test_fraction=0.5)
    found = np.concatenate([dataset.train.images, dataset.test.images])
    assert found.shape == (2, 1, 5, 5)
    assert sorted(map(bytes, found)) == sorted([gray.tobytes(), b"\x80" * 25])
    save(tmp_path / "a/red.png", png(np.full((5, 5, 3), (255, 0, 0), np.uint8)))
    assert opened("folder", path=tmp_path, test_fraction=0.5).train.shape == (3, 5, 5)
    assert opened("folder", path=tmp_path, test_fraction=0.5, channels=1).train.shape == (1, 5, 5)


@pytest.mark.filterwarnings("error")
def test_palettes_transparency_and_cmyk_become_colors(tmp_path, opened):
    color = np.zeros((6, 6, 3), np.uint8)
    color[:, 3:] = (10, 200, 30)
    plain, alpha = Image.fromarray(color), np.dstack([color, np.full((6, 6), 77, np.uint8)])
    (tmp_path / "a").mkdir()
    plain.save(tmp_path / "a" / "1.png")
    plain.quantize(4).save(tmp_path / "a" / "2.png", transparency=b"\x00\x80\xff")
    plain.quantize(4).save(tmp_path / "a" / "3.gif")
    Image.fromarray(alpha).save(tmp_path / "a" / "4.png")
    plain.convert("CMYK").save(tmp_path / "a" / "5.tif")
    dataset = opened("folder", path=tmp_path, test_fraction=0.2)
    for picture in np.concatenate([dataset.train.images, dataset.test.images]):
        assert np.array_equal(picture, color.transpose(2, 0, 1))


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def test_pictures_are_turned_as_their_exif_orientation_says(tmp_path, opened):
    upright = pictures(1, 4, 6, 3)[0]
    turned = {1: upright, 3: upright[::-1, ::-1], 6: np.rot90(upright, 1), 8: np.rot90(upright, -1)}
    for orientation, stored in turned.items():
        file = tmp_path / "a" / f"{orientation}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.ascontiguousarray(stored)).save(file, exif=exif(orientation))
    dataset = opened("folder", path=tmp_path, test_fraction=0.25)
    for picture in np.concatenate([dataset.train.images, dataset.test.images]):
        assert np.array_equal(picture, upright.transpose(2, 0, 1))


def test_a_file_of_another_kind_is_named_and_starts_no_program(tmp_path, opened, monkeypatch):
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    write_folder(tmp_path, [f"a/{i}.png" for i in range(4)])
    postscript = io.BytesIO()
    Image.fromarray(pictures(1, 7, 6, 3)[0]).save(postscript, "EPS")
    for name in ("x.png", "y.png"):
        save(tmp_path / "a" / name, postscript.getvalue())
    with pytest.raises(ValueError, match=r"unreadable: \S+[xy]\.png \(it seems to be a document .*data\.on_bad=skip"):
        opened("folder", path=tmp_path)


@pytest.fixture
def torn(tmp_path):
    """A folder with 12 good pictures, two torn ones and a text that calls itself a picture."""
    write_folder(tmp_path, [f"{name}/{i:02}.png" for name in "ab" for i in range(6)], (64, 64, 3))
    for name, content in {"a/torn1.png": None, "b/torn2.png": None, "b/text.png": b"hello"}.items():
        save(tmp_path / name, png(pictures(1, 64, 64, 3)[0])[:3000] if content is None else content)
    return tmp_path


def test_unreadable_pictures_are_counted_and_named_or_skipped_and_reported_every_time(torn, opened):
    with pytest.raises(ValueError, match=r"[1-3] of 12 pictures are unreadable: .*(torn|text).*data\.on_bad=skip"):
        opened("folder", path=torn)
    for _ in range(2):
        dataset = opened("folder", path=torn, on_bad="skip")
        assert len(dataset.train) + len(dataset.test) == 12
        assert sorted(re.findall(r"(\w+)\.png", " ".join(dataset.skipped))) == ["text", "torn1", "torn2"]


def test_skipped_pictures_shift_no_label(tmp_path, opened):
    for i in range(150):  # three chunks; the second is all bad
        content = b"bad" if i % 10 == 7 or 64 <= i < 128 else png(np.full((4, 4), i, np.uint8))
        save(tmp_path / "train" / f"class{i % 3}" / f"{i:03}.png", content)
    save(tmp_path / "test" / "class0" / "0.png", png(np.zeros((4, 4), np.uint8)))
    dataset = opened("folder", path=tmp_path, on_bad="skip")
    assert (dataset.train.images[:, 0, 0, 0] % 3).tolist() == dataset.train.labels.tolist()
    assert len(dataset.train) + len(dataset.skipped) == 150


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, opened, monkeypatch):
    write_folder(tmp_path, [f"{name}/{i}.png" for name in "ab" for i in range(4)], (7, 6, 3))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(
        ValueError, match=r"unreadable: \S+\.png \(6x7 pixels: set data\.max_pixels=42 to take more than 41\)"
    ):
        opened("folder", path=tmp_path, max_pixels=41)
    monkeypatch.undo()
    assert opened("folder", path=tmp_path, max_pixels=42).train.shape == (3, 7, 6)


def test_few_bytes_of_parquet_that_are_many_pictures_are_read_in_small_parts(tmp_path):
    path = tmp_path / "train.parquet"
    same = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array([bytes(1_000_000)]))
    pq.write_table(pa.table({"img": same, "label": [0] * 5000}), path)
    assert path.stat().st_size < 100_000
    assert max(len(part) * 1_000_000 for part in batches(path, "img")) <= BATCH
    pq.write_table(pa.table({"img": same}), path, compression="zstd")
    assert max(len(part) * 1_000_000 for part in batches(path, "img")) <= BATCH
    pq.write_table(pa.table({"img": [bytes(1_000_000)] * 300}), path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"its column img takes 2\d\d MiB without ZSTD: write it with snappy"):
        next(batches(path, "img"))


def test_a_pipe_in_place_of_a_picture_is_not_waited_for(tmp_path, opened):
    write_folder(tmp_path, [f"{name}/{i}.png" for name in "ab" for i in range(4)])
    os.mkfifo(tmp_path / "a" / "pipe.png")
    with pytest.raises(ValueError, match=r"unreadable: \S+pipe\.png \(it is no regular file\)"):
        opened("folder", path=tmp_path)
