"""Collecting a benchmark's results from all runs that are in its directory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import Summary, summarize
from rayfed_ssl.storage.filesystem import write_atomically
from tune.studies.definition.benchmark_file import BenchmarkFile, slug
from tune.studies.execution.directory import SweepDirectory
from tune.studies.results.benchmark_figures import draw_benchmark
from tune.studies.results.benchmark_results import RANDOM, BenchmarkResults, Row, RunEntry, compared
from tune.studies.results.trial_results import best_of, read_results


def write_benchmark(
    directory: Path, file: BenchmarkFile, command: str, command_of: Callable[[str, int], str]
) -> BenchmarkResults:
    """Write benchmark.json, benchmark.md and figures from the runs that have ended, whichever command ran them.

    Args:
        directory: The benchmark's.
        file: Its definition.
        command: What was asked for.
        command_of: Gives the command that runs a system with a number of seeds.
    """
    failures: dict[str, str] = {}
    rows = list(_rows(directory, file, failures))
    results = BenchmarkResults(
        title=file.title,
        command=command,
        score=file.score,
        baseline=file.baseline,
        notes=list(file.notes),
        commands=_commands(rows, file, command_of),
        chosen=_chosen(directory, file, failures),
        rows=compared(rows, file.baseline, file.score),
        failures=failures,
    )
    write_atomically(directory / "benchmark.json", (results.model_dump_json(indent=1) + "\n").encode())
    write_atomically(directory / "benchmark.md", results.markdown().encode())
    draw_benchmark(results, directory)
    return results


def _commands(rows: list[Row], file: BenchmarkFile, command_of: Callable[[str, int], str]) -> dict[str, str]:
    """Write the command that makes each row, the baseline's for what its runs start from."""
    seeds: dict[str, int] = {}
    for row in rows:
        seeds[row.system] = max([seeds.get(row.system, 1), *(run.seed + 1 for run in row.runs)])
    return {
        system: command_of(file.baseline if system == RANDOM else system, number) for system, number in seeds.items()
    }


def _sweeps(directory: Path, file: BenchmarkFile) -> Iterator[tuple[str, SweepDirectory]]:
    """Open the sweeps of the systems that have one."""
    for name in file.systems:
        if (directory / slug(name) / "sweep.json").is_file():
            yield name, SweepDirectory.open(directory / slug(name))


def _chosen(directory: Path, file: BenchmarkFile, failures: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Read what each search chose, and how many of its trials failed."""
    chosen = {}
    for name, sweep in _sweeps(directory / "search", file):
        trials = read_results(sweep, sweep.sweep)
        if (best := best_of(trials, sweep.sweep.goals)) is not None:
            chosen[name] = dict(best.point)
        if failed := [trial for trial in trials if trial.state == "failed"]:
            failures[f"search for {name}"] = f"{len(failed)} of {len(trials)} trials failed ({failed[0].reason})"
    return chosen


def _rows(directory: Path, file: BenchmarkFile, failures: dict[str, str]) -> Iterator[Row]:
    """Read a row for each system and split, and one for what the baseline's runs start from."""
    for name, sweep in _sweeps(directory / "comparison", file):
        for trial in read_results(sweep, sweep.sweep):
            ended = [summary for run in trial.runs if (summary := _ended(sweep.path / run)) is not None]
            split = trial.point["split"]
            if trial.state == "failed":
                failures[f"{name}, {split}"] = trial.reason
            yield Row(split=split, system=name, runs=[_entry(run, directory) for run in ended])
            if name == file.baseline:
                yield Row(split=split, system=RANDOM, runs=[_start(run, directory) for run in ended])


def _ended(run: Path) -> Summary | None:
    if not (run / "run.json").is_file():
        return None
    summary = summarize(RunRecord.open(run))
    return summary if summary.finished else None


def _entry(run: Summary, directory: Path) -> RunEntry:
    start = [knn for knn in [run.start("knn")] if knn is not None]
    return RunEntry(
        seed=run.config.seed,
        run=str(run.directory.relative_to(directory)),
        scores={name: score for name in _names(run) if (score := run.headline(name)) is not None},
        bytes=run.bytes_up + run.bytes_down,
        seconds=run.seconds,
        state_sha256=run.state_sha256,
        epochs=[0] * len(start) + [point.round * run.config.epochs for point in run.curve],
        knn=[*start, *(point.knn for point in run.curve)],
    )


def _start(run: Summary, directory: Path) -> RunEntry:
    """Describe what a run starts from as a run that did nothing."""
    scores = {name: score for name in _names(run) if (score := run.start(name)) is not None}
    changes = {"scores": scores, "bytes": 0, "seconds": 0.0, "state_sha256": None, "epochs": [], "knn": []}
    return _entry(run, directory).model_copy(update=changes)


def _names(run: Summary) -> list[str]:
    return list(dict.fromkeys(name for scores in run.scores.values() for name in scores))
