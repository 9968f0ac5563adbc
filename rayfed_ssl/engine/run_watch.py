"""Warnings while a run goes on: collapse, a loss that stays at its start, divergence, and probes that did not learn.

It reads what clients and evaluations report anyway, once a round; no bit of a run depends on it.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Literal

from rayfed_ssl.config.sections import Evaluation as Settings
from rayfed_ssl.engine.round_loop import Evaluation, Observer, RoundOutcome
from rayfed_ssl.evaluation.protocols import PSEUDO_R2, Linear
from rayfed_ssl.formats import DECISIVE, standard_error
from rayfed_ssl.method import Metrics
from rayfed_ssl.training.objective import Objective

Kind = Literal["collapse", "loss", "divergence", "probe", "start", "bits", "scores", "noise"]

COLLAPSED_STD = 0.02
COLLAPSED_RANK = 1.5
"""An encoder with less is collapsed: docs/diagnostics.md has what collapsed, random and trained ones have.

A random VGG-9 has a standard deviation of 0.009, so that it must also have halved since the start.
"""

FLAT = 0.01
"""A loss stays at its start if no epoch's mean is further from the first epoch's than this share of it."""

FLAT_STEPS = 100
LEAST_STEPS = 20
"""Steps of a client before its loss is judged, or half of the run's rounds where that is less, but never below the least."""

GROWN = 20.0
"""Weights that a local training makes so many times larger have diverged."""

LONGER = 5
"""An encoder below its start is to have so many times its steps, and at least `Objective.enough_steps`."""

PROBE_R2 = 0.05
PROBE_GAP = 0.10
"""A linear probe has not learned below this pseudo-R², or this far, and decisively, below the vote of the neighbors."""


@dataclass(frozen=True)
class RunWarning:
    """A warning; `round` is the one after which it was seen, and a run has at most one of each kind."""

    kind: Kind
    round: int
    message: str


@dataclass(frozen=True)
class RoundLosses:
    """Means over a round's clients: loss of the first and of the last local epoch, and number of steps."""

    first: float
    last: float
    steps: float

    @classmethod
    def of(cls, clients: Iterable[Metrics]) -> "RoundLosses | None":
        """Average what clients report; None if none trains by steps."""
        trained = [metrics for metrics in clients if {"loss_first", "loss", "steps"} <= metrics.keys()]
        if not trained:
            return None
        first, last, steps = (fmean(metrics[name] for metrics in trained) for name in ("loss_first", "loss", "steps"))
        return cls(first, last, steps)


class RunWatch(Observer):
    """Follows a run and gives each kind of warning once, as soon as it is seen.

    Args:
        rounds: T.
        architecture: Names the encoder of a participant.
        chance: The loss of representations that tell no sample from another; None if the objective has none.
        scaled: Names of the linear probes that scale features.
        samples: Number of test samples.
        warn: Takes a warning.
        losses: Of the rounds that were done before, by round.
        given: Warnings that were given before.
        share: Share of the clients in a round.
        to_fill: Steps of a client until losses compare.
        enough: Steps of a client that its objective needs.
    """

    def __init__(
        self,
        rounds: int,
        architecture: Callable[[str], str],
        chance: float | None,
        scaled: Collection[str],
        samples: int,
        warn: Callable[[RunWarning], None],
        losses: Mapping[int, RoundLosses] | None = None,
        given: Iterable[RunWarning] = (),
        share: float = 1.0,
        to_fill: float = 0.0,
        enough: int = Objective.enough_steps,
    ) -> None:
        self._rounds, self._chance, self._warn = rounds, chance, warn
        self._scaled, self._samples, self._share = scaled, samples, share
        self._to_fill, self._enough = to_fill / share, enough
        self._starts: Mapping[str, Metrics] = {}
        self._architecture = architecture
        self._losses = dict(losses or {})
        self._given = {warning.kind for warning in given}

    def on_start_scored(self, scores: Mapping[str, Metrics]) -> None:
        """Remember what the run starts from."""
        self._starts = dict(scores)

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Look at what the clients report."""
        round = outcome.state.round
        clients = {f"client-{report.client}": report.metrics for report in outcome.clients}
        losses = RoundLosses.of(clients.values())
        if losses is not None:
            self._losses[round] = losses
        self._tell("divergence", round, divergence(clients))
        self._tell("collapse", round, collapse(clients, self._floor))
        before = accumulate((item.steps for item in self._losses.values()), initial=0.0)
        compared = {
            key: self._losses[key] for key, steps in zip(self._losses, before, strict=False) if steps >= self._to_fill
        }
        self._tell("loss", round, flat_loss(compared, self._rounds, self._chance))

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Look at the scored encoders."""
        encoders = {item.encoder: item.metrics for item in evaluations}
        round = max((item.round for item in evaluations), default=0)
        self._tell("collapse", round, collapse(encoders, self._floor))
        if round != self._rounds:
            return
        steps = self._share * sum(losses.steps for losses in self._losses.values())
        for name, metrics in encoders.items():
            for remark in probe_remarks(metrics, self._scaled, self._samples):
                self._tell("probe", round, f"{name}: {remark}")
            start = self._starts.get(self._architecture(name), {})
            self._tell("start", round, below_start(name, metrics, start, steps, self._samples, self._enough))

    def _floor(self, participant: str) -> float:
        """The standard deviation below which a participant's features count as collapsed."""
        start = self._starts.get(self._architecture(participant), {}).get("diag_feature_std", math.inf)
        return min(COLLAPSED_STD, start / 2)

    def _tell(self, kind: Kind, round: int, message: str | None) -> None:
        if message is not None and kind not in self._given:
            self._given.add(kind)
            self._warn(RunWarning(kind, round, message))


def collapse(participants: Mapping[str, Metrics], floor: Callable[[str], float]) -> str | None:
    """Say which participants' representations share one direction."""
    low = {}
    for name, metrics in participants.items():
        std = metrics.get("feature_std", metrics.get("diag_feature_std", math.inf))
        rank = metrics.get("diag_effective_rank", math.inf)
        if std < floor(name):
            low[name] = f"standard deviation {std:.3f}"
        elif rank < COLLAPSED_RANK:
            low[name] = f"effective rank {rank:.1f}"
    if not low:
        return None
    name, number = next(iter(low.items()))
    return (
        f"the representations have collapsed to one direction ({name}: {number}"
        f"{f', and {len(low) - 1} more' if len(low) > 1 else ''}): BYOL and SimSiam need training.drop_last=true and a "
        "momentum near 1; of other objectives docs/diagnostics.md has what was tried"
    )


def flat_loss(losses: Mapping[int, RoundLosses], rounds: int, chance: float | None) -> str | None:
    """Say that the loss has stayed at its start, once there are enough steps to tell."""
    if not losses:
        return None
    last = max(losses)
    steps = sum(losses[round].steps for round in losses)
    start = losses[min(losses)].first
    if len(losses) < 2 and (steps < FLAT_STEPS or losses[last].last == start):  # equal where the round was one epoch
        return None
    if steps < LEAST_STEPS or (steps < FLAT_STEPS and 2 * last < rounds):
        return None
    values = [value for item in losses.values() for value in (item.first, item.last)]
    if any(abs(value - start) > FLAT * abs(start) for value in values):
        return None
    at_chance = chance is not None and abs(values[-1] - chance) <= FLAT * chance
    meaning = f", which is chance ({chance:.3f}): no sample is told from another" if at_chance else ""
    return (
        f"after {steps:.0f} steps of a client the loss is still at its start ({start:.3f}, now {values[-1]:.3f}){meaning}: "
        "change the learning rate (higher if the loss is smooth, lower if it jumps), take larger batches or milder views"
    )


def below_start(
    name: str, metrics: Metrics, start: Metrics, steps: float, samples: int, enough: int = Objective.enough_steps
) -> str | None:
    """Say that an encoder is worse than what the run started from in kNN and in the linear probe, beyond chance."""
    titles, parts = {"knn": "kNN", "linear": "the linear probe"}, []
    for score, title in titles.items():
        before, now = start.get(score, 0.0), metrics.get(score, math.inf)
        if now >= before or before - now <= DECISIVE * (error := standard_error(before, now, samples)):
            return None
        parts.append(f"{100 * (before - now):.1f} ± {100 * error:.1f} points in {title}")
    return (
        f"{name} is below its start by {' and '.join(parts)} ({samples:,} test pictures, ± a standard error) after "
        f"{steps:.0f} steps of a client: train longer in a new run, with training.total_steps={longer(steps, enough)}"
    )


def longer(steps: float, enough: int) -> int:
    """Give the budget to try in place of so many steps, after which a run is below its start."""
    return max(enough, round(LONGER * steps))


def divergence(clients: Mapping[str, Metrics]) -> str | None:
    """Say which clients' weights have grown beyond use."""
    for name, metrics in clients.items():
        if (growth := metrics.get("weight_growth", 0.0)) > GROWN:
            return (
                f"the encoder has diverged ({name}: its weights are {growth:.3g} times as large as before the round): lower "
                "the learning rate"
            )
    return None


def scaled_probes(settings: Settings) -> set[str]:
    """Name the linear probes that scale features before they learn."""
    names = {probe.name for probe in settings.chosen if isinstance(probe, Linear) and probe.standardize}
    return names | ({"linear"} if settings.linear.standardize else set())


def probe_remarks(metrics: Metrics, scaled: Collection[str], samples: int | None) -> list[str]:
    """Say which linear probes' scores measure the probe and not the encoder.

    Args:
        metrics: Of one encoder.
        scaled: Names of the probes that scale features.
        samples: Number of test samples, for the standard error; None if it is not known.
    """
    remarks = []
    for name in (name.removesuffix(PSEUDO_R2) for name in metrics if name.endswith(PSEUDO_R2)):
        score, fit, knn = metrics[name], metrics[name + PSEUDO_R2], metrics.get("knn", 0.0)
        remedy = "change its learning rate or train it for more epochs"
        if name not in scaled:
            remedy = "scale its features (standardize=true) or change its learning rate"
        error = standard_error(score, knn, samples or 0)
        why = None
        if fit < 0:
            why, remedy = f"the probe has diverged (pseudo-R² {fit:.3f})", "lower its learning rate"
        elif fit < PROBE_R2:
            why = f"its training loss has hardly moved (pseudo-R² {fit:.3f})"
        elif knn - score > max(PROBE_GAP, DECISIVE * error):
            why = f"it is {100 * (knn - score):.1f} points below kNN"
        if why is not None:
            remarks.append(f"{name} says little about the encoder: {why}: {remedy}")
    return remarks
