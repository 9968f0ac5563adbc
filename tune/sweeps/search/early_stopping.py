"""Early stopping by Ray Tune's rules, asked one result after the other in an order of our own."""

from dataclasses import dataclass
from typing import Any

import actors  # noqa: F401  # it sets what Ray reads while it is imported

# isort: split
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule, TrialScheduler

from tune.sweeps.definition.sweep import Stop

NO_END = 10**6
"""More rounds than any trial has, so that only the rungs below its own last round decide."""


@dataclass(frozen=True)
class _Known:
    """What Ray's rules look at of a trial."""

    trial_id: str


class _Nobody:
    """The controller that Ray's rules may ask whether others wait for a place: here nobody does."""

    def get_live_trials(self) -> list[Any]:
        """Name the trials under way."""
        return []


class Rule:
    """Says of one trial after the other whether it goes on; the answers follow from the questions so far.

    Args:
        scheduler: Ray Tune's, which judges by "value" after so many "rounds".
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._known: dict[int, _Known] = {}

    def stops(self, number: int, round: int, value: float) -> bool:
        """Decide on a trial.

        Args:
            number: The trial's.
            round: That it has come to.
            value: Of what decides.
        """
        if number not in self._known:
            self._known[number] = _Known(str(number))
            self._scheduler.on_trial_add(_Nobody(), self._known[number])
        result = {"rounds": round, "value": value}
        decision = self._scheduler.on_trial_result(_Nobody(), self._known[number], result)
        return bool(decision == TrialScheduler.STOP)


def make_rule(stop: Stop) -> Rule:
    """Set up a rule."""
    common: dict[str, Any] = {"time_attr": "rounds", "metric": "value", "mode": "max" if stop.maximize else "min"}
    if stop.rule == "asha":
        return Rule(ASHAScheduler(**common, grace_period=stop.grace, reduction_factor=stop.reduction, max_t=NO_END))
    return Rule(
        MedianStoppingRule(
            **common, grace_period=stop.grace, min_samples_required=stop.samples, min_time_slice=NO_END, hard_stop=True
        )
    )
