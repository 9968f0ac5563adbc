"""Scores and measures of attacks are those of scikit-learn, of naive loops and of published figures."""

from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from rayfed_ssl.attacks import rmia
from rayfed_ssl.attacks.encoder_mi import mean_cosine
from rayfed_ssl.attacks.measures import area, least_epsilon, separation


@pytest.mark.parametrize("seed", range(5))
def test_areas_and_rates_are_those_of_scikit_learn(seed: int):
    rng = np.random.default_rng(seed)
    members, others = (
        rng.normal(0.7, 1, 130).round(1),
        rng.normal(0, 1, 250).round(1),
    )  # rounded, so that some are equal
    labels, scores = np.r_[np.ones(130), np.zeros(250)], np.r_[members, others]
    assert area(members, others) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
    (rate,) = (finding.value for finding in separation(members, others, 0) if finding.metric == "tpr")
    # One other at the threshold is not above it: the curve's last point with at most one false positive.
    assert rate <= true[false <= 2 / 250].max()
    assert rate == np.mean(members > np.sort(others)[-2])


def test_rmia_counts_the_pictures_that_are_fitted_less():
    rng = np.random.default_rng(0)
    pictures, population = rng.normal(size=(2, 30)), rng.normal(size=(2, 20))
    counts = []
    for own, reference in pictures.T:
        ratios = [
            (np.exp(own) / np.exp(reference)) / (np.exp(other) / np.exp(other_reference))
            for other, other_reference in population.T
        ]
        counts.append(np.mean([ratio >= 1.2 for ratio in ratios]))
    found = rmia.score(torch.tensor(pictures[0] - pictures[1]), torch.tensor(population[0] - population[1]), 1.2)
    np.testing.assert_array_equal(found, counts)


def test_mean_cosine_is_that_of_all_pairs_of_views():
    features = torch.randn(4, 6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = [torch.cosine_similarity(features[i], features[j]) for i, j in combinations(range(4), 2)]
    torch.testing.assert_close(mean_cosine(features), torch.stack(pairs).mean(0))


@pytest.mark.parametrize(("guesses", "bound"), [(100, 3.48), (500, 5.11), (1000, 5.81)])
def test_the_bound_of_right_guesses_alone_has_a_closed_form(guesses: int, bound: float):
    """(1 / (1 + exp(-epsilon)))^guesses = 0.05."""
    found = least_epsilon(guesses, guesses, guesses, 0.0)
    assert found == pytest.approx(-np.log(0.05 ** (-1 / guesses) - 1), abs=1e-5)
    assert found == pytest.approx(bound, abs=0.02)
    assert least_epsilon(guesses // 2, guesses, guesses, 0.0) == 0
