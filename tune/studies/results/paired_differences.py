"""Rows compared with a baseline: means over seeds, paired differences, ranks and costs, from all runs that have ended."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.sources import read_model
from rayfed_ssl.reports.summary import summarize
from rayfed_ssl.reports.table import Cell, Table
from tune.studies.definition.schema import COLUMN, ROW, Goal, StudyFile, slug
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import RUN
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.scores import TrialRows, record_trials
from tune.studies.execution.trial_table import Row
from tune.studies.results.results import Difference, StudyResults, TrialResult
from tune.studies.results.trial_results import error_of, is_better, results_of
from tune.studies.search.search import Search

CONFIDENCE = 0.95

RANDOM = "Random encoder"
"""The row of what the baseline's runs start from."""

SEARCHES = "search"
"""Directory of the studies that tune rows."""


def read_searches(directory: Path, study: StudyFile, *, trust: bool = False) -> Iterator[tuple[str, StudyResults]]:
    """Read the results of the search of each row that has some."""
    for name in study.rows:
        search = directory / SEARCHES / slug(name)
        if (search / "results.json").is_file():
            StudyDirectory.open(search, trust=trust).check_trusted()  # what was chosen may name code
            yield name, read_model(search / "results.json", StudyResults)


def read_systems(directory: StudyDirectory, study: Study) -> list[TrialResult]:
    """Read each row in each column from its runs that have ended, and what the baseline's runs start from.

    Runs of rows and seeds that earlier calls asked for count too.
    """
    seeds = {int(name[1]) for run in directory.runs.glob("*/run.json") if (name := RUN.fullmatch(run.parent.name))}
    search = Search(study.model_copy(update={"seeds": tuple(sorted(seeds))}))
    while search.next() is not None:
        pass
    rows = TrialRows(directory.runs).of(search.study, record_trials(search))
    ended = [row | {"state": "complete", "point": {COLUMN: "all"} | row["point"]} for row in rows if row["finished"]]
    starts = [_at_start(directory.path, row) for row in ended if row["point"][ROW] == study.baseline]
    nothing: dict[str, Any] = {"runs": [], "digests": []}
    systems = list(results_of(study, ended))
    systems += [system.model_copy(update=nothing) for system in results_of(study, starts)]
    return [system.model_copy(update={"number": number}) for number, system in enumerate(systems)]


def _at_start(directory: Path, row: Row) -> Row:
    """Describe a run before its first round, as the random encoder's."""
    summary = summarize(RunRecord.open(directory / row["run"]))
    scores = {name: summary.start(name.removeprefix("score.")) for name in row if name.startswith("score.")}
    return row | {"point": row["point"] | {ROW: RANDOM}, "bytes": 0, "seconds": 0.0} | scores


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
        scores = _by_seed(system, score)
        pairs = [(scores[seed], base[seed]) for seed in scores if seed in base]
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


def system_table(systems: Sequence[TrialResult], column: str, score: str, baseline: str) -> Table:
    """Lay out a column's systems in the order of their scores."""
    head = ["system", "rank", f"{score} (%)", f"minus {baseline} [95 %]", "kNN (%)", "MB", "seconds", "seeds"]
    mine = [system for system in systems if system.point[COLUMN] == column]
    scored = sorted((system for system in mine if score in system.values), key=lambda each: -each.values[score].mean)
    ranked = [*scored, *(system for system in mine if score not in system.values)]
    errors = [error_of(scored[0], system, score) for system in scored[1:]]
    remarks = []
    if any(errors):
        remarks.append(
            f"A rank counts the systems that are higher by more than two standard errors: up to {100 * max(errors):.2f} "
            f"points each, by {scored[0].samples:,} test pictures."
        )
    return Table.of(column, head, [_cells(system, score) for system in ranked], goal=score, remarks=remarks)


def _cells(system: TrialResult, score: str) -> Iterator[object]:
    yield system.point[ROW]
    yield system.rank or "-"
    for mean in (system.mean(score), system.versus, system.mean("knn")):
        if mean is None:
            yield "-"
        else:
            text = mean.text if isinstance(mean, Difference) else mean.text(symbol=False)
            yield Cell(text=text, mean=mean.mean)
    for value, digits in ((system.bytes / 1e6, 2), (system.seconds, 0)):
        yield Cell(text=f"{value:.{digits}f}", mean=value) if system.seeds else "-"
    yield len(system.seeds)
