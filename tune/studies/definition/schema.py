"""Study files: what is varied, how it is searched and what is shown, as YAML; docs/sweeps.md explains the keys.

A trial runs the recipe (its row's or variant's, else the file's), changed by `set`, settings inherited from another study,
its column and row (see `layers`), its variants, its point and last the user.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

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
    Variant,
)
from tune.studies.definition.search_plan import (
    BYTES,
    EVERY_ROUND,
    MORE_IS_BETTER,
    Asha,
    Goal,
    Median,
    SearchMethod,
    is_of_every_round,
    named,
)
from tune.studies.definition.space import Choice, Parameter, Range, Space, Variants

ROW, COLUMN = "row", "column"
"""Names of the parameters that `rows` and `columns` are."""

SCORES = Annotated[
    tuple[str, ...], Field(strict=False), BeforeValidator(lambda entry: (entry,) if isinstance(entry, str) else entry)
]
SEED_LIST = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**63)], ...],
    Field(strict=False, min_length=1),
    BeforeValidator(lambda entry: tuple(range(entry)) if type(entry) is int else entry),
]


class StudyFile(StrictModel):
    """The keys of a study file.

    Attributes:
        score: What a cell shows, where each has a score of its own and nothing is sought.
        unit: "percent" (scores in [0, 1] times 100), or the unit of a score that is printed as it is.
        published: Row -> a number for each column, null where the paper has none.
        published_score: Which score the published numbers are of, if not that of the cell at the paper's size.
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
    published_score: str | None = None
    baseline: str | None = None
    tuning: Tuning = Tuning()
    maximize: SCORES | None = None
    minimize: SCORES = ()
    take: Annotated[str, Field(pattern=r"^(global|mean|minimum|client-(0|[1-9][0-9]*))$")] | None = None
    selection: Literal["validation", "test"] | None = None
    search: Annotated[SearchMethod, named("name")] = SearchMethod()
    trials: int | None = Field(None, ge=1)
    generation: int = Field(8, ge=1)
    stop: Annotated[Annotated[Asha | Median, Field(discriminator="rule")] | None, named("rule")] = None
    table: Annotated[TableLayout, EMPTY_IF_NULL] = TableLayout()
    figure: Annotated[FigureLayout, EMPTY_IF_NULL] = FigureLayout()
    begin: Inheritance | None = None

    @property
    def kind(self) -> Literal["sweep", "reproduction", "benchmark"]:
        """The command that runs it."""
        return "reproduction" if self.score else "benchmark" if self.baseline else "sweep"

    @property
    def selects_on(self) -> Literal["validation", "test"]:
        """Which samples scores are of; unless the file says it, held-out ones where settings are chosen by them."""
        return self.selection or ("validation" if self.kind == "sweep" else "test")

    @property
    def space(self) -> Space:
        """What is varied: rows, columns and parameters."""
        axes: dict[str, Choice | Variants | Range] = {
            axis: Variants(variants=dict.fromkeys(names, Variant())) for axis, names in self.axes.items() if names
        }
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
        assert self.stop is not None
        first = self.goals[0].score if self.goals else "knn"
        score = self.stop.score or (first if is_of_every_round(first) else "knn")
        if not is_of_every_round(score):
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
    def table_rows(self) -> str | None:
        """The parameter of a table's rows; by default the first."""
        return self.table.rows if self.table.rows or self.table.columns else self.space.names[0]

    @property
    def table_columns(self) -> str | None:
        """The parameter of a table's columns; by default the second."""
        return self.table.columns if self.table.rows or self.table.columns else next(iter(self.space.names[1:]), None)

    @model_validator(mode="after")
    def _check(self) -> "StudyFile":
        if not self.rows and not self.parameters:
            raise ValueError("space is missing: name what is varied, or rows")
        _check_goals(self)
        _check_axes(self)
        _check_keys(self)
        _check_search(self)
        recipes = [[row.recipe for row in self.rows.values()]]
        for parameter in self.parameters.values():
            recipes += [[v.recipe for v in parameter.variants.values()]] if isinstance(parameter, Variants) else []
        if self.recipe is None and not any(named and all(named) for named in recipes):
            raise ValueError("recipe is missing: name one, or one in each row or variant")
        return self


def _check_goals(study: StudyFile) -> None:
    if len(set(study.seeds)) < len(study.seeds):
        raise ValueError(f"seeds must differ, got {list(study.seeds)}")
    if study.score and (study.maximize or study.minimize or study.stop or study.search.name != "grid"):
        raise ValueError("score shows a number in each cell and seeks nothing: remove it, or what seeks")
    for goal in study.goals:
        if goal.maximize and goal.score in BYTES:
            raise ValueError(f"{goal.score} are to be minimized, got maximize")
    if len({goal.score for goal in study.goals}) < len(study.goals):
        raise ValueError(f"each goal counts once, got {', '.join(goal.score for goal in study.goals)}")
    if study.stop is not None:
        if len(study.goals) > 1:
            raise ValueError("stop needs one goal, and there are several: remove stop or all but one goal")
        assert study.stop_goal


def _check_axes(study: StudyFile) -> None:
    """Refuse names of rows and columns that are not there, and a comparison that is not at one budget."""
    if study.columns and not study.rows:
        raise ValueError("columns are there and no rows: name rows, or vary parameters in space")
    if study.score and not study.columns:
        raise ValueError("columns is missing: score shows a number for each row and column")
    if study.parameters and study.kind != "sweep":
        raise ValueError("space is there beside score or baseline, which compare rows and columns: remove one of both")
    if study.sizes and not study.score:
        raise ValueError("sizes belong to a study with a score: remove them, or name a score")
    of_sizes = [size.columns for size in study.sizes.values() if isinstance(size.columns, dict)]
    columns = [column for of in (study.columns, *of_sizes) for column in of.values()]
    rows = [*(row for size in study.sizes.values() for row in size.rows), *(row for c in columns for row in c.rows)]
    baseline = [study.baseline] if study.baseline else []
    _check_names("row", [*baseline, *study.published, *rows], study.rows)
    _check_names("column", [name for size in study.sizes.values() for name in size.columns or ()], study.columns)
    for row, numbers in study.published.items():
        if len(numbers) != len(study.columns):
            raise ValueError(f"row {row} has {len(numbers)} published numbers for {len(study.columns)} columns")
    trials = {name: prod(map(len, row.tune.values())) for name, row in study.rows.items() if row.tune}
    if len(set(trials.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in trials.items())
        raise ValueError(f"all rows are tuned by as many trials, got {counts}")
    slugs: dict[str, str] = {}
    for name in study.rows if study.baseline else ():
        other = slugs.setdefault(slug(name), name)
        if not slug(name) or other != name:
            raise ValueError(f"rows need names that differ in letters and digits, got {name!r} and {other!r}")


def slug(row: str) -> str:
    """Name a row's directory."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in row.lower()).split())


def _check_names(kind: str, names: list[str], allowed: Iterable[str]) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(f"there is no {kind} {name!r}{nearest(name, allowed)}")


def _check_keys(study: StudyFile) -> None:
    """Refuse settings of what is varied, of the seed, and layouts by what is no parameter."""
    names = study.space.names
    places = {"set": study.settings} | {f"rows.{name}": row.settings for name, row in study.rows.items()}
    places |= {f"columns.{name}": column.settings for name, column in study.columns.items()}
    for name, parameter in study.parameters.items():
        for variant, chosen in parameter.variants.items() if isinstance(parameter, Variants) else ():
            places[f"space.{name}.{variant}"] = chosen.settings
    for where, settings in places.items():
        for key in settings:
            if key in names:
                raise ValueError(f"{where} sets {key}, which is varied as well: leave it out of one of both")
    if any("seed" in keys for keys in (names, *places.values())):
        raise ValueError("a seed is a repeat and no parameter: set seeds")
    layout = study.table.model_dump() | study.figure.model_dump(exclude={"draw"})
    for part, name in layout.items():
        if name is not None and name not in names:
            raise ValueError(f"{part} is no parameter: {name!r}{nearest(name, names)}")


def _check_search(study: StudyFile) -> None:
    name = study.search.name
    if name == "grid":
        study.space.grid()
        if study.trials is not None:
            raise ValueError(f"a grid has as many trials as points, got trials: {study.trials}: remove it")
    elif study.trials is None:
        raise ValueError(f"search: {name} needs a number of trials: set trials")
    if len(study.goals) > 1 and name == "tpe":
        raise ValueError("several goals are searched by nsga2, random or grid, got search: tpe")
