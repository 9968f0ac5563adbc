"""What the report needs of the files that it reads, so that a damaged one is told before it is drawn.

Other keys may be there. `reproduction.json` is described in `reproductions/definition.py`, a sweep's `results.json` in
`tune/sweeps/results/summary.py`.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Cell(_Part):
    row: str
    column: str
    published: float | None = None
    mean: float | None = None
    std: float | None = None
    difference: float | None = None
    ours: list[float | None] | None = None
    runs: list[str | None] | None = None
    failures: dict[str, Any] | None = None


class _Agreement(_Part):
    kendall: float | None = None
    columns: dict[str, float | None] | None = None


class ReproductionFile(_Part):
    """`reproduction.json`: a table's rows and columns, and a cell for each place that was tried."""

    rows: list[str]
    columns: list[str]
    cells: list[_Cell]
    seeds: list[int] | None = None
    source: dict[str, Any] | None = None
    skipped: dict[str, Any] | None = None
    agreement: _Agreement | None = None
    notes: list[Any] | None = None
    figures: list[str] | None = None


class _Goal(_Part):
    score: str
    maximize: bool
    unit: str


class _Search(_Part):
    name: str
    trials: int


class _Value(_Part):
    mean: float
    std: float | None


class _Trial(_Part):
    number: int
    label: str
    state: str
    reason: str
    seeds: list[int]
    runs: list[str]
    reached: int
    rounds: int | None
    bytes: float
    values: dict[str, _Value]


class _Shown(_Part):
    text: str
    mean: float | None
    best: bool


class _Line(_Part):
    label: str
    cells: list[_Shown]


class _Layout(_Part):
    title: str
    head: list[str]
    lines: list[_Line]
    remarks: list[str]

    @model_validator(mode="after")
    def _check(self) -> "_Layout":
        if any(len(line.cells) + 1 != len(self.head) for line in self.lines):
            raise ValueError("as many cells as headings are needed")
        return self


class _Best(_Part):
    trial: int
    recipe: str


class SweepFile(_Part):
    """`results.json` of a sweep: its trials, a table for each goal, the best and the Pareto front."""

    title: str
    source: str
    notes: list[str]
    command: str | None
    finished: str | None
    goals: list[_Goal]
    search: _Search
    layout: dict[str, str | None]
    states: dict[str, int]
    trials: list[_Trial]
    tables: list[_Layout]
    best: _Best | None
    front: list[int]
    recipes: dict[str, str]
    remarks: list[str]
    figures: list[str]

    @model_validator(mode="after")
    def _check(self) -> "SweepFile":
        known = {trial.number for trial in self.trials}
        if not {*self.front, *([self.best.trial] if self.best else [])} <= known:
            raise ValueError("the best and the front are trials that are not in it")
        return self


def damage(content: Any, schema: type[BaseModel]) -> str | None:
    """Say in a few words what is wrong with a file's content first, or None where nothing is."""
    try:
        schema.model_validate(content)
    except ValidationError as error:
        mistake = error.errors()[0]
        where = ".".join(map(str, mistake["loc"]))
        if mistake["type"] == "missing":
            return f"there is no {where!r} in it"
        what = mistake["msg"].removeprefix("Value error, ")
        if not where and mistake["type"] != "value_error":
            return "it is no table of keys and values"
        return f"{where}: {what[0].lower()}{what[1:]}" if where else what
    return None
