"""Rows compared with a baseline: means over seeds, paired differences, ranks and costs, from all runs that have ended."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import Summary, summarize
from tune.studies.definition.schema import COLUMN, ROW, Goal, StudyFile, slug
from tune.studies.definition.study import Study
from tune.studies.execution.directory import StudyDirectory
from tune.studies.results.results import Difference, ScoreResult, TableCell, TableResult, TrialResult
from tune.studies.results.trial_results import best_of, error_of, is_better, read_results
from tune.studies.search.search import Search

CONFIDENCE = 0.95

RANDOM = "Random encoder"
"""The row of what the baseline's runs start from."""

SEARCHES = "search"
"""Directory of the studies that tune rows."""


def read_searches(
    directory: Path, study: StudyFile, *, trust: bool = False
) -> Iterator[tuple[str, Sequence[TrialResult], TrialResult | None]]:
    """Read the search of each row that has one: its trials, and the best of them."""
    for name in study.rows:
        if (directory / SEARCHES / slug(name) / "study.json").is_file():
            search = StudyDirectory.open(directory / SEARCHES / slug(name), trust=trust)
            search.check_trusted()  # what was chosen may name code
            trials = read_results(search, search.study)
            yield name, trials, best_of(trials, search.study.goals)


def read_systems(directory: StudyDirectory, study: Study) -> list[TrialResult]:
    """Read each row in each column from its runs that have ended, and what the baseline's runs start from.

    Runs of rows and seeds that earlier calls asked for count too.
    """
    summaries = [summarize(RunRecord.open(file.parent)) for file in sorted(directory.runs.glob("*/run.json"))]
    ended = {summary.directory.name: summary for summary in summaries if summary.finished}
    search = Search(study.model_copy(update={"seeds": tuple(sorted({run.config.seed for run in ended.values()}))}))
    while search.next() is not None:
        pass
    asked = {trial.label: trial for trial in read_results(directory, directory.study)}
    systems: list[TrialResult] = []
    for trial in search.trials:
        row, label = study.rows[trial.point[ROW]], study.label(trial.point)
        runs = [ended[name] for name in trial.names if name in ended and (row.chosen or not row.tune)]
        if label in asked or runs:
            point = {COLUMN: "all"} | trial.point
            system = _system(len(systems), label, point, runs, Summary.headline)
            made = {
                "runs": [f"runs/{run.directory.name}" for run in runs],
                "digests": [run.state_sha256 for run in runs],
            }
            state = {} if label not in asked else {"state": asked[label].state, "reason": asked[label].reason}
            systems.append(system.model_copy(update=made | state))
            if trial.point[ROW] == study.baseline:
                start = _system(len(systems), RANDOM, point | {ROW: RANDOM}, runs, Summary.start)
                systems.append(start.model_copy(update={"bytes": 0.0, "seconds": 0.0}))
    return systems


def _system(
    number: int,
    label: str,
    point: dict[str, Any],
    runs: Sequence[Summary],
    read: Callable[[Summary, str], float | None],
) -> TrialResult:
    """Describe a row in a column by its runs, whose scores `read` gives."""
    names = dict.fromkeys(name for run in runs for scores in run.scores.values() for name in scores)
    values = {name: [value for run in runs if (value := read(run, name)) is not None] for name in names}
    return TrialResult(
        number=number,
        label=label,
        point=point,
        state="complete",
        reason="",
        seeds=[run.config.seed for run in runs],
        runs=[],
        reached=min((run.rounds for run in runs), default=0),
        rounds=runs[0].config.rounds if runs else None,
        bytes=fmean(run.bytes_up + run.bytes_down for run in runs) if runs else 0.0,
        seconds=fmean(run.seconds for run in runs) if runs else 0.0,
        samples=min((run.samples for run in runs), default=0),
        values={name: ScoreResult.of(each) for name, each in values.items() if len(each) == len(runs)},
    )


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
