import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayfed_ssl.data.partitions import iid, measure_skew, pooled

labels_st = st.lists(st.integers(-1, 4), min_size=12, max_size=40).map(lambda values: np.array(values, np.int64))


def naive(labels, shards):
    """Gini over all pairs, entropies and distances by counting, in plain Python."""
    sizes = [len(shard) for shard in shards]
    pairs = sum(abs(a - b) for a in sizes for b in sizes)
    gini = pairs / (2 * len(sizes) * sum(sizes))
    known = [[int(labels[row]) for row in shard if labels[row] >= 0] for shard in shards]
    known = [values for values in known if values]
    together = [value for values in known for value in values]

    def share(values, label):
        return sum(value == label for value in values) / len(values)

    def entropy(values):
        return -sum(share(values, label) * math.log(share(values, label)) for label in set(values))

    distances = [sum(abs(share(own, c) - share(together, c)) for c in range(5)) / 2 for own in known]
    return (
        gini,
        sum(map(entropy, known)) / len(known),
        entropy(together),
        sum(distances) / len(known),
    )


@given(labels_st.filter(lambda labels: (labels >= 0).any()), st.integers(1, 8), st.integers(0, 99))
def test_measures_agree_with_counting(labels, num_clients, seed):
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(1, len(labels)), num_clients - 1, replace=False))
    shards = np.split(rng.permutation(len(labels)), cuts)
    skew = measure_skew(labels, shards, 5)
    measured = (skew.size_gini, skew.label_entropy, skew.global_entropy, skew.label_distance)
    assert measured == pytest.approx(naive(labels, shards), rel=1e-12, abs=1e-15)
    assert 0 <= skew.size_gini < 1
    assert 0 <= skew.label_distance < 1


def test_known_values():
    labels = np.repeat([0, 1], 4)
    apart = measure_skew(labels, [np.arange(4), np.arange(4, 8)], 2)
    assert (apart.size_gini, apart.label_entropy, apart.label_distance) == (0, 0, 0.5)
    assert apart.global_entropy == pytest.approx(math.log(2), rel=1e-15)
    assert apart.text == "size Gini 0.00, label entropy 0.00 of 0.69 nats, total variation to global labels 0.50"
    assert measure_skew(labels, [np.arange(2), np.arange(2, 8)], 2).size_gini == 0.25  # |2 - 6| * 2 / (2 * 2 * 8)
    whole = measure_skew(labels, pooled(labels), 2)
    assert (whole.size_gini, whole.label_entropy, whole.label_distance) == (0, whole.global_entropy, 0)


def test_without_labels_sizes_alone_are_measured():
    skew = measure_skew(np.full(30, -1), iid(np.full(30, -1), 4, 0), 3)
    assert (skew.label_entropy, skew.global_entropy, skew.label_distance) == (None, None, None)
    assert skew.text == "size Gini 0.03"  # sizes 8, 8, 7, 7
