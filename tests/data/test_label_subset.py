"""Few labels: which samples have one."""

import numpy as np
import pytest

from rayfed_ssl.data.label_subset import label_subset


def classes(*sizes: int) -> np.ndarray:
    """Labels with so many samples of each class, mixed."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


@pytest.mark.parametrize(
    ("sizes", "fraction", "counts"),
    [
        ((50, 20, 30), 0.12, [4, 4, 4]),
        ((90, 3, 7), 0.3, [20, 3, 7]),
        ((5, 3), 1.0, [5, 3]),
        ((1, 9, 2, 6), 0.5, [1, 3, 2, 3]),
    ],
)
def test_a_balanced_choice_has_as_many_of_each_class_as_there_are(sizes, fraction, counts):
    labels = classes(*sizes)
    rows = label_subset(labels, fraction, "balanced", 0)
    assert np.bincount(labels[rows]).tolist() == counts
    assert (np.diff(rows) > 0).all()


def test_what_does_not_divide_goes_to_classes_at_random():
    labels = classes(40, 40, 40)
    counts = [np.bincount(labels[label_subset(labels, 4 / 120, "balanced", seed)], minlength=3) for seed in range(30)]
    assert all(sorted(count.tolist()) == [1, 1, 2] for count in counts)
    assert {int(count.argmax()) for count in counts} == {0, 1, 2}


def test_a_random_choice_follows_the_classes_sizes():
    labels = classes(900, 100)
    counts = np.bincount(labels[label_subset(labels, 0.5, "random", 0)])
    # 500 of 1,000 without replacement: the hypergeometric deviation is 4.7; five of them
    assert counts.sum() == 500
    assert abs(counts[0] - 450) < 24


@pytest.mark.parametrize("choice", ["balanced", "random"])
def test_samples_without_a_label_are_never_chosen_and_do_not_count(choice: str):
    labels = classes(20, 20)
    labels[::2] = -1
    rows = label_subset(labels, 0.5, choice, 0)  # type: ignore[arg-type]
    assert len(rows) == 10
    assert (labels[rows] >= 0).all()


def test_a_set_without_labels_is_refused():
    with pytest.raises(ValueError, match="none of 4 samples has a label"):
        label_subset(np.full(4, -1), 0.5, "random", 0)
