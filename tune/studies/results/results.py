"""`results.json` of a study: its trials, its tables, the best and the Pareto front, and what is compared with what.

Values are fractions and bytes; texts, published numbers and differences from these are in the table's unit.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.formats import MeanStd
from rayfed_ssl.reports.table import Table


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


class TrialResult(StrictModel):
    """A trial.

    Attributes:
        point: Its values, and `label` the same as text.
        state: complete, stopped, failed or waiting.
        seeds: Of its runs; none where the settings are impossible.
        runs: A directory for each seed, relative to this file.
        reached: Rounds that all of them have reached, of `rounds`.
        bytes: Mean over seeds, as `seconds` that rounds took.
        samples: Test pictures, or held-out ones, that scores are of; 0 where that is not known.
        values: Goal's score, or the cell's -> values; empty where the trial is not complete.
        published: The paper's number, and `difference` ours minus that, both in the study's unit.
        unlike: Why ours and the published number are not compared: another dataset or score.
        rank: Of its mean in its column, from 1, and `versus` the baseline, in a benchmark.
        digests: The `state_sha256` of each run.
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
    seconds: float = 0.0
    samples: int = 0
    values: dict[str, ScoreResult]
    score: str | None = None
    take: str | None = None
    published: float | None = None
    difference: float | None = None
    unlike: str | None = None
    rank: int | None = None
    versus: Difference | None = None
    digests: list[str | None] = Field([])

    def mean(self, score: str | None) -> MeanStd | None:
        """Mean and deviation of a score; None where it has none."""
        return self.values[score].over_seeds() if score in self.values else None


class Agreement(StrictModel):
    """Kendall's tau-b between our means and the published numbers, over all cells that have both and within each column."""

    cells: int = 0
    kendall: float | None = None
    columns: dict[str, float | None] = Field({})


class StudyResults(StrictModel):
    """`results.json`.

    Attributes:
        finished: When it ended; null where trials are missing.
        settings: The user's changes, "key=value" each.
        details: Tables that are shown on demand.
        best: Number of the best complete trial by the first goal, whose recipe is best.yaml.
        front: Numbers of the trials on the Pareto front of several goals, the best by the first goal first.
        skipped: Column, or "row, column" for a cell alone -> why it was not run.
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
    selection: str = "test"
    seeds: list[int] = Field([])
    trials: list[TrialResult]
    tables: list[Table]
    details: list[Table] = Field([])
    best: int | None = None
    front: list[int] = Field([])
    skipped: dict[str, str] = Field({})
    agreement: Agreement | None = None
    chosen: dict[str, dict[str, Any]] = Field({})
    failures: list[str] = Field([])
    remarks: list[str] = Field([])
    figures: list[str] = Field([])

    @model_validator(mode="after")
    def _check(self) -> "StudyResults":
        numbers = {trial.number for trial in self.trials}
        if not {*self.front, self.best} <= {*numbers, None}:
            raise ValueError("the best and the front are trials that are not in it")
        return self
