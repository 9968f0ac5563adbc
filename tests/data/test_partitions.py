import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfed_ssl.data.partitions import (
    classes_per_client,
    dirichlet,
    dirichlet_balanced,
    dirichlet_min_samples,
    iid,
    partition,
    pooled,
    quantity_skew,
    shards,
    stratified_split,
)
from rayfed_ssl.data.partitions.label_skew import balance

CIFAR10_LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))

labels_st = st.lists(st.integers(0, 6), min_size=40, max_size=90).map(lambda values: np.array(values, np.int64))
seeds = st.integers(0, 2**63 - 1)


def same(first, second):
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def assert_shards(labels, shards, num_clients):
    """What every partition promises."""
    assert isinstance(shards, tuple)
    assert len(shards) == num_clients
    for shard in shards:
        assert shard.dtype == np.int64
        assert len(shard) > 0
        assert (np.diff(shard) > 0).all()
    rows = np.concatenate(shards)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(labels)


@settings(deadline=None)
@given(labels_st, st.integers(1, 40), seeds)
def test_iid_is_disjoint_complete_and_even(labels, num_clients, seed):
    shards = iid(labels, num_clients, seed)
    assert_shards(labels, shards, num_clients)
    assert len(labels) - sum(map(len, shards)) == 0
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(labels_st, st.integers(1, 5), st.sampled_from([0.3, 1.0, 100.0]), seeds)
def test_dirichlet_is_disjoint_and_drops_less_than_one_sample_per_client_and_class(labels, num_clients, alpha, seed):
    shards = dirichlet(labels, num_clients, alpha, seed)
    assert_shards(labels, shards, num_clients)
    assert 0 <= len(labels) - sum(map(len, shards)) <= num_clients * len(np.unique(labels))


@settings(deadline=None)
@given(st.integers(2, 9), st.integers(1, 12), st.data(), seeds)
def test_each_client_holds_exactly_its_classes_and_none_is_forgotten(num_classes, num_clients, data, seed):
    classes = data.draw(st.integers(1, num_classes))
    labels = np.random.default_rng(seed % 97).permutation(np.repeat(np.arange(num_classes), 14))
    shards = classes_per_client(labels, num_clients, classes, seed)
    assert_shards(labels, shards, num_clients)
    held = [np.unique(labels[shard]) for shard in shards]
    assert {len(own) for own in held} == {classes}
    holders = np.bincount(np.concatenate(held), minlength=num_classes)
    assert holders.max() - holders.min() <= 1
    if num_clients * classes >= num_classes:
        assert holders.min() >= 1
        assert len(labels) - sum(map(len, shards)) == 0


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 0.5}),
        ("classes_per_client", {"classes": 3}),
        ("dirichlet_balanced", {"alpha": 0.5}),
        ("dirichlet_min_samples", {"alpha": 0.5}),
        ("shards", {}),
        ("quantity_skew", {"alpha": 0.5}),
    ],
)
def test_the_seed_decides_and_nothing_else(name, fields):
    first = partition(name, CIFAR10_LABELS, 6, 1, **fields)
    np.random.seed(7)  # noqa: NPY002  # the global generator must not matter
    assert same(first, partition(name, CIFAR10_LABELS, 6, 1, **fields))
    assert not same(first, partition(name, CIFAR10_LABELS, 6, 2, **fields))


def test_a_pooled_fraction_has_the_classes_of_all_in_proportion_and_its_rows_follow_from_the_seed():
    labels = np.repeat(np.arange(3), [600, 300, 100])
    (rows,) = partition("pooled", labels, 1, 1, fraction=0.1)
    assert np.bincount(labels[rows]).tolist() == [60, 30, 10]
    assert same([rows], partition("pooled", labels, 1, 1, fraction=0.1))
    assert not same([rows], partition("pooled", labels, 1, 2, fraction=0.1))


def test_the_partitions_of_a_seed_are_pinned():
    labels = np.arange(60) % 4
    assert pooled(labels)[0].tolist() == list(range(60))
    assert iid(labels, 6, 5)[0].tolist() == [0, 18, 19, 20, 21, 29, 41, 42, 47, 57]
    assert dirichlet(labels, 4, 0.5, 5)[1].tolist() == [0, 2, 10, 11, 14, 15, 16, 24, 31, 44, 48, 54, 55, 56, 58]
    assert classes_per_client(labels, 6, 2, 5)[2].tolist() == [8, 11, 12, 20, 23, 31, 36, 39, 40, 51]


@settings(deadline=None, max_examples=50)
@given(labels_st, st.integers(1, 9), st.sampled_from([0.05, 0.5, 100.0]), seeds)
def test_balanced_clients_have_equal_sizes_and_every_sample(labels, num_clients, alpha, seed):
    shards = dirichlet_balanced(labels, num_clients, alpha, seed)
    assert_shards(labels, shards, num_clients)
    sizes = [len(shard) for shard in shards]
    assert sum(sizes) == len(labels)
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(labels_st, st.integers(1, 4), st.sampled_from([0.3, 1.0, 100.0]), st.integers(1, 8), seeds)
def test_clients_have_the_samples_asked_for_and_every_sample_is_dealt(labels, num_clients, alpha, least, seed):
    for function in (dirichlet_min_samples, quantity_skew):
        shards = function(labels, num_clients, alpha, seed, min_samples=least)
        assert_shards(labels, shards, num_clients)
        assert sum(map(len, shards)) == len(labels)
        assert min(map(len, shards)) >= least


@settings(deadline=None)
@given(labels_st, st.integers(1, 8), st.integers(1, 5), seeds)
def test_each_client_has_its_number_of_pieces_of_the_samples_sorted_by_class(labels, num_clients, per_client, seed):
    held = shards(labels, num_clients, seed, shards_per_client=per_client)
    assert_shards(labels, held, num_clients)
    ordered = sorted(range(len(labels)), key=lambda row: (labels[row], row))
    number, extra = divmod(len(labels), num_clients * per_client)
    pieces = []
    while ordered:
        length = number + (len(pieces) < extra)
        pieces.append(ordered[:length])
        ordered = ordered[length:]
    owners = [[client for client in range(num_clients) if set(piece) <= set(held[client].tolist())] for piece in pieces]
    assert all(len(owner) == 1 for owner in owners)
    assert np.bincount(np.concatenate(owners)).tolist() == [per_client] * num_clients


@pytest.mark.parametrize(("alpha", "num_clients", "seed"), [(0.1, 30, 0), (0.1, 10, 1), (0.5, 20, 2)])
def test_easyfls_dirichlet_follows_the_published_loop(alpha, num_clients, seed):
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"dirichlet_min_samples"]))
    labels = CIFAR10_LABELS[:2000]
    redrawn = -1
    sizes = [0] * num_clients
    while min(sizes) < 10:
        redrawn += 1
        sizes, expected = [0] * num_clients, [[] for _ in range(num_clients)]
        for label in range(10):
            total = sum(1 for other in labels if other == label)
            proportions = [
                share if size < 2000 / num_clients else 0.0
                for share, size in zip(rng.dirichlet([alpha] * num_clients), sizes, strict=True)
            ]
            start, passed = 0, list(itertools.accumulate(map(float, proportions)))
            for client, share in enumerate(passed):
                end = int(share / passed[-1] * total)
                expected[client].append(end - start)
                sizes[client] += end - start
                start = end
    held = dirichlet_min_samples(labels, num_clients, alpha, seed)
    assert [np.bincount(labels[shard], minlength=10).tolist() for shard in held] == expected
    assert redrawn > 0 or num_clients < 30


def test_quantity_skew_follows_the_published_loop_and_sees_no_labels():
    rng = np.random.default_rng(np.random.SeedSequence([3, *b"quantity_skew"]))
    while True:
        passed = [0.0, *itertools.accumulate(rng.dirichlet([0.2] * 8).tolist())]
        ends = [int(share / passed[-1] * 3000) for share in passed]
        sizes = [end - start for start, end in itertools.pairwise(ends)]
        if min(sizes) >= 10:
            break
    held = quantity_skew(CIFAR10_LABELS[:3000], 8, 0.2, 3)
    assert [len(shard) for shard in held] == sizes
    assert same(held, quantity_skew(np.full(3000, -1), 8, 0.2, 3))


def test_balancing_follows_sinkhorns_loop():
    draws = np.random.default_rng(4).dirichlet([0.5] * 4, 3)  # [C, K]
    class_sizes, client_sizes = np.array([30, 50, 40]), np.array([30, 30, 30, 30])
    shares = [[float(value) for value in row] for row in draws]
    while True:
        for client in range(4):
            total = sum(shares[label][client] for label in range(3))
            for label in range(3):
                shares[label][client] *= client_sizes[client] / total
        for label in range(3):
            total = sum(shares[label])
            shares[label] = [value * class_sizes[label] / total for value in shares[label]]
        if all(abs(sum(row[client] for row in shares) - 30) < 0.5 for client in range(4)):
            break
    np.testing.assert_allclose(balance(draws, class_sizes, client_sizes), shares, rtol=1e-12)


@pytest.mark.parametrize(("num_clients", "alpha"), [(10, 0.1), (100, 0.1), (7, 1.0)])
def test_balanced_counts_are_the_scaled_draws_to_two_samples(num_clients, alpha):
    rng = np.random.default_rng(np.random.SeedSequence([1, *b"dirichlet_balanced"]))
    sizes = np.array([len(part) for part in np.array_split(CIFAR10_LABELS, num_clients)])
    expected = balance(rng.dirichlet([alpha] * num_clients, 10), np.full(10, 5000), sizes)
    held = dirichlet_balanced(CIFAR10_LABELS, num_clients, alpha, 1)
    counts = np.stack([np.bincount(CIFAR10_LABELS[shard], minlength=10) for shard in held], axis=1)
    assert counts.sum(0).tolist() == sizes.tolist()
    assert np.abs(counts - expected).max() < 2  # half from where scaling stops, one from rounding, and what sums lack


def test_balancing_reaches_clients_that_no_class_was_drawn_for():
    draws = np.zeros((2, 4))
    draws[:, 1] = 1.0  # both classes to one client
    shares = balance(draws, np.array([20, 20]), np.array([10, 10, 10, 10]))
    np.testing.assert_allclose(shares, 5.0, rtol=1e-9)  # floors in equal parts, then equal scalings


def test_truncation_leaves_no_client_of_a_tiny_dataset_without_samples():
    for seed in range(50):
        assert_shards(np.arange(10) % 2, dirichlet(np.arange(10) % 2, 4, 0.5, seed), 4)


@pytest.mark.parametrize(("seed", "min_share"), [(0, 0.5), (1, 0.5), (1, 6.0)])
def test_dirichlet_follows_the_authors_loop(seed, min_share):
    rng, drawn = np.random.default_rng(np.random.SeedSequence([seed, *b"dirichlet"])), 0
    while True:
        proportions, drawn = rng.dirichlet([0.1] * 6, 10).T, drawn + 1  # [K, C] as in sampling.py
        if min(sum(row) for row in proportions) > min_share / 6:
            break
    assert drawn > 1 or min_share == 0.5
    shards = dirichlet(CIFAR10_LABELS, 6, 0.1, seed, min_share=min_share)
    for row, shard in zip(proportions, shards, strict=True):
        assert [int(5000 * share) for share in row] == np.bincount(CIFAR10_LABELS[shard], minlength=10).tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(np.zeros(3, np.int64), 4, 0), "cannot divide 3 samples among 4 clients"),
        (lambda: pooled(np.arange(3), fraction=1e-12), "cannot hold out a fraction 1e-12 of 3 samples"),
        (lambda: dirichlet(np.array([0, 1, -1]), 2, 1.0, 0), "1 samples have no label: set partition=iid"),
        (lambda: dirichlet(CIFAR10_LABELS, 6, 0.01, 0, min_share=9.9), "none of 10000 Dirichlet draws"),
        (lambda: classes_per_client(CIFAR10_LABELS, 5, 11, 0), "11 classes, but there are 10"),
        (lambda: classes_per_client(np.array([0, 1, 1]), 3, 2, 0), "class 0 has 1 samples for 3 clients"),
        (
            lambda: partition("shreds", CIFAR10_LABELS, 5, 0),
            "unknown partition 'shreds': did you mean 'shards'?",
        ),
        (
            lambda: dirichlet_min_samples(np.zeros(59, np.int64), 6, 1.0, 0),
            "cannot divide 59 samples among 6 clients: each needs at least 10",
        ),
        (
            lambda: dirichlet_min_samples(np.zeros(60, np.int64), 6, 0.001, 0),
            "none of 10000 Dirichlet draws gave each of 6 clients 10 samples (alpha 0.001): raise partition.alpha",
        ),
        (lambda: stratified_split(np.zeros(1), 0.5, 0), "both parts need a sample"),
    ],
)
def test_impossible_partitions_say_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@settings(deadline=None)
@given(labels_st, st.floats(0.03, 0.97), seeds)
def test_stratified_split_keeps_class_proportions(labels, fraction, seed):
    kept, held_out = stratified_split(labels, fraction, seed)
    assert sorted([*kept, *held_out]) == list(range(len(labels)))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held_out) > 0).all()
    assert fraction * len(labels) - 1e-6 <= len(held_out) < fraction * len(labels) + 1
    for label in np.unique(labels):
        quota = (labels == label).sum() * len(held_out) / len(labels)
        assert abs((labels[held_out] == label).sum() - quota) < 1 + 1e-9


def test_stratified_split_rounds_by_largest_remainders():
    # 4 of 7 are held out: quotas 1.71 of 3 and 2.29 of 4.
    labels = np.array([0, 0, 0, 5, 5, 5, 5])
    assert sorted(labels[stratified_split(labels, 0.5, 0)[1]]) == [0, 0, 5, 5]
    assert len(stratified_split(CIFAR10_LABELS, 0.1, 0)[1]) == 5000
    assert len(stratified_split(np.arange(100) % 3, 0.07, 0)[1]) == 7  # 0.07 * 100 > 7 in floating point
