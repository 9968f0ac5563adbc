"""Study files: what is varied, how it is searched and what is shown, as YAML; docs/sweeps.md explains the keys.

A trial runs the recipe (its row's, else the file's), changed by `set`, settings inherited from another study,
its column and row (see `layers`), its point and last the user.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from rayfed_ssl.config.strict import EMPTY_IF_NULL, Settings, StrictModel
from rayfed_ssl.errors import nearest
from tune.studies.definition.layers import (
    Column,
    FigureLayout,
    Inheritance,
    Row,
    Size,
    TableLayout,
    Texts,
    Tuning,
)
from tune.studies.definition.space import MAX_GRID_POINTS, Choice, Parameter, Range, Space

ROW, COLUMN = "row", "column"
"""Names of the parameters that `rows` and `columns` are."""

HELD_OUT = 0.1
"""Part of the training samples that is held out to select by."""

BYTES = ("bytes", "bytes_up", "bytes_down")
"""Goals that the ledger gives."""

EPSILON = "epsilon"
"""The goal that is what uploads have cost of a privacy budget."""

TARGET = re.compile(r"(time|bytes)_to:(0?\.\d+)")
"""Goals that say when kNN comes to an accuracy: after how much virtual time, and after how many bytes."""


def is_audit(score: str) -> bool:
    """Whether a score is an attack's number, as "encoder-mi.auc"."""
    return "." in score and not TARGET.fullmatch(score)


@dataclass(frozen=True)
class Goal:
    """A score that is to be maximized or minimized."""

    score: str
    maximize: bool

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """The direction as Optuna calls it."""
        return "maximize" if self.maximize else "minimize"


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
    """Of the trials at a rung, one in `reduction` continues to `reduction` times the rounds; the first is `grace`."""

    rule: Literal["asha"] = "asha"
    grace: int = Field(1, ge=1, lt=10**6)
    reduction: int = Field(4, ge=2, lt=10**6)

    def rungs(self, rounds: int) -> list[int]:
        """List the rounds after which a trial of so many rounds may be stopped."""
        rungs, rung = [], self.grace
        while rung < rounds:
            rungs.append(rung)
            rung *= self.reduction
        return rungs


SCORES = Annotated[
    tuple[str, ...], Field(strict=False), BeforeValidator(lambda entry: (entry,) if isinstance(entry, str) else entry)
]
SEED_LIST = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**63)], ...],
    Field(strict=False),
    BeforeValidator(
        lambda entry: tuple(range(entry)) if type(entry) is int and 0 < entry <= MAX_GRID_POINTS else entry
    ),
]
SEARCH = Annotated[SearchMethod, BeforeValidator(lambda entry: {"name": entry} if isinstance(entry, str) else entry)]


class StudyFile(StrictModel):
    """The keys of a study file.

    Attributes:
        score: What a cell shows, where each has a score of its own and nothing is sought.
        unit: "percent" (scores in [0, 1] times 100), or the unit of a score that is printed as it is.
        published: Row -> a number for each column, null where the paper has none.
        unlike: Why no number is compared with the published one: it is of another dataset or score.
        baseline: The row that all others are compared with.
    """

    title: str | None = None
    source: str = ""
    notes: Texts = ()
    recipe: str | None = None
    settings: Settings = Field({}, alias="set")
    rows: dict[str, Annotated[Row, EMPTY_IF_NULL]] = Field({})
    columns: dict[str, Annotated[Column, EMPTY_IF_NULL]] = Field({})
    parameters: dict[str, Parameter] = Field({}, alias="space")
    sizes: dict[str, Annotated[Size, EMPTY_IF_NULL]] = Field({})
    seeds: SEED_LIST = (0,)
    score: str | None = None
    unit: str = "percent"
    published: Annotated[dict[str, list[float | None]], EMPTY_IF_NULL] = Field({})
    unlike: str | None = None
    baseline: str | None = None
    tuning: Tuning = Tuning()
    maximize: SCORES | None = None
    minimize: SCORES = ()
    take: Annotated[str, Field(pattern=r"^(global|mean|minimum|client-(0|[1-9][0-9]*))$")] | None = None
    selection: Literal["validation", "test"] | None = None
    search: SEARCH = SearchMethod()
    trials: int | None = Field(None, ge=1)
    generation: int = Field(8, ge=1)
    stop: Asha | None = None
    table: Annotated[TableLayout, EMPTY_IF_NULL] = TableLayout()
    figure: Annotated[FigureLayout, EMPTY_IF_NULL] = FigureLayout()
    begin: Inheritance | None = None

    @property
    def kind(self) -> Literal["sweep", "reproduction", "benchmark"]:
        """What it is, which names the command that runs it."""
        return "reproduction" if self.score else "benchmark" if self.baseline else "sweep"

    @property
    def selects_on(self) -> Literal["validation", "test"]:
        """Which samples scores are of; unless the file says it, held-out ones where settings are chosen by them."""
        return self.selection or ("validation" if self.kind == "sweep" else "test")

    @property
    def space(self) -> Space:
        """What is varied: rows, columns and parameters."""
        axes: dict[str, Choice | Range] = {axis: Choice(values=names) for axis, names in self.axes.items() if names}
        return Space(axes | self.parameters)

    @property
    def axes(self) -> dict[str, Sequence[str]]:
        """The names of rows and columns."""
        return {ROW: list(self.rows), COLUMN: list(self.columns)}

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What is sought; the linear probe unless the file says otherwise, and nothing where cells have a score."""
        maximize = self.maximize if self.maximize is not None else ("linear",) * (not self.minimize and not self.score)
        return (*(Goal(score, True) for score in maximize), *(Goal(score, False) for score in self.minimize))

    @property
    def stop_goal(self) -> Goal:
        """What early stopping compares: the goal where it is measured in every round, else kNN."""
        score = self.goals[0].score
        is_of_every_round = score in ("knn", "supervised", EPSILON, *BYTES) or score.startswith("diag_")
        return self.goals[0] if is_of_every_round else Goal("knn", True)

    @property
    def table_axes(self) -> tuple[str | None, str | None]:
        """The parameters of a table's rows and columns; by default the first two."""
        if self.table.rows or self.table.columns:
            return self.table.rows, self.table.columns
        first, second, *_ = (*self.space.names, None)
        return first, second

    @model_validator(mode="after")
    def _check(self) -> "StudyFile":
        for mistakes in (_mistakes_in_search, _mistakes_in_axes):
            if mistake := next(mistakes(self), None):
                raise ValueError(mistake)
        return self


def _mistakes_in_search(study: StudyFile) -> Iterator[str]:
    if not study.rows and not study.parameters:
        yield "space is missing: name what is varied, or rows"
    if not study.seeds:
        yield "seeds is empty: name one at least"
    if len(set(study.seeds)) < len(study.seeds):
        yield f"seeds must differ, got {list(study.seeds)}"
    if "seed" in {*study.space.names, *study.settings}:
        yield "a seed is a repeat and no parameter: set seeds"
    if study.score and (study.maximize or study.minimize or study.stop or study.search.name != "grid"):
        yield "score shows a number in each cell and seeks nothing: remove it, or what seeks"
    if study.stop is not None and len(study.goals) != 1:
        yield f"stop needs one goal, got {len(study.goals)}: remove stop or all but one goal"
    if study.search.name == "grid":
        study.space.grid()
        if study.trials is not None:
            yield f"a grid has as many trials as points, got trials: {study.trials}: remove it"
    elif study.trials is None:
        yield f"search: {study.search.name} needs a number of trials: set trials"
    layout = study.table.model_dump() | study.figure.model_dump(exclude={"draw"})
    names = study.space.names
    yield from (
        f"{part} is no parameter: {name!r}{nearest(name, names)}"
        for part, name in layout.items()
        if name not in (None, *names)
    )


def _mistakes_in_axes(study: StudyFile) -> Iterator[str]:
    """Find names of rows and columns that are not there, and a comparison that is not at one budget."""
    if study.columns and not study.rows:
        yield "columns are there and no rows: name rows, or vary parameters in space"
    if study.score and not study.columns:
        yield "columns is missing: score shows a number for each row and column"
    if study.parameters and study.kind != "sweep":
        yield "space is there beside score or baseline, which compare rows and columns: remove one of both"
    if study.sizes and not study.score:
        yield "sizes belong to a study with a score: remove them, or name a score"
    of_sizes = [row for size in study.sizes.values() for row in size.rows]
    of_columns = [row for column in study.columns.values() for row in column.rows]
    baseline = [study.baseline] if study.baseline else []
    yield from _unknown("row", [*baseline, *study.published, *of_sizes, *of_columns], study.rows)
    yield from _unknown("column", [name for size in study.sizes.values() for name in size.columns or ()], study.columns)
    for row, numbers in study.published.items():
        if len(numbers) != len(study.columns):
            yield f"row {row} has {len(numbers)} published numbers for {len(study.columns)} columns"
    trials = {name: prod(map(len, row.tune.values())) for name, row in study.rows.items() if row.tune}
    if len(set(trials.values())) > 1:
        yield f"all rows are tuned by as many trials, got {', '.join(f'{row} {count}' for row, count in trials.items())}"
    if study.baseline and len({slug(name) for name in study.rows} - {""}) < len(study.rows):
        yield f"rows need names that differ in letters and digits, got {', '.join(study.rows)}"
    recipes = [row.recipe for row in study.rows.values()]
    if study.recipe is None and not (recipes and all(recipes)):
        yield "recipe is missing: name one, or one in each row"


def _unknown(kind: str, names: Iterable[str], allowed: Iterable[str]) -> Iterator[str]:
    return (f"there is no {kind} {name!r}{nearest(name, allowed)}" for name in names if name not in allowed)


def slug(row: str) -> str:
    """Name a row's directory."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in row.lower()).split())
