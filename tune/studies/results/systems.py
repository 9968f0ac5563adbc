"""Rows compared with a baseline: means over seeds, paired differences, ranks and costs, from all runs that have ended."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import Summary, summarize
from tune.studies.definition.schema import COLUMN, StudyFile, slug
from tune.studies.definition.study import Study
from tune.studies.execution.directory import StudyDirectory
from tune.studies.results.results import Difference, StudyResults, System, SystemRun, TableCell, TableLine, TableResult
from tune.studies.results.trial_results import best_of, read_results

CONFIDENCE = 0.95

RANDOM = "Random encoder"
"""The row of what the baseline's runs start from."""

SEARCHES, ROWS = "search", "rows"
"""Directories of the studies that tune rows, and that run them."""


def summarize_systems(directory: Path, study: Study, command: str, commands: Mapping[str, str]) -> StudyResults:
    """Compare the rows by the runs that have ended, whichever command ran them; `commands` make each row."""
    failures: list[str] = []
    score = study.goals[0].score
    systems = compared(list(_systems(directory, study, failures)), str(study.baseline), score)
    chosen = _chosen(directory, study, failures)
    columns = list(dict.fromkeys(system.column for system in systems))
    return StudyResults(
        kind="benchmark",
        name=study.name,
        title=study.heading,
        source=study.source,
        notes=list(study.notes),
        command=command,
        settings=list(study.overrides),
        trials=[],
        tables=[system_table(systems, column, score, str(study.baseline)) for column in columns],
        details=_details(systems, chosen, commands),
        baseline=study.baseline,
        systems=systems,
        chosen=chosen,
        failures=failures,
        remarks=[f"Failed, {line}" for line in failures],
        layout={"score": score},
    )


def _details(
    systems: Sequence[System], chosen: Mapping[str, Mapping[str, Any]], commands: Mapping[str, str]
) -> list[TableResult]:
    settings = [[row, ", ".join(f"{key}={value}" for key, value in point.items())] for row, point in chosen.items()]
    made = {system.row: commands.get(system.row, "") for system in systems if system.row != RANDOM}
    runs = [
        [system.column, system.row, str(run.seed), run.run, run.state_sha256 or "-"]
        for system in systems
        for run in system.runs
    ]
    return [
        TableResult.of("What the searches chose", ["system", "settings"], settings),
        TableResult.of(
            "What makes each row", ["system", "command"], [[row, f"`{text}`"] for row, text in made.items()]
        ),
        TableResult.of("Runs", ["column", "system", "seed", "run", "state_sha256"], runs),
    ]


def opened(directory: Path, file: StudyFile) -> Iterator[tuple[str, StudyDirectory]]:
    """Open the studies of the rows that have one."""
    for name in file.rows:
        if (directory / slug(name) / "study.json").is_file():
            yield name, StudyDirectory.open(directory / slug(name))


def _chosen(directory: Path, file: StudyFile, failures: list[str]) -> dict[str, dict[str, Any]]:
    """Read what each search chose, and how many of its trials failed."""
    chosen = {}
    for name, search in opened(directory / SEARCHES, file):
        trials = read_results(search, search.study)
        if (best := best_of(trials, search.study.goals)) is not None:
            chosen[name] = dict(best.point)
        if failed := [trial for trial in trials if trial.state == "failed"]:
            failures.append(f"search for {name}: {len(failed)} of {len(trials)} trials failed ({failed[0].reason})")
    return chosen


def _systems(directory: Path, file: StudyFile, failures: list[str]) -> Iterator[System]:
    """Read each row in each column, and what the baseline's runs start from."""
    for name, row in opened(directory / ROWS, file):
        for trial in read_results(row, row.study):
            ended = [summary for run in trial.runs if (summary := _ended(row.path / run)) is not None]
            column = trial.point.get(COLUMN, "all")
            if trial.state == "failed":
                failures.append(f"{name}, {column}: {trial.reason}")
            yield System(row=name, column=column, runs=[_run(run, directory) for run in ended])
            if name == file.baseline:
                yield System(row=RANDOM, column=column, runs=[_start(run, directory) for run in ended])


def _ended(run: Path) -> Summary | None:
    if not (run / "run.json").is_file():
        return None
    summary = summarize(RunRecord.open(run))
    return summary if summary.finished else None


def _run(run: Summary, directory: Path) -> SystemRun:
    start = [knn for knn in [run.start("knn")] if knn is not None]
    return SystemRun(
        seed=run.config.seed,
        run=str(run.directory.relative_to(directory)),
        scores={name: score for name in _names(run) if (score := run.headline(name)) is not None},
        bytes=run.bytes_up + run.bytes_down,
        seconds=run.seconds,
        state_sha256=run.state_sha256,
        epochs=[0] * len(start) + [point.round * run.config.epochs for point in run.curve],
        knn=[*start, *(point.knn for point in run.curve)],
    )


def _start(run: Summary, directory: Path) -> SystemRun:
    """Describe what a run starts from as a run that did nothing."""
    scores = {name: score for name in _names(run) if (score := run.start(name)) is not None}
    changes = {"scores": scores, "bytes": 0, "seconds": 0.0, "state_sha256": None, "epochs": [], "knn": []}
    return _run(run, directory).model_copy(update=changes)


def _names(run: Summary) -> list[str]:
    return list(dict.fromkeys(name for scores in run.scores.values() for name in scores))


def paired_difference(pairs: Sequence[tuple[float, float]]) -> Difference:
    """Compare scores that are paired by their seed."""
    from scipy import stats  # takes a second to import

    differences = [score - base for score, base in pairs]
    mean, n = fmean(differences), len(differences)
    if n < 2:
        return Difference(mean=mean, low=None, high=None, n=n)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(differences))
    return Difference(mean=mean, low=mean - half, high=mean + half, n=n)


def compared(systems: Sequence[System], baseline: str, score: str) -> list[System]:
    """Add ranks and differences from the baseline, column by column."""
    compared = []
    for column in dict.fromkeys(system.column for system in systems):
        mine = [system for system in systems if system.column == column]
        base = {run.seed: run for system in mine if system.row == baseline for run in system.runs}
        means = {system.row: mean.mean for system in mine if (mean := system.mean(score)) is not None}
        ranks = {row: 1 + sum(other > mean for other in means.values()) for row, mean in means.items()}
        for system in mine:
            pairs = [
                (run.scores[score], base[run.seed].scores[score])
                for run in system.runs
                if run.seed in base and score in run.scores and score in base[run.seed].scores
            ]
            difference = paired_difference(pairs) if pairs and system.row != baseline else None
            compared.append(system.model_copy(update={"difference": difference, "rank": ranks.get(system.row)}))
    return compared


def system_table(systems: Sequence[System], column: str, score: str, baseline: str) -> TableResult:
    """Lay out a column's systems in the order of their ranks."""
    head = ["system", "rank", f"{score} (%)", f"minus {baseline} [95 %]", "kNN (%)", "MB", "seconds", "seeds"]
    mine = [system for system in systems if system.column == column]
    ranked = sorted(mine, key=lambda system: (system.rank or 10**6, system.row))
    lines = [TableLine(label=system.row, cells=list(_cells(system, score))) for system in ranked]
    remarks = [line for line in [spread(mine, score)] if line]
    return TableResult(goal=score, title=column, head=head, lines=lines, remarks=remarks)


def _cells(system: System, score: str) -> Iterator[TableCell]:
    yield TableCell(text=str(system.rank or "-"), mean=system.rank)
    for mean in (system.mean(score), system.difference, system.mean("knn")):
        if mean is None:
            yield TableCell(text="-")
        else:
            text = mean.text if isinstance(mean, Difference) else mean.text(symbol=False)
            yield TableCell(text=text, mean=mean.mean)
    for costs, scale, digits in (("bytes", 1e-6, 2), ("seconds", 1.0, 0)):
        values = [scale * getattr(run, costs) for run in system.runs]
        yield TableCell(text=f"{fmean(values):.{digits}f}", mean=fmean(values)) if values else TableCell(text="-")
    yield TableCell(text=str(len(system.runs)), mean=len(system.runs))


def spread(systems: Sequence[System], score: str) -> str:
    """Compare the spread between systems with that between the seeds of a system, for the score and kNN."""
    parts = []
    for name in dict.fromkeys((score, "knn")):
        means = [mean for system in systems if system.row != RANDOM and (mean := system.mean(name)) is not None]
        within = [mean.std**2 for mean in means if mean.std is not None]
        if len(means) > 1:
            seeds = f"{100 * fmean(within) ** 0.5:.2f} between seeds" if within else "one seed of each"
            parts.append(f"{name} {100 * stdev(mean.mean for mean in means):.2f} between systems, {seeds}")
    if not parts:
        return ""
    return (
        f"Standard deviation in points: {'; '.join(parts)} (between systems: of their means; between seeds: root of the "
        "systems' mean variance; without the random encoder)."
    )
