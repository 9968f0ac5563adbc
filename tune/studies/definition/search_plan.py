"""What a study seeks: scores and their direction, how points are chosen, and when a trial is stopped early."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from rayfed_ssl.config.strict import StrictModel

HELD_OUT = 0.1
"""Part of the training samples that is held out to select by."""

BYTES = ("bytes", "bytes_up", "bytes_down")
"""Goals that the ledger gives."""

EVERY_ROUND = ("knn", "supervised", *BYTES)
"""Scores that may be measured after each round, so that they can stop a trial; diagnostics may be too."""

MORE_IS_BETTER = {
    "knn": True,
    "supervised": True,
    "diag_feature_std": True,
    "diag_effective_rank": True,
} | dict.fromkeys((*BYTES, "diag_alignment", "diag_uniformity"), False)
"""Of alignment and uniformity less is better (Wang and Isola 2020)."""


@dataclass(frozen=True)
class Goal:
    """A score that is to be maximized or minimized."""

    score: str
    maximize: bool

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """The direction as Optuna calls it."""
        return "maximize" if self.maximize else "minimize"

    def cost(self, value: float) -> float:
        """Write a value so that less is better."""
        return -value if self.maximize else value


def named(key: str) -> BeforeValidator:
    """Take a bare text for the mapping with that key alone."""
    return BeforeValidator(lambda entry: {key: entry} if isinstance(entry, str) else entry)


class SearchMethod(StrictModel):
    """How points are chosen; other keys are settings of Optuna's sampler."""

    model_config = ConfigDict(extra="allow")

    name: Literal["grid", "random", "tpe", "nsga2"] = "grid"
    seed: int = Field(0, ge=0, lt=2**32)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the sampler."""
        return {"seed": self.seed} | (self.model_extra or {})


class Asha(StrictModel):
    """Of the trials at a rung, one in `reduction` continues to `reduction` times the rounds."""

    rule: Literal["asha"]
    grace: int = Field(1, ge=1, lt=10**6)
    reduction: int = Field(4, ge=2, lt=10**6)
    score: str | None = None

    def rungs(self, rounds: int) -> list[int]:
        """List the rounds after which a trial of so many rounds may be stopped."""
        rungs, rung = [], self.grace
        while rung < rounds:
            rungs.append(rung)
            rung *= self.reduction
        return rungs

    @property
    def evaluate_every(self) -> int:
        """Rounds between two scores, so that each decision has one."""
        return self.grace


class Median(StrictModel):
    """A trial stops that is worse than the median of complete trials, once there are `samples` of them."""

    rule: Literal["median"]
    grace: int = Field(1, ge=1, lt=10**6)
    every: int = Field(1, ge=1, lt=10**6)
    samples: int = Field(3, ge=1, lt=10**6)
    score: str | None = None

    def rungs(self, rounds: int) -> list[int]:
        """List the rounds after which a trial of so many rounds may be stopped."""
        return list(range(self.grace, rounds, self.every))

    @property
    def evaluate_every(self) -> int:
        """Rounds between two scores, so that each decision has one."""
        return math.gcd(self.grace, self.every)


def is_of_every_round(score: str) -> bool:
    """Whether a score may be measured after each round."""
    return score in EVERY_ROUND or score.startswith("diag_")
