"""What a report is about: runs, directories of runs, sweeps, benchmarks and reproductions of a paper's tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Generic

from pydantic import ValidationError

from rayfed_ssl.config.strict import Model, explain
from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.reading import read_json
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.benchmark_results import BenchmarkResults
from rayfed_ssl.reports.diagnose import FILE, Diagnostics
from rayfed_ssl.reports.reproduction_results import ReproductionResults
from rayfed_ssl.reports.rescoring import read_measurements
from rayfed_ssl.reports.summary import Summary, summarize
from rayfed_ssl.reports.sweep_results import SweepResults
from rayfed_ssl.storage.own_files import refuse_links_out


@dataclass(eq=False)
class ReportedRun:
    """A run as the report reads it.

    Its name is the directory's, after its parent's where two runs have one name. Its label is the row and the columns of a
    paper's table, or the point of a sweep's trial, that it is for. Evaluations are rows of `rayfed-ssl evaluate --protocol`.
    """

    name: str
    record: RunRecord
    summary: Summary
    evaluations: tuple[Row, ...] = ()
    diagnostics: Diagnostics | None = None
    label: str = ""


@dataclass(frozen=True)
class ReportedTable(Generic[Model]):
    """The directory of a reproduction, a sweep or a benchmark, and what it holds as JSON."""

    directory: Path
    results: Model


ReportedReproduction = ReportedTable[ReproductionResults]
ReportedSweep = ReportedTable[SweepResults]
ReportedBenchmark = ReportedTable[BenchmarkResults]


@dataclass
class Sources:
    """All that a report is about: what the named directories hold, and a line for each run or table that is left out.

    `paths` says which of the runs the user has named.
    """

    names: list[str]
    runs: list[ReportedRun] = field(default_factory=list)
    reproductions: list[ReportedReproduction] = field(default_factory=list)
    sweeps: list[ReportedSweep] = field(default_factory=list)
    benchmarks: list[ReportedBenchmark] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    paths: dict[Path, bool] = field(default_factory=dict)

    def keep(self, add: Callable[[Path], None], path: Path, named: bool) -> None:
        """Add what a directory holds; what is damaged is an error if it was named, and else left out."""
        try:
            refuse_links_out(path)
            add(path)
        except ConfigError as error:
            if named:
                raise
            self.left_out.append(str(error))

    def add(self, directory: Path) -> None:
        """Search a directory that was named, or those in it."""
        if self._add(directory, named=True):
            return
        children = sorted(directory.iterdir()) if directory.is_dir() else []
        if not sum(self._add(child, named=False) for child in children):
            raise ConfigError(
                f"{directory} holds no run, sweep, benchmark or reproduction: name a directory that rayfed-ssl wrote"
            )

    def _add(self, directory: Path, named: bool) -> bool:
        if (directory / "run.json").is_file():
            self.paths[directory.resolve()] = named or self.paths.get(directory.resolve(), False)
        elif (directory / "reproduction.json").is_file():
            self.keep(self._add_reproduction, directory, named)
        elif (directory / "benchmark.json").is_file():
            self.keep(self._add_benchmark, directory, named)
        elif (directory / "sweep.json").is_file():
            self.keep(self._add_sweep, directory, named)
        else:
            return False
        return True

    def _add_reproduction(self, directory: Path) -> None:
        results = _read_json(directory / "reproduction.json", ReproductionResults)
        self.reproductions.append(ReportedReproduction(directory, results))
        runs = [
            (run, value is not None)
            for cell in results.cells
            for run, value in zip_longest(cell.runs, cell.ours)
            if run
        ]
        self._add_runs(directory, runs)

    def _add_benchmark(self, directory: Path) -> None:
        results = _read_json(directory / "benchmark.json", BenchmarkResults)
        self.benchmarks.append(ReportedBenchmark(directory, results))
        self._add_runs(directory, [(run.run, True) for row in results.rows for run in row.runs])

    def _add_sweep(self, directory: Path) -> None:
        started = [f"runs/{path.parent.name}" for path in sorted(directory.glob("runs/*/run.json"))]
        if not (directory / "results.json").is_file():
            if not started:
                raise ConfigError(
                    f"{directory} is a sweep of which no run has begun: see `rayfed-ssl sweep --status {directory}`"
                )
            self._add_runs(directory, [(run, False) for run in started])
            self.left_out.append(f"the table of {directory}: the sweep writes it at its end")
            return
        results = _read_json(directory / "results.json", SweepResults)
        self.sweeps.append(ReportedSweep(directory, results))
        measured = {run: True for trial in results.trials if trial.reached for run in trial.runs}
        self._add_runs(directory, (dict.fromkeys(started, False) | measured).items())

    def _add_runs(self, directory: Path, runs: Iterable[tuple[str, bool]]) -> None:
        """Add the runs of a table, each with whether it has a number there: then it is missed."""
        runs = list(runs)
        missing = [run for run, has_number in runs if has_number and not (directory / run).is_dir()]
        for run, _ in runs:
            if (directory / run).is_dir():
                self.paths.setdefault((directory / run).resolve(), False)
        if missing:
            self.left_out.append(
                f"{len(missing)} of {sum(number for _, number in runs)} runs of {directory}, which are missing (such as "
                f"{missing[0]}): its table is shown without them"
            )


def open_sources(directories: Sequence[Path], *, trust: bool = False) -> Sources:
    """Open runs, sweeps and reproductions; one that was named and is damaged, or none, is a ConfigError."""
    sources = Sources([directory.resolve().name for directory in directories])
    for directory in directories:
        sources.add(directory)
    for path, named in sources.paths.items():
        sources.keep(lambda path: sources.runs.append(_open_run(path, trust)), path, named)
    if not sources.runs and not sources.reproductions and not sources.sweeps and not sources.benchmarks:
        raise ConfigError(*sources.left_out)
    names = [run.name for run in sources.runs]
    for run in sources.runs:
        directory = run.record.directory
        labels = [*_points(directory, sources.sweeps), *_cells(directory, sources.reproductions)]
        run.label = "; ".join([*labels, *_systems(directory, sources.benchmarks)])
        if names.count(run.name) > 1:
            run.name = f"{directory.parent.name}/{run.name}"
    return sources


def _points(directory: Path, sweeps: Sequence[ReportedSweep]) -> list[str]:
    """Name the points of the trials that a run is for."""
    return [
        trial.label
        for sweep in sweeps
        for trial in sweep.results.trials
        if any((sweep.directory / run).resolve() == directory for run in trial.runs)
    ]


def _cells(directory: Path, reproductions: Sequence[ReportedReproduction]) -> list[str]:
    """Name the cells that a run is for: "FLESD, α=1"; "FedBYOL, Last and Best" where columns show scores of one run."""
    columns: dict[str, list[str]] = {}
    for table in reproductions:
        for cell in table.results.cells:
            if any(run and (table.directory / run).resolve() == directory for run in cell.runs):
                columns.setdefault(cell.row, []).append(cell.column)
    wide = any(len({cell.column for cell in table.results.cells}) > 1 for table in reproductions)
    return [row + (f", {' and '.join(names)}" if wide else "") for row, names in columns.items()]


def _systems(directory: Path, benchmarks: Sequence[ReportedBenchmark]) -> list[str]:
    """Name the systems and splits that a run is for."""
    return [
        f"{row.system}, {row.split}"
        for benchmark in benchmarks
        for row in benchmark.results.rows
        if any((benchmark.directory / run.run).resolve() == directory for run in row.runs)
    ]


def _open_run(directory: Path, trust: bool) -> ReportedRun:
    record, path = RunRecord.open(directory, trust=trust), directory / FILE
    diagnostics = _read_json(path, Diagnostics) if path.is_file() else None
    return ReportedRun(directory.name, record, summarize(record), tuple(read_measurements(directory)), diagnostics)


def _read_json(path: Path, model: type[Model]) -> Model:
    try:
        return model.model_validate(read_json(path))
    except (OSError, ValueError) as error:
        problem = next(explain(error, model)) if isinstance(error, ValidationError) else reason(error)
        raise ConfigError(f"{path} is damaged ({problem}): make it anew") from None
