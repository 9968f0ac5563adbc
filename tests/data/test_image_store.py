import json
import pickle  # noqa: TID251  # Ray pickles what it sends: the test is about that

import numpy as np
import pytest

from rayfed_ssl.data.image_store import Block, ImageSet, open_store, write_store

CLASSES = ("ant", "bee", "cow")


def blocks(num_samples, *, shape=(3, 5, 4), seed=0, step=7, skipped=()):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (num_samples, *shape), np.uint8)
    labels = rng.integers(0, len(CLASSES), num_samples)
    parts = [Block(pixels[i : i + step], labels[i : i + step]) for i in range(0, num_samples, step)]
    return [*parts[:-1], parts[-1]._replace(skipped=skipped)]


def write(path, train=None, test=None, classes=CLASSES):
    train, test = train or blocks(23), test or blocks(11, seed=1)
    write_store(path, name="toy", classes=classes, train=train, test=test)
    return open_store(path)


def test_what_was_written_is_read_back(tmp_path):
    train, test = blocks(23, skipped=("a.png (torn)",)), blocks(11, seed=1)
    dataset = write(tmp_path / "s", train, test)
    for images, parts, name in ((dataset.train, train, "train"), (dataset.test, test, "test")):
        assert np.array_equal(images.images, np.concatenate([part.pixels for part in parts]))
        assert np.array_equal(images.labels, np.concatenate([part.labels for part in parts]))
        assert images.labels.dtype == np.int64
        assert not any(array.flags.writeable for array in (images.images, images.labels))
        assert (images.split, images.path) == (name, tmp_path / "s")
        assert (images.shape, images.num_classes, images.classes) == ((3, 5, 4), 3, CLASSES)
    assert (len(dataset.train), len(dataset.test)) == (23, 11)
    assert (dataset.name, dataset.skipped) == ("toy", ("a.png (torn)",))


def test_a_set_travels_as_its_path_and_not_as_its_pixels(tmp_path):
    dataset = write(tmp_path / "s", blocks(500, shape=(3, 32, 32), step=100), blocks(40, shape=(3, 32, 32)))
    sent = pickle.dumps(dataset)
    assert len(sent) < 1000
    arrived = pickle.loads(sent)
    assert np.array_equal(arrived.train.images, dataset.train.images)
    assert np.array_equal(arrived.test.labels, dataset.test.labels)
    assert (arrived.fingerprint, arrived.test.split) == (dataset.fingerprint, "test")
    in_memory = ImageSet(np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2), np.array([1, 0]), ("x", "y"))
    arrived = pickle.loads(pickle.dumps(in_memory))
    assert np.array_equal(arrived.images, in_memory.images)
    assert arrived.classes == ("x", "y")


def test_the_fingerprint_tells_content_and_nothing_else(tmp_path):
    same = {write(tmp_path / f"{step}", blocks(23, step=step)).fingerprint for step in (1, 7, 23)}
    assert len(same) == 1
    relabeled = [part._replace(labels=(part.labels + 1) % 3) for part in blocks(23)]
    repainted = [part._replace(pixels=part.pixels ^ 1) for part in blocks(23)]
    turned = [part._replace(pixels=part.pixels.reshape(-1, 3, 4, 5)) for part in blocks(23)]
    turned_test = [part._replace(pixels=part.pixels.reshape(-1, 3, 4, 5)) for part in blocks(11, seed=1)]
    others = [
        write(tmp_path / "a", relabeled),
        write(tmp_path / "b", repainted),
        write(tmp_path / "c", turned, turned_test),
        write(tmp_path / "d", classes=("ant", "bee", "cat")),
        write(tmp_path / "e", test=blocks(12, seed=1)),
    ]
    assert len(same | {other.fingerprint for other in others}) == 6


def test_a_store_that_is_missing_or_cut_short_is_noticed_and_replaced(tmp_path):
    path = tmp_path / "s"
    with pytest.raises(ValueError, match=r"no usable store at .*s on this machine"):
        open_store(path)
    whole = write(path)
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for length in (0, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:length])
            with pytest.raises(ValueError, match="no usable store at"):
                open_store(path)
        assert write(path).fingerprint == whole.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"train": 7},
        {"train": {"count": 2**40, "shape": [3, 5, 4], "groups": []}},
        {"classes": 3},
        {"classes": [1, 2]},
        {"name": [["nested"]]},
        {"fingerprint": None},
        {"test": {}},
    ],
)
def test_a_header_that_does_not_fit_its_files_is_noticed(tmp_path, change):
    write(tmp_path / "s")
    file = tmp_path / "s" / "header.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match="no usable store at"):
        open_store(tmp_path / "s")


def test_a_failing_source_leaves_nothing_behind(tmp_path):
    def fail():
        yield from blocks(14)
        raise OSError("torn")

    with pytest.raises(OSError, match="torn"):
        write(tmp_path / "s", fail())
    assert list(tmp_path.iterdir()) == []


def test_a_block_of_nothing_but_skipped_pictures_changes_nothing_else(tmp_path):
    nothing = Block(np.empty((0, 1, 1, 1), np.uint8), np.empty(0, np.int64), ("a", "b"))
    dataset = write(tmp_path / "s", [nothing, *blocks(23), nothing])
    assert dataset.train.images.shape == (23, 3, 5, 4)
    assert dataset.skipped == ("a", "b", "a", "b")


def test_an_empty_split_or_splits_of_two_sizes_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="test split has no pictures"):
        write(tmp_path / "s", test=iter(()))
    with pytest.raises(ValueError, match=r"train pictures are \[3, 5, 4\], test pictures \[3, 5, 5\]"):
        write(tmp_path / "s", test=blocks(3, shape=(3, 5, 5)))
