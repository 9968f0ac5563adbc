"""`results.json` of a sweep: its trials, a table for each goal, the best and the Pareto front.

Values are fractions and bytes; only texts are in percent.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field, model_validator

from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.formats import MeanStd, Unit


class GoalResult(StrictModel):
    """What is sought; `unit` is "percent" of a score in [0, 1], "bytes", or "" of a diagnostic."""

    score: str
    maximize: bool
    unit: Unit


class SearchResult(StrictModel):
    """How points were chosen; `trials` is how many the sweep has in all."""

    name: str
    settings: dict[str, Any]
    trials: int
    generation: int
    stop: dict[str, Any] | None


class ScoreResult(StrictModel):
    """A score over seeds (n - 1; null of one seed), and of each seed."""

    mean: float
    std: float | None
    each: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> "ScoreResult":
        """Summarize the values of all seeds."""
        over_seeds = MeanStd.of(values)
        return cls(mean=over_seeds.mean, std=over_seeds.std, each=list(values))

    def over_seeds(self) -> MeanStd:
        """Mean and deviation, to be written."""
        return MeanStd(self.mean, self.std, len(self.each))


class TrialResult(StrictModel):
    """A trial.

    Attributes:
        point: Its values, and `label` the same as text.
        state: complete, stopped, failed or waiting.
        seeds: Of its runs; none where the settings are impossible.
        runs: A directory for each seed, relative to this file.
        reached: Rounds that all of them have reached, of `rounds`.
        bytes: Mean over seeds.
        values: Goal's score -> values; empty where the trial is not complete.
        seconds: That rounds took, by run; not in the file.
    """

    number: int
    label: str
    point: dict[str, Any]
    state: str
    reason: str
    seeds: list[int]
    runs: list[str]
    reached: int
    rounds: int | None
    bytes: float
    values: dict[str, ScoreResult]
    seconds: dict[str, float] = Field({}, exclude=True)


class TableCell(StrictModel):
    """A cell with the trial that it shows; `best` where no cell of its column is better."""

    text: str
    trial: int | None = None
    mean: float | None = None
    std: float | None = None
    best: bool = False


class TableLine(StrictModel):
    """A line of a table."""

    label: str
    cells: list[TableCell]


class TableResult(StrictModel):
    """A table of one goal."""

    goal: str
    title: str
    head: list[str]
    lines: list[TableLine]
    remarks: list[str]

    @model_validator(mode="after")
    def _check(self) -> "TableResult":
        if any(len(line.cells) + 1 != len(self.head) for line in self.lines):
            raise ValueError("as many cells as headings are needed")
        return self


class BestTrial(StrictModel):
    """The best complete trial by the first goal, and the file of its recipe."""

    trial: int
    point: dict[str, Any]
    values: dict[str, ScoreResult]
    recipe: str


class SweepResults(StrictModel):
    """`results.json`.

    Attributes:
        finished: When it ended; null where trials are missing.
        held_out: Numbers of held-out training samples that scores are of, one for each dataset; empty if selection is test.
        layout: Parameters that table and figure show: rows, columns, x, lines, panels.
        states: State -> number of trials.
        runs: Number of different runs.
        front: Numbers of the trials on the Pareto front of several goals, the best by the first goal first.
        recipes: Number of a trial on the front, as a string -> its recipe.
        remarks: What a reader has to know, a line each.
        figures: File names, PNG and SVG, relative to this file.
    """

    format: int = Field(1, ge=1, le=1)
    name: str
    title: str
    source: str
    notes: list[str]
    command: str | None
    started: str
    finished: str | None
    goals: list[GoalResult]
    take: str | None
    selection: str
    seeds: list[int]
    held_out: list[int]
    search: SearchResult
    layout: dict[str, str | None]
    states: dict[str, int]
    runs: int
    trials: list[TrialResult]
    tables: list[TableResult]
    best: BestTrial | None
    front: list[int]
    recipes: dict[str, str]
    remarks: list[str]
    figures: list[str]

    @model_validator(mode="after")
    def _check(self) -> "SweepResults":
        numbers = {trial.number for trial in self.trials}
        if not {*self.front, *([self.best.trial] if self.best else [])} <= numbers:
            raise ValueError("the best and the front are trials that are not in it")
        return self
