"""Rows compared with a baseline: means over seeds, paired differences, ranks and costs, from all runs that have ended."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import Summary, summarize
from tune.studies.definition.schema import COLUMN, ROW, Goal, StudyFile, slug
from tune.studies.execution.directory import StudyDirectory
from tune.studies.results.results import Difference, ScoreResult, TableCell, TableResult, TrialResult
from tune.studies.results.trial_results import best_of, error_of, is_better, read_results

CONFIDENCE = 0.95

RANDOM = "Random encoder"
"""The row of what the baseline's runs start from."""

SEARCHES, ROWS = "search", "rows"
"""Directories of the studies that tune rows, and that run them."""


def opened(directory: Path, file: StudyFile) -> Iterator[tuple[str, StudyDirectory]]:
    """Open the studies of the rows that have one."""
    for name in file.rows:
        if (directory / slug(name) / "study.json").is_file():
            yield name, StudyDirectory.open(directory / slug(name))


def read_chosen(directory: Path, file: StudyFile, failures: list[str]) -> dict[str, dict[str, Any]]:
    """Read what each search chose, and add a line for each of which trials failed."""
    chosen = {}
    for name, search in opened(directory / SEARCHES, file):
        trials = read_results(search, search.study)
        if (best := best_of(trials, search.study.goals)) is not None:
            chosen[name] = dict(best.point)
        if failed := [trial for trial in trials if trial.state == "failed"]:
            failures.append(f"search for {name}: {len(failed)} of {len(trials)} trials failed ({failed[0].reason})")
    return chosen


def read_systems(directory: Path, file: StudyFile, failures: list[str]) -> list[TrialResult]:
    """Read each row in each column, and what the baseline's runs start from; add a line for each that failed."""
    systems: list[TrialResult] = []
    for name, row in opened(directory / ROWS, file):
        for trial in read_results(row, row.study):
            column = trial.point.get(COLUMN, "all")
            if trial.state == "failed":
                failures.append(f"{name}, {column}: {trial.reason}")
            ended = [summary for run in trial.runs if (summary := _ended(row.path / run)) is not None]
            runs = [str(run.directory.relative_to(directory)) for run in ended]
            made = {"runs": runs, "digests": [run.state_sha256 for run in ended]}
            systems.append(_system(trial, name, column, ended, Summary.headline).model_copy(update=made))
            if name == file.baseline:
                nothing = {"runs": [], "bytes": 0.0, "seconds": 0.0}
                systems.append(_system(trial, RANDOM, column, ended, Summary.start).model_copy(update=nothing))
    return [system.model_copy(update={"number": number}) for number, system in enumerate(systems)]


def _ended(run: Path) -> Summary | None:
    if not (run / "run.json").is_file():
        return None
    summary = summarize(RunRecord.open(run))
    return summary if summary.finished else None


def _system(
    trial: TrialResult,
    row: str,
    column: str,
    ended: Sequence[Summary],
    read: Callable[[Summary, str], float | None],
) -> TrialResult:
    """Describe a row in a column by those of its runs that have ended, whose scores `read` gives."""
    names = dict.fromkeys(name for run in ended for scores in run.scores.values() for name in scores)
    values = {name: [value for run in ended if (value := read(run, name)) is not None] for name in names}
    changes: dict[str, Any] = {
        "label": f"{row}, {column}",
        "point": {ROW: row, COLUMN: column},
        "seeds": [run.config.seed for run in ended],
        "bytes": fmean(run.bytes_up + run.bytes_down for run in ended) if ended else 0.0,
        "seconds": fmean(run.seconds for run in ended) if ended else 0.0,
        "values": {name: ScoreResult.of(each) for name, each in values.items() if len(each) == len(ended)},
    }
    return trial.model_copy(update=changes)


def paired_difference(pairs: Sequence[tuple[float, float]]) -> Difference:
    """Compare scores that are paired by their seed."""
    from scipy import stats  # takes a second to import

    differences = [score - base for score, base in pairs]
    mean, n = fmean(differences), len(differences)
    if n < 2:
        return Difference(mean=mean, low=None, high=None, n=n)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(differences))
    return Difference(mean=mean, low=mean - half, high=mean + half, n=n)


def compared(systems: Sequence[TrialResult], baseline: str, score: str) -> list[TrialResult]:
    """Add differences from the baseline, and ranks: 1 + the number of systems that are better beyond two standard errors."""
    compared = []
    for system in systems:
        column = [other for other in systems if other.point[COLUMN] == system.point[COLUMN]]
        base = next((_by_seed(other, score) for other in column if other.point[ROW] == baseline), {})
        own = _by_seed(system, score)
        pairs = [(own[seed], base[seed]) for seed in own if seed in base]
        changes: dict[str, Any] = {}
        if pairs and system.point[ROW] != baseline:
            changes["versus"] = paired_difference(pairs)
        if score in system.values:
            scored = [other for other in column if score in other.values]
            changes["rank"] = 1 + sum(is_better(other, system, Goal(score=score, maximize=True)) for other in scored)
        compared.append(system.model_copy(update=changes))
    return compared


def _by_seed(system: TrialResult, score: str) -> dict[int, float]:
    return dict(zip(system.seeds, system.values[score].each, strict=True)) if score in system.values else {}


def system_table(systems: Sequence[TrialResult], column: str, score: str, baseline: str) -> TableResult:
    """Lay out a column's systems in the order of their scores."""
    head = ["system", "rank", f"{score} (%)", f"minus {baseline} [95 %]", "kNN (%)", "MB", "seconds", "seeds"]
    mine = [system for system in systems if system.point[COLUMN] == column]
    scored = sorted((system for system in mine if score in system.values), key=lambda each: -each.values[score].mean)
    ranked = [*scored, *(system for system in mine if score not in system.values)]
    lines = [list(_cells(system, score)) for system in ranked]
    errors = [error_of(scored[0], system, score) for system in scored[1:]]
    remarks = []
    if any(errors):
        remarks.append(
            f"A rank counts the systems that are higher by more than two standard errors: up to {100 * max(errors):.2f} "
            f"points each, by {scored[0].samples:,} test pictures."
        )
    return TableResult(goal=score, title=column, head=head, lines=lines, remarks=remarks)


def _cells(system: TrialResult, score: str) -> Iterator[TableCell]:
    yield TableCell(text=system.point[ROW])
    yield TableCell(text=str(system.rank or "-"), mean=system.rank)
    for mean in (system.mean(score), system.versus, system.mean("knn")):
        if mean is None:
            yield TableCell(text="-")
        else:
            text = mean.text if isinstance(mean, Difference) else mean.text(symbol=False)
            yield TableCell(text=text, mean=mean.mean)
    for value, digits in ((system.bytes / 1e6, 2), (system.seconds, 0)):
        yield TableCell(text=f"{value:.{digits}f}", mean=value) if system.seeds else TableCell(text="-")
    yield TableCell(text=str(len(system.seeds)), mean=len(system.seeds))
