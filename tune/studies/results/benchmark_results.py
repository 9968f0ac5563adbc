"""A benchmark's table: means over seeds, paired differences from the baseline, ranks and costs."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.formats import MeanStd

CONFIDENCE = 0.95

RANDOM = "Random encoder"
"""The row of what the baseline's runs start from."""


class RunEntry(StrictModel):
    """A run of a system on a split.

    Attributes:
        run: Its directory, from the benchmark's.
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


class Difference(StrictModel):
    """Mean of a system's score minus the baseline's with the same seed, and its 95 % interval by Student's t.

    Attributes:
        low, high: None for a single seed.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> "Difference":
        """Compare scores that are paired by their seed."""
        from scipy import stats  # takes a second to import

        differences = [score - base for score, base in pairs]
        mean, n = fmean(differences), len(differences)
        if n < 2:
            return cls(mean=mean, low=None, high=None, n=n)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(differences))
        return cls(mean=mean, low=mean - half, high=mean + half, n=n)

    @property
    def text(self) -> str:
        """Write it in points: "+1.20 [-0.31, +2.71]"."""
        if self.low is None or self.high is None:
            return f"{100 * self.mean:+.2f}"
        return f"{100 * self.mean:+.2f} [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"


class Row(StrictModel):
    """A system on a split; `rank` 1 is the best mean of those with a score."""

    split: str
    system: str
    runs: list[RunEntry]
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


class BenchmarkResults(StrictModel):
    """`benchmark.json`.

    Attributes:
        commands: What makes a system's rows, by system.
        chosen: What the searches chose, by system and key.
        failures: Why runs failed, by system and split.
    """

    title: str
    command: str
    score: str
    baseline: str
    notes: list[str]
    commands: dict[str, str]
    chosen: dict[str, dict[str, Any]]
    rows: list[Row]
    failures: dict[str, str]

    def table(self, split: str) -> tuple[list[str], list[list[str]]]:
        """Head and lines of a split's table."""
        head = [
            "rank",
            "system",
            f"{self.score} (%)",
            f"minus {self.baseline} [95 %]",
            "kNN (%)",
            "MB",
            "seconds",
            "seeds",
        ]
        rows = sorted((row for row in self.rows if row.split == split), key=lambda row: (row.rank or 10**6, row.system))
        return head, [self._line(row) for row in rows]

    def _line(self, row: Row) -> list[str]:
        score, knn = row.mean(self.score), row.mean("knn")
        return [
            str(row.rank or "-"),
            row.system,
            "-" if score is None else score.text(symbol=False),
            "-" if row.difference is None else row.difference.text,
            "-" if knn is None else knn.text(symbol=False),
            f"{fmean(run.bytes for run in row.runs) / 1e6:.2f}" if row.runs else "-",
            f"{fmean(run.seconds for run in row.runs):.0f}" if row.runs else "-",
            str(len(row.runs)),
        ]

    def spread(self, split: str) -> str:
        """Compare the spread between systems with that between the seeds of a system, for the score and kNN."""
        parts = []
        for score in dict.fromkeys((self.score, "knn")):
            means = [row.mean(score) for row in self.rows if row.split == split and row.system != RANDOM]
            between = [mean.mean for mean in means if mean is not None]
            within = [mean.std**2 for mean in means if mean is not None and mean.std is not None]
            if len(between) > 1:
                seeds = f"{100 * fmean(within) ** 0.5:.2f} between seeds" if within else "one seed of each"
                parts.append(f"{score} {100 * stdev(between):.2f} between systems, {seeds}")
        if not parts:
            return ""
        return (
            f"Standard deviation in points: {'; '.join(parts)} (between systems: of their means; between seeds: root of the "
            "systems' mean variance; without the random encoder)."
        )

    @property
    def splits(self) -> list[str]:
        """The splits' names."""
        return list(dict.fromkeys(row.split for row in self.rows))

    def markdown(self) -> str:
        """Write all tables, the settings that the searches chose, and the digests of the runs."""
        text = [f"# {self.title}", "", f"    {self.command}", "", *(f"- {note}" for note in self.notes), ""]
        text += [f"- Failed, {name}: {why}" for name, why in self.failures.items()] + [""] * bool(self.failures)
        for split in self.splits:
            head, lines = self.table(split)
            text += [f"## {split}", "", *_markdown(head, lines), "", self.spread(split), ""]
        settings = [
            [name, ", ".join(f"{key}={value}" for key, value in point.items())] for name, point in self.chosen.items()
        ]
        text += ["## What the searches chose", "", *_markdown(["system", "settings"], settings), ""]
        commands = [[name, f"`{command}`"] for name, command in self.commands.items()]
        text += ["## What makes each row", "", *_markdown(["system", "command"], commands), ""]
        digests = [
            [row.split, row.system, str(run.seed), run.run, run.state_sha256 or "-"]
            for row in self.rows
            for run in row.runs
        ]
        text += ["## Runs", "", *_markdown(["split", "system", "seed", "run", "state_sha256"], digests), ""]
        return "\n".join(text)


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rows = [head, ["---"] * len(head), *lines]
    return [f"| {' | '.join(row)} |" for row in rows]


def compared(rows: Sequence[Row], baseline: str, score: str) -> list[Row]:
    """Add ranks and differences from the baseline, split by split."""
    compared = []
    for split in dict.fromkeys(row.split for row in rows):
        mine = [row for row in rows if row.split == split]
        base = {run.seed: run for row in mine if row.system == baseline for run in row.runs}
        means = {row.system: mean.mean for row in mine if (mean := row.mean(score)) is not None}
        ranks = {system: 1 + sum(other > mean for other in means.values()) for system, mean in means.items()}
        for row in mine:
            pairs = [
                (run.scores[score], base[run.seed].scores[score])
                for run in row.runs
                if run.seed in base and score in run.scores and score in base[run.seed].scores
            ]
            difference = Difference.of(pairs) if pairs and row.system != baseline else None
            compared.append(row.model_copy(update={"difference": difference, "rank": ranks.get(row.system)}))
    return compared
