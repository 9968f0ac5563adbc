import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfed_ssl.data.datasets import open_dataset
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.partitions import dirichlet, iid, pooled
from rayfed_ssl.data.public_data import (
    PublicClient,
    PublicDataset,
    PublicFraction,
    batch_for,
    check_public,
    parse_public,
    refuse_own,
    split_public,
)

LABELS = np.arange(120) % 4
TRAIN = ImageSet(np.zeros((120, 3, 16, 16), np.uint8), LABELS, ("a", "b", "c", "d"))


def never(name, **_):
    raise AssertionError(f"{name} was opened")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("client:0", PublicClient(0)),
        ("fraction:0.1", PublicFraction(0.1)),
        ("stl10:3200", PublicDataset("stl10", 3200)),
        ("folder:/data/a:b:77", PublicDataset("folder", 77, Path("/data/a:b"))),
    ],
)
def test_descriptions_are_read(text, spec):
    assert parse_public(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        *("", "client", "client:", "client:-1", "fraction:0", "fraction:1", "fraction:nan", "fraction:half"),
        *("stl10", "stl10:0", "stl10:-5", "stl10:many", "imagenet:100", "folder:77", "parquet:/data", "stl10:/data:5"),
    ],
)
def test_other_descriptions_are_refused_with_the_right_form(text):
    with pytest.raises(ValueError, match=rf"cannot read the public set {re.escape(repr(text))}: write "):
        parse_public(text)


def test_without_a_public_set_everybody_trains():
    public, shards = split_public(None, TRAIN, partial(iid, num_clients=5, seed=1), seed=0, open_other=never)
    assert public is None
    assert list(shards) == [0, 1, 2, 3, 4]
    assert sorted(np.concatenate(list(shards.values()))) == list(range(120))


def test_a_public_client_gives_its_shard_and_the_others_keep_their_ids():
    divide = partial(dirichlet, num_clients=6, alpha=1.0, seed=3)
    public, shards = split_public(PublicClient(2), TRAIN, divide, seed=0, open_other=never)
    expected = divide(LABELS)
    assert list(shards) == [0, 1, 3, 4, 5]
    assert np.array_equal(public.rows, expected[2])
    assert all(np.array_equal(rows, expected[client_id]) for client_id, rows in shards.items())
    assert public.images is TRAIN
    assert len(public) == len(expected[2])


@settings(deadline=None)
@given(st.floats(0.02, 0.9), st.integers(1, 6), st.integers(0, 2**40))
def test_a_public_fraction_is_held_out_before_the_rest_is_divided(fraction, num_clients, seed):
    seen = []

    def divide(labels):
        seen.append(labels)
        return iid(labels, num_clients, seed)

    public, shards = split_public(PublicFraction(fraction), TRAIN, divide, seed=seed, open_other=never)
    assert len(public) == int(np.ceil(fraction * 120 - 1e-9))
    rows = np.concatenate([public.rows, *shards.values()])
    assert sorted(rows) == list(range(120))
    assert all((np.diff(part) > 0).all() for part in (public.rows, *shards.values()))
    # The partition sees the labels of the rows that are left, in their order.
    private = np.setdiff1d(np.arange(120), public.rows)
    assert np.array_equal(seen[0], LABELS[private])


def test_another_dataset_is_fitted_to_the_runs_pictures(tmp_path):
    opener = partial(open_dataset, cache=tmp_path)
    split = partial(split_public, PublicDataset("digits", 50), TRAIN, pooled, open_other=opener)
    public, shards = split(seed=1)
    assert public.images.images.shape == (50, 3, 16, 16)
    assert public.rows.tolist() == list(range(50))
    assert shards[0].tolist() == list(range(120))
    assert split(seed=2)[0].images.path != public.images.path


@pytest.mark.parametrize(
    ("spec", "num_clients", "message"),
    [
        (PublicClient(5), 5, "public client:5 needs that client and another, got 5 clients"),
        (PublicClient(0), 1, "public client:0 needs that client and another, got 1 clients"),
        (PublicFraction(0.001), 130, "cannot divide"),
        (PublicDataset("digits", 2000), 5, "public digits has only 1437 pictures, 2000 were asked for"),
    ],
)
def test_impossible_public_sets_say_why(spec, num_clients, message, tmp_path):
    opener = partial(open_dataset, cache=tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        split_public(spec, TRAIN, partial(iid, num_clients=num_clients, seed=0), seed=0, open_other=opener)
    wide = ImageSet(np.zeros((120, 3, 16, 20), np.uint8), LABELS, TRAIN.classes)
    with pytest.raises(ValueError, match=r"fitted to squares, but the run has 20x16: set data\.size"):
        split_public(PublicDataset("digits", 5), wide, pooled, seed=0, open_other=never)


@pytest.mark.parametrize(
    ("spec", "name", "path"),
    [
        (PublicDataset("cifar10", 5), "cifar10", None),
        (PublicDataset("stl10", 5), "stl10-unlabeled", None),
        (PublicDataset("folder", 5, Path("/data/../data/a")), "folder", Path("/data/a")),
    ],
)
def test_public_pictures_from_what_samples_are_held_out_of_are_refused(spec, name, path):
    with pytest.raises(
        ValueError, match=rf"public {spec.name} would be drawn from .* data\.validation holds out: take "
    ):
        refuse_own(spec, name, path)


def test_public_pictures_of_other_datasets_are_taken():
    for spec in (None, PublicClient(0), PublicFraction(0.1), PublicDataset("stl10", 5)):
        refuse_own(spec, "cifar10", None)
    refuse_own(PublicDataset("folder", 5, Path("/data/b")), "folder", Path("/data/a"))


@settings(deadline=None)
@given(st.integers(0, 150), st.integers(0, 150), st.integers(1, 40))
def test_the_usable_queue_is_the_largest_that_lets_an_epoch_take_a_step(num_public, queue, batch):
    def steps(size):
        """Walk through an epoch: full batches only, and the first size / batch of them only fill the queue."""
        return sum(1 for number in range(num_public // batch) if number >= size // batch)

    assert check_public(2176, 2048, 128) == 2048  # exactly m + B'
    fitting = [size for size in range(batch, queue + 1, batch) if steps(size) > 0]
    if fitting:
        assert check_public(num_public, queue, batch) == max(fitting)
    else:
        with pytest.raises(ValueError, match="distillation needs a queue of at least one batch and another batch"):
            check_public(num_public, queue, batch)


@pytest.mark.parametrize(("num_public", "batch"), [(9000, 128), (1024, 128), (1023, 64), (128, 16), (45, 4), (3, 2)])
def test_a_batch_of_distillation_is_halved_until_a_public_set_has_eight(num_public: int, batch: int):
    assert batch_for(num_public) == batch
