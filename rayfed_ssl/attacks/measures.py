"""How well an attack did: areas, rates, bounds and distances, with their intervals at 95 %."""

import numpy as np
import torch
from scipy import optimize, stats
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.attacks.attack import Finding

CONFIDENCE = 0.95
RESAMPLES = 1000
"""Of a bootstrap."""


def area(members: np.ndarray, others: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a member has a higher score than another; a tie counts half."""
    ranks = stats.rankdata(np.concatenate([members, others]))[: len(members)]
    return float((ranks.mean() - (len(members) + 1) / 2) / len(others))


def separation(members: np.ndarray, others: np.ndarray, seed: int) -> list[Finding]:
    """Tell members from others by their scores: `auc`, and from 99 others on `tpr` at 1 % false positives.

    The interval of the area is a percentile bootstrap's over both groups, that of the rate Clopper and Pearson's; the rate's
    threshold is itself estimated, which its interval does not cover. Scores that are not finite, of a model that
    diverged, tell nothing and count as 0.
    """
    members, others = (np.nan_to_num(scores, posinf=0, neginf=0) for scores in (members, others))
    rng = np.random.default_rng(seed)
    draws = [area(rng.choice(members, len(members)), rng.choice(others, len(others))) for _ in range(RESAMPLES)]
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    number = len(members) + len(others)
    found = Finding("auc", area(members, others), float(low), float(high), number)
    if (allowed := int(0.01 * (len(others) + 1))) < 1:
        return [found]
    threshold = np.sort(others)[::-1][allowed - 1]  # above it lie members by chance with allowed / (others + 1)
    caught = int((members > threshold).sum())
    interval = stats.binomtest(caught, len(members)).proportion_ci(CONFIDENCE)
    return [found, Finding("tpr", caught / len(members), float(interval.low), float(interval.high), number)]


def least_epsilon(correct: int, guesses: int, canaries: int, delta: float) -> float:
    """Bound epsilon from below by one run's guesses of coins (Steinke, Nasr, Jagielski 2023, Theorem 5.2 and its code).

    Under (epsilon, delta)-DP, the number of right guesses is dominated by a binomial of chance 1 / (1 + exp(-epsilon)),
    up to a term in delta.

    Args:
        correct: Right guesses.
        guesses: Guesses; the auditor abstains from the others.
        canaries: Samples of which a fair coin decided.
        delta: Of the claim.

    Returns:
        The largest epsilon that is refuted at 95 %; 0 where none is.
    """

    def p_value(epsilon: float) -> float:
        chance = 1 / (1 + np.exp(-epsilon))
        tail = stats.binom.sf(correct - 1, guesses, chance)
        below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance))
        slack = max(below / np.arange(1, correct + 1), default=0.0)
        return float(tail + 2 * canaries * delta * slack)

    def excess(epsilon: float) -> float:
        return p_value(epsilon) - (1 - CONFIDENCE)

    if not correct or excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(optimize.bisect(excess, 0.0, high, xtol=1e-6))


def guess_coins(scores: Tensor, trained: Tensor, guessed: float, delta: float) -> list[Finding]:
    """Guess the coins of canaries [m] from their scores: the highest were trained on, as many of the lowest were not.

    Args:
        scores: Of the canaries.
        trained: Their coins, bool.
        guessed: Part of the canaries that is guessed, chosen before anything was seen.
        delta: Of the claim.

    Returns:
        `epsilon`, whose value is the lower bound, and `guesses`, the part that was right.
    """
    each = max(1, int(guessed * len(scores) / 2))
    order = scores.argsort(stable=True)
    correct = int(trained[order[len(order) - each :]].sum() + (~trained[order[:each]]).sum())
    bound = least_epsilon(correct, 2 * each, len(scores), delta)
    interval = stats.binomtest(correct, 2 * each).proportion_ci(CONFIDENCE)
    share = Finding("guesses", correct / (2 * each), float(interval.low), float(interval.high), 2 * each)
    return [Finding("epsilon", bound, bound, None, len(scores)), share]


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of pictures [M, C, H, W] in [0, 1]; [M], at most 100."""
    error = (images - others).square().flatten(1).mean(1)
    return -10 * error.clamp_min(1e-10).log10()


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """Structural similarity of pictures [M, C, H, W] in [0, 1] (Wang, Bovik, Sheikh, Simoncelli 2004); [M].

    The mean over channels and all Gaussian windows within the picture, of deviation 1.5 and 11 pixels a side, or as many as
    the picture has, made odd; K_1 = 0.01, K_2 = 0.03.
    """
    side = min(11, *images.shape[2:])
    radius = (side - 1) // 2
    taps = torch.arange(-radius, radius + 1, device=images.device).div(1.5).square().div(-2).softmax(0)

    def mean(values: Tensor) -> Tensor:
        planes = values.flatten(0, 1).unsqueeze(1)
        return F.conv2d(F.conv2d(planes, taps.view(1, 1, -1, 1)), taps.view(1, 1, 1, -1)).view(len(values), -1)

    first, second = mean(images), mean(others)
    spread = mean(images.square()) - first.square() + mean(others.square()) - second.square()
    shared = mean(images * others) - first * second
    c1, c2 = 0.01**2, 0.03**2
    similarity = (2 * first * second + c1) * (2 * shared + c2)
    return (similarity / ((first.square() + second.square() + c1) * (spread + c2))).mean(1)


def mean_with_interval(metric: str, values: Tensor) -> Finding:
    """Average values [M] of M targets, with Student's interval from two targets on."""
    value, number = float(values.double().mean()), len(values)
    if number < 2:
        return Finding(metric, value, None, None, number)
    half = float(values.double().std() / number**0.5 * stats.t.ppf((1 + CONFIDENCE) / 2, number - 1))
    return Finding(metric, value, value - half, value + half, number)
