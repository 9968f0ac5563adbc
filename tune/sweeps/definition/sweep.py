"""Sweeps: what is varied, what is sought, and which configuration a trial runs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tune.sweeps.definition.spaces import Space

GENERATION = 8
"""Trials that are chosen at a time."""

HELD_OUT = 0.1
"""Part of the training samples that is held out to select by."""

BYTES = ("bytes", "bytes_up", "bytes_down")
"""Goals that the ledger gives."""

EVERY_ROUND = ("knn", "supervised", *BYTES)
"""Goals that may be known after each round, so that they can stop a trial; diagnostics may be too."""

SEARCHES = ("grid", "random", "tpe", "nsga2")


@dataclass(frozen=True)
class Goal:
    """What is sought.

    Attributes:
        score: A score's name, or one of BYTES.
        maximize: Whether more is better.
    """

    score: str
    maximize: bool

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Optuna's word."""
        return "maximize" if self.maximize else "minimize"

    def cost(self, value: float) -> float:
        """Write a value so that less is better."""
        return -value if self.maximize else value


@dataclass(frozen=True)
class Stop:
    """When a trial is given up.

    Attributes:
        rule: "asha" or "median".
        grace: Rounds that every trial gets.
        reduction: ASHA: one in so many goes on to so many times the rounds.
        every: Median: rounds between two decisions.
        samples: Median: trials that must have come as far before anyone is stopped.
        score: What decides, a score of every round.
        maximize: Whether more of it is better.
    """

    rule: str
    grace: int = 1
    reduction: int = 4
    every: int = 1
    samples: int = 3
    score: str = "knn"
    maximize: bool = True

    def rungs(self, rounds: int) -> list[int]:
        """List the rounds after which a trial of so many rounds may be stopped."""
        if self.rule == "median":
            return list(range(self.grace, rounds, self.every))
        found, rung = [], self.grace
        while rung < rounds:
            found.append(rung)
            rung *= self.reduction
        return found

    @property
    def evaluate_every(self) -> int:
        """Rounds between two scores, so that each decision has one."""
        return self.grace if self.rule == "asha" else math.gcd(self.grace, self.every)


@dataclass(frozen=True)
class Layout:
    """How results are shown: names of parameters, or None."""

    rows: str | None = None
    columns: str | None = None
    x: str | None = None
    lines: str | None = None
    panels: str | None = None


@dataclass(frozen=True)
class Begin:
    """Settings from the best trial of another sweep.

    Attributes:
        sweep: Its name.
        where: Values that its trial must have.
        take: Keys whose values are taken.
    """

    sweep: str
    where: Mapping[str, Any]
    take: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """A sweep; the fields are those of its file (`tune/sweeps/definition/files.py`), and these.

    Attributes:
        goals: What `maximize` and `minimize` name.
        overrides: The user's settings of all trials, "key=value".
        home: Directory that relative paths of data and recipes start from; the default is that of the process.
    """

    name: str
    title: str
    space: Space
    recipe: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    goals: tuple[Goal, ...] = (Goal("linear", True),)
    take: str | None = None
    selection: str = "validation"
    search: str = "grid"
    sampler: Mapping[str, Any] = field(default_factory=dict)
    trials: int | None = None
    generation: int = GENERATION
    stop: Stop | None = None
    layout: Layout = Layout()
    begin: Begin | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    home: Path = Path()

    @property
    def adapts(self) -> bool:
        """Whether what is tried, or how far, depends on results."""
        return self.stop is not None or self.search in ("tpe", "nsga2")
