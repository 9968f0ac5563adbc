import os
import pickle  # noqa: TID251  # CIFAR's own format
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.data.datasets import open_dataset
from tests.data.pictures import RNG, channels_first, pictures, png, save, write_folder
from tests.data.processes import run_together


def test_cifar_batches_are_read_as_they_are(tmp_path, monkeypatch, opened):
    from torchvision.datasets import CIFAR10

    folder, train_names = tmp_path / "cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)]
    monkeypatch.setattr(CIFAR10, "train_list", [[file, None] for file in train_names])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", None]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": None})
    wanted = {}
    for file in [*train_names, "test_batch"]:
        data, labels = pictures(7, 3072), RNG.integers(0, 10, 7).tolist()
        save(folder / file, pickle.dumps({"data": data, "labels": labels}))
        wanted[file] = data.reshape(-1, 3, 32, 32), labels
    save(folder / "batches.meta", pickle.dumps({"label_names": [f"class {i}" for i in range(10)]}))
    dataset = opened("cifar10", path=tmp_path)
    for images, files in ((dataset.train, train_names), (dataset.test, ["test_batch"])):
        assert np.array_equal(images.images, np.concatenate([wanted[file][0] for file in files]))
        assert images.labels.tolist() == [label for file in files for label in wanted[file][1]]
    assert dataset.train.classes == tuple(f"class {i}" for i in range(10))
    # The directory that torchvision makes may be given as well as the one around it.
    assert opened("cifar10", path=folder).fingerprint == dataset.fingerprint


def test_fashion_mnist_is_read_as_it_is(tmp_path, opened):
    wanted = {}
    for split in ("train", "t10k"):
        wanted[split] = pixels, labels = pictures(6, 28, 28), RNG.integers(0, 10, 6).astype(np.uint8)
        raw = tmp_path / "FashionMNIST" / "raw"
        save(raw / f"{split}-images-idx3-ubyte", np.array([2051, 6, 28, 28], ">i4").tobytes() + pixels.tobytes())
        save(raw / f"{split}-labels-idx1-ubyte", np.array([2049, 6], ">i4").tobytes() + labels.tobytes())
    dataset = opened("fashion-mnist", path=tmp_path)
    for images, split in ((dataset.train, "train"), (dataset.test, "t10k")):
        assert np.array_equal(images.images, wanted[split][0][:, None])
        assert images.labels.tolist() == wanted[split][1].tolist()
    assert dataset.train.classes[9] == "Ankle boot"
    colored = opened("fashion-mnist", path=tmp_path, channels=3).train.images
    assert np.array_equal(colored, np.repeat(dataset.train.images, 3, axis=1))


def test_stl10_is_read_as_it_is_and_unlabeled_pictures_have_label_minus_one(tmp_path, monkeypatch, opened):
    from torchvision.datasets import STL10

    for files in ("train_list", "test_list"):
        monkeypatch.setattr(STL10, files, [[file, None] for file, _ in getattr(STL10, files)])
    wanted = {split: (pictures(4, 3, 96, 96), RNG.integers(0, 10, 4)) for split in ("train", "test", "unlabeled")}
    for split, (pixels, labels) in wanted.items():
        save(tmp_path / "stl10_binary" / f"{split}_X.bin", pixels.transpose(0, 1, 3, 2).tobytes())
        save(tmp_path / "stl10_binary" / f"{split}_y.bin", (labels + 1).astype(np.uint8).tobytes())
    save(tmp_path / "stl10_binary" / "class_names.txt", "\n".join("abcdefghij").encode())
    plain, more = opened("stl10", path=tmp_path), opened("stl10-unlabeled", path=tmp_path)
    assert np.array_equal(plain.train.images, wanted["train"][0])
    assert np.array_equal(plain.test.images, wanted["test"][0])
    assert plain.train.labels.tolist() == wanted["train"][1].tolist()
    assert np.array_equal(more.train.images, np.concatenate([wanted["train"][0], wanted["unlabeled"][0]]))
    assert more.train.labels.tolist() == [*wanted["train"][1], -1, -1, -1, -1]
    assert opened("stl10", path=tmp_path, size=32).train.shape == (3, 32, 32)


def test_missing_files_name_the_directory_and_what_to_do(tmp_path, opened):
    for name in ("cifar10", "cifar100", "fashion-mnist", "stl10"):
        with pytest.raises(
            ValueError, match=rf"no complete copy of .* in {re.escape(str(tmp_path))}.*data\.download=true"
        ):
            opened(name, path=tmp_path)


def test_digits_are_split_per_class_by_the_seed(opened):
    dataset = opened("digits")
    assert (len(dataset.train), len(dataset.test), dataset.train.shape) == (1437, 360, (1, 8, 8))
    assert (dataset.train.images.min(), dataset.train.images.max()) == (0, 255)
    shares = np.bincount(dataset.test.labels) / np.bincount(np.concatenate([dataset.train.labels, dataset.test.labels]))
    assert np.abs(shares - 0.2).max() < 0.01
    assert opened("digits", seed=1).fingerprint != dataset.fingerprint
    assert opened("digits", seed=0).fingerprint == dataset.fingerprint
    assert len(opened("digits", test_fraction=0.5).test) == 899
    # Asking for the native format makes no second store.
    assert opened("digits", size=8, channels=1).train.path == dataset.train.path
    assert opened("digits", size=16, channels=3).train.shape == (3, 16, 16)


LAYOUT = [f"{split}/{label}/{i}.png" for split in ("train", "test") for label in "ab" for i in range(3)]


def test_a_second_opening_reads_no_picture(tmp_path, monkeypatch, opened):
    write_folder(tmp_path, LAYOUT)
    calls = []
    first = opened("folder", path=tmp_path, on_progress=lambda *call: calls.append(call))
    assert calls == [("train", 6, 6, 756), ("test", 6, 6, 756)]
    monkeypatch.setattr("PIL.Image.open", lambda *_, **__: pytest.fail("a picture was read again"))
    second = opened("folder", path=tmp_path, on_progress=lambda *call: calls.append(call))
    assert len(calls) == 2
    assert (second.fingerprint, second.train.path) == (first.fingerprint, first.train.path)
    # Neither the seed without a random choice, nor the native number of channels, makes another store.
    assert opened("folder", path=tmp_path, seed=5).train.path == first.train.path


PROCESS = """
import sys
from pathlib import Path
from rayfed_ssl.data.datasets import open_dataset
print("ready", flush=True)
sys.stdin.readline()
done = []
opened = open_dataset("folder", path=Path(sys.argv[1]), cache=Path(sys.argv[2]), on_progress=lambda *call: done.append(call))
assert opened.train.images.sum() > 0
mapped = {line.split()[4] for line in open("/proc/self/maps") if line.rstrip().endswith("train-images")}
print(len(done), opened.train.path, *mapped, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what is mapped is read from Linux's /proc")
def test_processes_that_open_at_once_decode_once_and_map_one_file(tmp_path):
    write_folder(tmp_path / "pictures", LAYOUT)
    ready, answers = run_together(PROCESS, tmp_path / "pictures", tmp_path / "stores")
    assert ready == ["ready\n"] * 3
    assert sorted(int(decoded) for decoded, *_ in answers) == [0, 0, 2]  # train and test, by one of them
    assert {len(answer) for answer in answers} == {3}
    assert len({(path, inode) for _, path, inode in answers}) == 1


def test_changed_files_make_a_new_store(tmp_path, opened):
    write_folder(tmp_path, LAYOUT)
    first = opened("folder", path=tmp_path)
    write_folder(tmp_path, ["train/a/3.png"])
    second = opened("folder", path=tmp_path)
    assert (len(first.train), len(second.train)) == (6, 7)
    os.utime(tmp_path / "test/a/0.png", (1, 1))
    assert opened("folder", path=tmp_path).train.path != second.train.path


def test_a_damaged_store_is_rebuilt(opened):
    first = opened("digits")
    (first.train.path / "train-labels").unlink()
    second = opened("digits")
    assert (second.train.path, second.fingerprint) == (first.train.path, first.fingerprint)


def test_classes_that_are_named_are_all_that_there_is(opened):
    whole, some = opened("digits"), opened("digits", classes=["7", 1])
    assert some.train.classes == ("1", "7")

    def pixels(dataset, name):
        number = dataset.train.classes.index(name)
        return sum(int(split.images[split.labels == number].sum()) for split in (dataset.train, dataset.test))

    assert [pixels(some, name) for name in "17"] == [pixels(whole, name) for name in "17"]
    assert set(some.train.labels) == set(some.test.labels) == {0, 1}
    assert len(opened("digits", classes=(0, 1), train_limit=20).train) == 20
    assert some.fingerprint != whole.fingerprint


def test_limits_choose_a_sorted_random_subset(opened):
    whole, few = opened("digits"), opened("digits", train_limit=100, test_limit=30)
    for part, limit in (("train", 100), ("test", 30)):
        everything = [picture.tobytes() for picture in getattr(whole, part).images]
        rows = [everything.index(picture.tobytes()) for picture in getattr(few, part).images]
        assert len(rows) == limit
        assert rows == sorted(rows)
        assert rows[-1] > limit  # not simply the first ones
    assert opened("digits", train_limit=10**6).fingerprint == whole.fingerprint


def assert_split(images, wanted, paths, classes):
    assert images.classes == classes
    assert np.array_equal(images.images, channels_first(np.stack([wanted[path] for path in paths])))


def samples(*sets):
    return Counter((image.tobytes(), int(label)) for s in sets for image, label in zip(s.images, s.labels, strict=True))


def test_held_out_samples_are_training_samples_that_nobody_trains_on(opened):
    plain, apart = opened("digits"), opened("digits", validation=0.25)
    assert (len(apart.train), len(apart.test)) == (1077, 360)  # of 1437, of which 359.25 are a quarter
    assert samples(apart.train, apart.test) == samples(plain.train)
    assert not samples(apart.test) & samples(plain.test)
    shares = np.bincount(apart.test.labels) / np.bincount(plain.train.labels)
    assert np.abs(shares - 0.25).max() < 0.01
    assert opened("digits", validation=0.25).fingerprint == apart.fingerprint
    assert opened("digits", validation=0.25, seed=1).fingerprint != apart.fingerprint
    limited = opened("digits", train_limit=200, test_limit=30, validation=0.25)
    assert (len(limited.train), len(limited.test)) == (150, 30)
    assert samples(limited.train, limited.test) <= samples(opened("digits", train_limit=200).train)


def test_where_samples_are_held_out_the_test_set_is_not_looked_at(tmp_path, opened):
    write_folder(tmp_path, LAYOUT)
    for path in tmp_path.glob("test/*/*.png"):
        path.write_bytes(b"torn")
    apart = opened("folder", path=tmp_path, validation=0.5)
    assert (len(apart.train), len(apart.test)) == (3, 3)


def test_samples_without_a_label_are_not_held_out(tmp_path, opened):
    def write(labels):
        pictured = [{"bytes": png(pixels), "path": None} for pixels in pictures(len(labels), 6, 6, 3)]
        pq.write_table(pa.table({"image": pictured, "label": pa.array(labels, pa.int64())}), tmp_path / "train.parquet")
        shutil.copy(tmp_path / "train.parquet", tmp_path / "test.parquet")
        return opened("parquet", path=tmp_path, validation=0.5)

    some = write([0, None, 1, None, None, 1, 0, None, None])
    assert sorted(some.test.labels.tolist()) == [0, 1]
    assert sorted(some.train.labels.tolist()) == [-1] * 5 + [0, 1]
    none = write([None] * 4)
    assert (len(none.train), len(none.test)) == (2, 2)


def test_test_samples_without_a_label_are_left_out(tmp_path, opened):
    def write(file, labels, name="image"):
        pictured = [{"bytes": png(pixels), "path": None} for pixels in pictures(len(labels), 6, 6, 3)]
        pq.write_table(pa.table({name: pictured, "label": pa.array(labels, pa.int64())}), tmp_path / file)

    write("train.parquet", [None] * 5 + [0, 1] * 5)
    apart = opened("parquet", path=tmp_path, test_fraction=0.4)
    assert sorted(apart.test.labels.tolist()) == [0, 0, 1, 1]
    assert sorted(apart.train.labels.tolist()) == [-1] * 5 + [0] * 3 + [1] * 3
    write("test.parquet", [None, 1, 0])
    assert opened("parquet", path=tmp_path).test.labels.tolist() == [1, 0]
    write("test.parquet", [1, 0], name="photo")
    with pytest.raises(ValueError, match=r"test\.parquet cannot be used: it has no column 'image', but photo, label"):
        opened("parquet", path=tmp_path)


def test_a_folder_takes_names_that_are_no_utf8(tmp_path, opened):
    write_folder(tmp_path, [f"{directory}/{n}.png" for directory in ("a", os.fsdecode(b"b\xe9")) for n in range(5)])
    write_folder(tmp_path, [f"a/{os.fsdecode(bytes([0xFF]))}.png"])
    dataset = opened("folder", path=tmp_path)
    assert dataset.train.classes == ("a", "b\\xe9")
    assert len(dataset.train.labels) + len(dataset.test.labels) == 11
    (tmp_path / "a" / os.fsdecode(b"torn\xff.png")).write_bytes(b"torn")
    (tmp_path / "a" / "nowhere.png").symlink_to("/nowhere")
    first, second = opened("folder", path=tmp_path, on_bad="skip").skipped
    assert "nowhere.png (No such file or directory)" in first + second
    assert "torn\\udcff.png (" in first + second


def test_a_folder_with_splits_is_read_in_order(tmp_path, opened):
    layout = ["train/bee/b.png", "train/ant/2.PNG", "train/ant/10.png", "test/ant/1.png", "test/bee/deep/1.png"]
    wanted = write_folder(tmp_path, layout)
    for noise in (".DS_Store", "train/bee/._b.png", "train/notes.txt", "train/.git/x/y.png", "train/stray.png"):
        save(tmp_path / noise, b"noise")
    dataset = opened("folder", path=tmp_path)
    assert_split(dataset.train, wanted, [layout[2], layout[1], layout[0]], ("ant", "bee"))
    assert_split(dataset.test, wanted, layout[3:], ("ant", "bee"))
    assert dataset.train.labels.tolist() == [0, 0, 1]
    assert dataset.test.labels.tolist() == [0, 1]


def test_tiny_imagenet_is_read_with_its_annotations(tmp_path, opened):
    train = [f"train/{name}/images/{name}_{i}.JPEG" for name in ("n01", "n02") for i in range(2)]
    wanted = write_folder(
        tmp_path, [*train, "val/images/val_0.JPEG", "val/images/val_1.JPEG", "test/images/test_0.JPEG"]
    )
    save(tmp_path / "train/n01/n01_boxes.txt", b"n01_0.JPEG\t0\t0\t5\t5\n")
    save(tmp_path / "val/val_annotations.txt", b"val_0.JPEG\tn02\t0\t0\t5\t5\nval_1.JPEG\tn01\t0\t0\t5\t5\n")
    dataset = opened("folder", path=tmp_path)
    assert_split(dataset.train, wanted, train, ("n01", "n02"))
    assert_split(dataset.test, wanted, ["val/images/val_0.JPEG", "val/images/val_1.JPEG"], ("n01", "n02"))
    assert dataset.test.labels.tolist() == [1, 0]
    save(tmp_path / "val/val_annotations.txt", b"val_0.JPEG n02\n")
    with pytest.raises(
        ValueError, match=r"val_annotations.txt must name pictures of .*val, one a line, each with a tab"
    ):
        opened("folder", path=tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist", {}, "unknown dataset 'mnist': did you mean torchvision:MNIST?"),
        ("digit", {}, "unknown dataset 'digit': did you mean 'digits'?"),
        (
            "folder",
            {"path": Path(__file__)},
            "is a file: set it to the directory that holds one directory for each class",
        ),
        ("folder", {}, "dataset folder has no default place: set data.path"),
        ("folder", {"path": Path("/nowhere")}, "data.path /nowhere does not exist"),
        (
            "digits",
            {"path": Path("/")},
            "digits has no files, got data.path=/: set data.name=folder or another dataset",
        ),
        ("digits", {"classes": ["seven"]}, "data.classes=seven is no class of the 10 here, such as 0, 1, 2, 3, 4"),
        ("digits", {"classes": [10]}, "data.classes=10 is no class of the 10 here, such as 0, 1, 2, 3, 4"),
        ("digits", {"test_fraction": 1.5}, "cannot hold out a fraction 1.5 of 1797 samples"),
        ("digits", {"validation": 0.9, "train_limit": 2}, "cannot hold out a fraction 0.9 of 2 samples"),
    ],
)
def test_what_cannot_be_opened_says_why(name, options, message, opened):
    with pytest.raises(ValueError, match=re.escape(message)):
        opened(name, **options)


def test_folders_without_classes_or_with_unknown_ones_are_errors(tmp_path, opened):
    write_folder(tmp_path / "flat", ["1.png", "2.png"])
    (tmp_path / "empty" / "a").mkdir(parents=True)
    for name in ("flat", "empty"):
        with pytest.raises(ValueError, match=r"no pictures in class directories of .*train/<class>/"):
            opened("folder", path=tmp_path / name)
    write_folder(tmp_path / "typo", ["train/cat/1.png", "test/Cat/1.png"])
    with pytest.raises(ValueError, match=r"has the class Cat, which .*train has not"):
        opened("folder", path=tmp_path / "typo")


@pytest.mark.parametrize(("train", "test"), [("Train", "Test"), ("training", "testing"), ("train", "Validation")])
def test_splits_are_found_in_any_case_and_by_their_usual_names(tmp_path, opened, train, test):
    write_folder(tmp_path, [f"{split}/{name}/{i}.png" for split in (train, test) for name in ("a", "b") for i in "12"])
    dataset = opened("folder", path=tmp_path)
    assert (dataset.train.classes, len(dataset.train), len(dataset.test), dataset.has_test) == (("a", "b"), 4, 4, True)


def test_a_class_may_be_called_train(tmp_path, opened):
    write_folder(tmp_path, [f"{name}/{kind}/{i}.png" for name in ("Bus", "Train") for kind in "ab" for i in "123"])
    assert opened("folder", path=tmp_path).train.classes == ("Bus", "Train")


def test_test_pictures_that_are_training_pictures_are_counted(tmp_path, opened):
    write_folder(tmp_path, [f"{split}/a/{i}.png" for split in ("train", "test") for i in "123"])
    assert opened("folder", path=tmp_path).shared == 0
    (tmp_path / "test/a/2.png").write_bytes((tmp_path / "train/a/3.png").read_bytes())
    assert opened("folder", path=tmp_path).shared == 1


def test_the_default_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / name)
    assert open_dataset("digits").train.path.parent == tmp_path / "rayfed-ssl" / "stores"
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "rayfed-ssl" / "datasets"))):
        open_dataset("cifar10")


def test_a_second_opening_imports_no_library_that_only_reading_needs(tmp_path, opened):
    opened("digits")
    code = (
        "import sys; from pathlib import Path; from rayfed_ssl.data.datasets import open_dataset;"
        f"open_dataset('digits', cache=Path({str(tmp_path / 'stores')!r}));"
        "print(sorted({'torch', 'torchvision', 'sklearn', 'pandas', 'ray'} & set(sys.modules)))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert process.stdout == "[]\n"


def test_a_cache_that_cannot_be_written_is_named_with_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=r"decoded data cannot be kept in .*file.* name another directory in XDG_CACHE_HOME"
    ):
        open_dataset("digits", cache=tmp_path / "file" / "stores")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (100_000, r"1,797 pictures of 100000x100000 pixels take 17\.97 TB of disk to decode, but 1\.00 TB are free"),
        (2000, r"take 2\.05 GB of memory to decode, but 1\.00 GB are free: lower data\.size or data\.train_limit"),
    ],
)
def test_pictures_that_disk_or_memory_cannot_hold_are_refused_before_decoding(size, message, opened, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=10**12))
    monkeypatch.setattr("rayfed_ssl.data.datasets.free_memory", lambda: 10**9)
    decoded = []
    with pytest.raises(ValueError, match=message):
        opened("digits", size=size, on_progress=lambda *call: decoded.append(call))
    assert not decoded


def test_a_plan_has_labels_and_shape_and_its_refusal_leaves_no_store(tmp_path, opened):
    plans = []
    dataset = opened("digits", size=16, on_planned=plans.append)
    (planned,) = plans
    assert planned.train.shape == dataset.train.shape == (1, 16, 16)
    assert planned.train.labels.tolist() == dataset.train.labels.tolist()
    assert planned.train.images.shape == dataset.train.images.shape
    opened("digits", size=16, on_planned=plans.append)
    assert len(plans) == 1  # nothing is decoded a second time, and so nothing is planned

    def refuse(planned):
        raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        opened("digits", size=24, on_planned=refuse)
    assert len(list((tmp_path / "stores").glob("*/header.json"))) == 1


def test_a_directory_around_the_one_with_the_classes_asks_for_that_one(tmp_path, opened):
    write_folder(tmp_path, [f"photos/raw/{name}/{i}.png" for name in ("cat", "dog") for i in range(4)])
    with pytest.raises(ValueError, match=rf"did you mean data\.path={re.escape(str(tmp_path / 'photos/raw'))}\?"):
        opened("folder", path=tmp_path)


def test_one_class_is_a_dataset(tmp_path, opened):
    write_folder(tmp_path, [f"photos/{i}.png" for i in range(5)])
    assert opened("folder", path=tmp_path).train.classes == ("photos",)


def test_links_to_a_directory_above_do_not_end_in_a_circle(tmp_path, opened):
    write_folder(tmp_path, [f"{name}/{i}.png" for name in "ab" for i in range(4)])
    for name in "xyz":
        (tmp_path / "a" / name).symlink_to(tmp_path)
    dataset = opened("folder", path=tmp_path)
    assert len(dataset.train) + len(dataset.test) == 8


@pytest.mark.parametrize("link", ["a/more", "c"])
def test_a_directory_that_is_there_twice_is_no_class(tmp_path, opened, link):
    write_folder(tmp_path, [f"{name}/{i}.png" for name in "ab" for i in range(4)])
    (tmp_path / link).symlink_to(tmp_path / "b")
    with pytest.raises(ValueError, match=r"are one directory: remove the link"):
        opened("folder", path=tmp_path)


@pytest.mark.parametrize(
    ("split", "table"), [("", "metadata.csv"), ("train/", "train/metadata.csv"), ("train/", "metadata.csv")]
)
def test_the_columns_of_a_folder_are_those_of_its_metadata(split, table, tmp_path):
    names = [f"{split}{label}/{number}.png" for label in ("ant", "bee") for number in range(4)]
    for index, name in enumerate(names):
        save(tmp_path / "pictures" / name, png(pictures(8, 6, 6)[index]))
    file = tmp_path / "pictures" / table
    start = os.path.dirname(table)
    lines = [f"{os.path.relpath(name, start or '.')},{10 - index}" for index, name in enumerate(names)]
    file.write_text("\n".join(["file_name,nest", *reversed(lines)]) + "\n")
    options = {"path": tmp_path / "pictures", "cache": tmp_path / "cache", "size": 6, "test_fraction": 0.25}
    dataset = open_dataset("folder", group="nest", **options)
    assert sorted(dataset.train.groups) == list(range(6))  # of the samples that are left to train on
    assert list(dataset.train.groups) == sorted(
        dataset.train.groups, reverse=True
    )  # numbers, in the order of the pictures
    assert not any("csv" in note for note in dataset.notes)
    with pytest.raises(ValueError, match="needs the columns file_name and hive, got file_name, nest"):
        open_dataset("folder", group="hive", **options)
    file.write_text("\n".join(["file_name,nest", *lines[1:]]))
    with pytest.raises(ValueError, match=r"metadata\.csv has no nest for .*ant/0\.png: add it"):
        open_dataset("folder", group="nest", **options)
    file.unlink()
    with pytest.raises(
        ValueError, match=r"there is no column 'nest' without .*metadata\.csv: write one with the columns"
    ):
        open_dataset("folder", group="nest", **options)
