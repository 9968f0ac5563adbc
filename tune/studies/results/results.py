"""`results.json` of a study: its trials, its tables, the best and the Pareto front, and what is compared with what.

Values are fractions and bytes; texts, published numbers and differences from these are in the table's unit.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

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
        values: Goal's score, or the cell's -> values; empty where the trial is not complete.
        published: The paper's number, and `difference` ours minus that, both in the study's unit.
        unlike: Why ours and the published number are not compared: another dataset or score.
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
    score: str | None = None
    take: str | None = None
    published: float | None = None
    difference: float | None = None
    unlike: str | None = None
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
    """A table as it is shown; `goal` is the score that it is of."""

    goal: str = ""
    title: str
    head: list[str]
    lines: list[TableLine]
    remarks: list[str] = Field([])

    @classmethod
    def of(cls, title: str, head: list[str], rows: Sequence[Sequence[str]]) -> "TableResult":
        """Make a table of texts."""
        lines = [TableLine(label=row[0], cells=[TableCell(text=text) for text in row[1:]]) for row in rows]
        return cls(title=title, head=head, lines=lines)

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


class Agreement(StrictModel):
    """Kendall's tau-b between our means and the published numbers, over all cells that have both and within each column."""

    cells: int = 0
    kendall: float | None = None
    columns: dict[str, float | None] = Field({})


class Difference(StrictModel):
    """Mean of a row's score minus the baseline's with the same seed, and its 95 % interval by Student's t.

    Attributes:
        low, high: None for a single seed.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def text(self) -> str:
        """Write it in points: "+1.20 [-0.31, +2.71]"."""
        if self.low is None or self.high is None:
            return f"{100 * self.mean:+.2f}"
        return f"{100 * self.mean:+.2f} [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"


class SystemRun(StrictModel):
    """A run of a row in a column.

    Attributes:
        run: Its directory, relative to the file.
        scores: In [0, 1], by name.
        epochs: Local epochs after which kNN was scored, 0 for the start.
        knn: kNN accuracies in [0, 1] after these epochs.
    """

    seed: int
    run: str
    scores: dict[str, float]
    bytes: int
    seconds: float
    state_sha256: str | None
    epochs: list[int]
    knn: list[float]


class System(StrictModel):
    """A row in a column, compared with the baseline; `rank` 1 is the best mean of those with a score."""

    row: str
    column: str
    runs: list[SystemRun]
    difference: Difference | None = None
    rank: int | None = None

    def mean(self, score: str) -> MeanStd | None:
        """Summarize a score over seeds."""
        values = [run.scores[score] for run in self.runs if score in run.scores]
        return MeanStd.of(values) if values else None

    def knn_curve(self) -> dict[int, float]:
        """Average the kNN accuracies in [0, 1] over seeds by local epochs."""
        values: dict[int, list[float]] = {}
        for run in self.runs:
            for epochs, knn in zip(run.epochs, run.knn, strict=True):
                values.setdefault(epochs, []).append(knn)
        return {epochs: fmean(values[epochs]) for epochs in sorted(values)}


class StudyResults(StrictModel):
    """`results.json`.

    Attributes:
        kind: "sweep", "reproduction" or "benchmark".
        finished: When it ended; null where trials are missing.
        size: One of the file's sizes.
        settings: The user's changes, "key=value" each.
        held_out: Numbers of held-out training samples that scores are of, one for each dataset; empty if selection is test.
        layout: Parameters that table and figure show: rows, columns, x, lines, panels.
        states: State -> number of trials.
        runs: Number of different runs.
        details: Tables that are shown on demand.
        front: Numbers of the trials on the Pareto front of several goals, the best by the first goal first.
        recipes: Number of a trial on the front, as a string -> its recipe.
        skipped: Column, or "row, column" for a cell alone -> why it was not run.
        systems: What is compared with the baseline.
        chosen: What the searches of tuned rows chose, by row and key.
        failures: A line for each trial that gave no number.
        remarks: What a reader has to know, a line each.
        figures: File names, PNG and SVG, relative to this file.
    """

    format: int = Field(1, ge=1, le=1)
    kind: Literal["sweep", "reproduction", "benchmark"] = "sweep"
    name: str
    title: str
    source: str = ""
    notes: list[str] = Field([])
    command: str | None = None
    started: str = ""
    finished: str | None = None
    size: str | None = None
    settings: list[str] = Field([])
    goals: list[GoalResult] = Field([])
    unit: str = "percent"
    take: str | None = None
    selection: str = "test"
    seeds: list[int] = Field([])
    held_out: list[int] = Field([])
    search: SearchResult | None = None
    layout: dict[str, str | None] = Field({})
    states: dict[str, int] = Field({})
    runs: int = 0
    trials: list[TrialResult]
    tables: list[TableResult]
    details: list[TableResult] = Field([])
    best: BestTrial | None = None
    front: list[int] = Field([])
    recipes: dict[str, str] = Field({})
    skipped: dict[str, str] = Field({})
    agreement: Agreement | None = None
    baseline: str | None = None
    systems: list[System] = Field([])
    chosen: dict[str, dict[str, Any]] = Field({})
    failures: list[str] = Field([])
    remarks: list[str] = Field([])
    figures: list[str] = Field([])

    @model_validator(mode="after")
    def _check(self) -> "StudyResults":
        numbers = {trial.number for trial in self.trials}
        if not {*self.front, *([self.best.trial] if self.best else [])} <= numbers:
            raise ValueError("the best and the front are trials that are not in it")
        return self
