"""Studies as an HTML report takes them in: their runs, what each is for, and a section of the page."""

from functools import partial
from itertools import zip_longest
from pathlib import Path

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reports.html.sources import ReportedTable, read_model
from tune.studies.results.benchmark_results import BenchmarkResults
from tune.studies.results.benchmark_section import benchmark_section
from tune.studies.results.reproduction_results import ReproductionResults
from tune.studies.results.reproduction_section import reproduction_section
from tune.studies.results.sweep_results import SweepResults
from tune.studies.results.sweep_section import sweep_section


def read_study(directory: Path) -> ReportedTable | None:
    """Read the study in a directory; None where there is none.

    Raises:
        ConfigError: Its file is damaged, or no run of it has begun.
    """
    if (directory / "reproduction.json").is_file():
        return _reproduction(directory)
    if (directory / "benchmark.json").is_file():
        return _benchmark(directory)
    return _sweep(directory) if (directory / "sweep.json").is_file() else None


def _reproduction(directory: Path) -> ReportedTable:
    results = read_model(directory / "reproduction.json", ReproductionResults)
    runs: dict[str, bool] = {}
    columns: dict[str, dict[str, list[str]]] = {}
    for cell in results.cells:
        for run, value in zip_longest(cell.runs, cell.ours):
            if run:
                runs[run] = runs.get(run, False) or value is not None
                columns.setdefault(run, {}).setdefault(cell.row, []).append(cell.column)
    wide = len({cell.column for cell in results.cells}) > 1
    labels = {
        run: "; ".join(row + (f", {' and '.join(dict.fromkeys(names))}" if wide else "") for row, names in rows.items())
        for run, rows in columns.items()
    }
    section = partial(reproduction_section, directory, results)
    return ReportedTable(directory, "reproduction", runs, labels, section)


def _benchmark(directory: Path) -> ReportedTable:
    results = read_model(directory / "benchmark.json", BenchmarkResults)
    labels = {run.run: f"{row.system}, {row.split}" for row in results.rows for run in row.runs}
    runs = dict.fromkeys(labels, True)
    return ReportedTable(directory, "benchmark", runs, labels, partial(benchmark_section, results))


def _sweep(directory: Path) -> ReportedTable:
    started = {f"runs/{path.parent.name}": False for path in sorted(directory.glob("runs/*/run.json"))}
    if not (directory / "results.json").is_file():
        if not started:
            raise ConfigError(
                f"{directory} is a sweep of which no run has begun: see `rayfed-ssl sweep --status {directory}`"
            )
        left_out = f"the table of {directory}: the sweep writes it at its end"
        return ReportedTable(directory, "sweep", started, left_out=left_out)
    results = read_model(directory / "results.json", SweepResults)
    labels: dict[str, list[str]] = {}
    for trial in results.trials:
        for run in trial.runs:
            labels.setdefault(run, []).append(trial.label)
    measured = {run: True for trial in results.trials if trial.reached for run in trial.runs}
    joined = {run: "; ".join(texts) for run, texts in labels.items()}
    return ReportedTable(directory, "sweep", started | measured, joined, partial(sweep_section, directory, results))
