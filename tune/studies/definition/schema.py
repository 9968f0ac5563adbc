"""Sweep files: what is varied, how it is searched and what is shown, as YAML; docs/sweeps.md explains the keys.

A trial runs the recipe (the variant's, else the file's), changed by `set`, settings inherited from another sweep, the
variants, its point and last the user.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from rayfed_ssl.config.strict import EMPTY_IF_NULL, Settings, StrictModel
from rayfed_ssl.errors import nearest
from tune.studies.definition.space import Parameter, Space, Variants

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


def _named(key: str) -> BeforeValidator:
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


class TableLayout(StrictModel):
    """Names of the parameters along a table."""

    rows: str | None = None
    columns: str | None = None


class FigureLayout(StrictModel):
    """Names of the parameters of a figure."""

    x: str | None = None
    lines: str | None = None
    panels: str | None = None


class Inheritance(StrictModel):
    """Settings (`take`) from the best trial of another sweep, of those with the values in `where`."""

    sweep: str
    where: Settings = Field({})
    take: Annotated[tuple[str, ...], Field(strict=False)]


SCORES = Annotated[
    tuple[str, ...], Field(strict=False), BeforeValidator(lambda entry: (entry,) if isinstance(entry, str) else entry)
]
SEED_LIST = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**63)], ...],
    Field(strict=False, min_length=1),
    BeforeValidator(lambda entry: tuple(range(entry)) if type(entry) is int else entry),
]


class SweepFile(StrictModel):
    """The keys of a sweep file."""

    title: str | None = None
    source: str = ""
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    recipe: str | None = None
    settings: Settings = Field({}, alias="set")
    parameters: Annotated[dict[str, Parameter], Field(min_length=1, alias="space")]
    seeds: SEED_LIST = (0,)
    maximize: SCORES | None = None
    minimize: SCORES = ()
    take: Annotated[str, Field(pattern=r"^(global|mean|minimum|client-(0|[1-9][0-9]*))$")] | None = None
    selection: Literal["validation", "test"] = "validation"
    search: Annotated[SearchMethod, _named("name")] = SearchMethod()
    trials: int | None = Field(None, ge=1)
    generation: int = Field(8, ge=1)
    stop: Annotated[Annotated[Asha | Median, Field(discriminator="rule")] | None, _named("rule")] = None
    table: Annotated[TableLayout, EMPTY_IF_NULL] = TableLayout()
    figure: Annotated[FigureLayout, EMPTY_IF_NULL] = FigureLayout()
    begin: Inheritance | None = None

    @cached_property
    def space(self) -> Space:
        """What is varied."""
        return Space(self.parameters)

    @cached_property
    def goals(self) -> tuple[Goal, ...]:
        """What is sought; the linear probe unless the file says otherwise, and nothing with `maximize: []` alone."""
        maximize = self.maximize if self.maximize is not None else ("linear",) * (not self.minimize)
        return (*(Goal(score, True) for score in maximize), *(Goal(score, False) for score in self.minimize))

    @cached_property
    def stop_goal(self) -> Goal:
        """What early stopping compares: the goal where it is measured in every round, else kNN."""
        assert self.stop is not None
        first = self.goals[0].score if self.goals else "knn"
        score = self.stop.score or (first if _is_of_every_round(first) else "knn")
        if not _is_of_every_round(score):
            raise ValueError(
                f"stop.score is one of every round: {', '.join(EVERY_ROUND)} or a diagnostic (diag_...), got {score!r}"
            )
        for goal in self.goals:
            if goal.score == score:
                return goal
        if score not in MORE_IS_BETTER:
            raise ValueError(
                f"stop.score={score} has no known direction unless it is the goal: take {', '.join(MORE_IS_BETTER)}"
            )
        return Goal(score, MORE_IS_BETTER[score])

    @property
    def rows(self) -> str | None:
        """The parameter of a table's rows; by default the first."""
        return self.table.rows if self.table.rows or self.table.columns else self.space.names[0]

    @property
    def columns(self) -> str | None:
        """The parameter of a table's columns; by default the second."""
        return self.table.columns if self.table.rows or self.table.columns else next(iter(self.space.names[1:]), None)

    @model_validator(mode="after")
    def _check(self) -> "SweepFile":
        _check_goals(self)
        _check_keys(self)
        _check_search(self)
        if self.recipe is None and not any(
            all(variant.recipe for variant in parameter.variants.values())
            for parameter in self.parameters.values()
            if isinstance(parameter, Variants)
        ):
            raise ValueError("recipe is missing: name one, or one in each variant")
        return self


def _is_of_every_round(score: str) -> bool:
    return score in EVERY_ROUND or score.startswith("diag_")


def _check_goals(sweep: SweepFile) -> None:
    if len(set(sweep.seeds)) < len(sweep.seeds):
        raise ValueError(f"seeds must differ, got {list(sweep.seeds)}")
    for goal in sweep.goals:
        if goal.maximize and goal.score in BYTES:
            raise ValueError(f"{goal.score} are to be minimized, got maximize")
    if len({goal.score for goal in sweep.goals}) < len(sweep.goals):
        raise ValueError(f"each goal counts once, got {', '.join(goal.score for goal in sweep.goals)}")
    if sweep.stop is not None:
        if len(sweep.goals) > 1:
            raise ValueError("stop needs one goal, and there are several: remove stop or all but one goal")
        assert sweep.stop_goal


def _check_keys(sweep: SweepFile) -> None:
    """Refuse settings of what is varied, of the seed, and layouts by what is no parameter."""
    names = sweep.space.names
    places = {"set": sweep.settings}
    for name, parameter in sweep.parameters.items():
        for variant, chosen in parameter.variants.items() if isinstance(parameter, Variants) else ():
            places[f"space.{name}.{variant}"] = chosen.settings
    for where, settings in places.items():
        for key in settings:
            if key in names:
                raise ValueError(f"{where} sets {key}, which is varied as well: leave it out of one of both")
    if any("seed" in keys for keys in (names, *places.values())):
        raise ValueError("a seed is a repeat and no parameter: set seeds")
    for part, name in (sweep.table.model_dump() | sweep.figure.model_dump()).items():
        if name is not None and name not in (*names, "seed"):
            raise ValueError(f"{part} is no parameter: {name!r}{nearest(name, [*names, 'seed'])}")


def _check_search(sweep: SweepFile) -> None:
    name = sweep.search.name
    if name == "grid":
        sweep.space.grid()
        if sweep.trials is not None:
            raise ValueError(f"a grid has as many trials as points, got trials: {sweep.trials}: remove it")
    elif sweep.trials is None:
        raise ValueError(f"search: {name} needs a number of trials: set trials")
    if len(sweep.goals) > 1 and name == "tpe":
        raise ValueError("several goals are searched by nsga2, random or grid, got search: tpe")


class Sweep(SweepFile):
    """A sweep file with what its user and its directory add.

    Attributes:
        name: The file's name.
        overrides: The user's settings of all trials, "key=value".
        directory: Directory that relative paths of data and recipes start from.
    """

    name: str
    overrides: tuple[str, ...] = ()
    directory: Path = Path()

    @property
    def heading(self) -> str:
        """Its title, or its name."""
        return self.title or self.name

    @property
    def adapts(self) -> bool:
        """Whether what is tried, or how far, depends on results."""
        return self.stop is not None or self.search.name in ("tpe", "nsga2")

    @property
    def num_trials(self) -> int:
        """How many trials it has."""
        return self.trials or len(self.space.grid())
