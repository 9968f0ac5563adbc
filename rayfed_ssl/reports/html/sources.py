"""What a report is about: runs, directories of runs, sweeps, and reproductions of a paper's tables."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.schemas import DiagnosticsFile, ReproductionFile, SweepFile, damage
from rayfed_ssl.reports.measurements import read_measurements
from rayfed_ssl.reports.summary import Summary, summarize


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """A run as the report reads it.

    Attributes:
        name: The directory's own name; two runs of one name are told apart by their parents'.
        directory: Where it lies.
        record: Its record.
        summary: The same in numbers.
        evaluations: Rows that `rayfed-ssl evaluate --protocol` has added.
        diagnostics: RUN/diagnostics.json (`reports/diagnose.py` says what is in it), or None.
        place: What it was made for: row and columns of a paper's table, the point of a sweep's trial, or "".
    """

    name: str
    directory: Path
    record: RunRecord
    summary: Summary
    evaluations: tuple[Row, ...] = ()
    diagnostics: dict[str, Any] | None = None
    place: str = ""


@dataclass(frozen=True)
class Reproduction:
    """Where a reproduction lies, and its `reproduction.json` (`reproductions/definition.py` says what is in it)."""

    directory: Path
    content: dict[str, Any]


@dataclass(frozen=True)
class SweepResults:
    """Where a sweep lies, and its `results.json` (`tune/sweeps/results/summary.py` says what is in it)."""

    directory: Path
    content: dict[str, Any]


@dataclass(frozen=True)
class Sources:
    """All that a report is about.

    Attributes:
        words: The directories by name, as on the command line.
        runs: Runs in the order in which they were named, none twice.
        reproductions: Tables and figures of papers.
        left_out: One line for each run or table that could not be read, and for runs of a table that are gone.
        sweeps: Sweeps that have results.
    """

    words: tuple[str, ...]
    runs: tuple[ReportedRun, ...]
    reproductions: tuple[Reproduction, ...] = ()
    left_out: tuple[str, ...] = ()
    sweeps: tuple[SweepResults, ...] = ()


@dataclass
class _Found:
    runs: dict[Path, bool] = field(default_factory=dict)
    """Directories of runs, each with whether the user named it: such a one is not left out."""
    reproductions: list[Reproduction] = field(default_factory=list)
    sweeps: list[SweepResults] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def open_sources(directories: Sequence[Path]) -> Sources:
    """Open runs, sweeps and reproductions. A table is shown without its runs where these are gone.

    Raises:
        ConfigError: A directory holds none of them, or a run or a table that was named is damaged.
    """
    found = _Found()
    for directory in directories:
        _find(directory, found)
    runs, left_out = [], found.left_out
    for directory, named in found.runs.items():
        try:
            runs.append(_open_run(directory))
        except ConfigError as error:
            if named:
                raise
            left_out.append(str(error))
    if not runs and not found.reproductions and not found.sweeps:
        raise ConfigError("\n".join(left_out))
    words = tuple(directory.resolve().name for directory in directories)
    points = _points(found.sweeps)
    places = [[*points.get(run.directory, ()), _cells(run.directory, found.reproductions)] for run in runs]
    placed = [replace(run, place="; ".join(filter(None, made))) for run, made in zip(runs, places, strict=True)]
    return Sources(words, _told_apart(placed), tuple(found.reproductions), tuple(left_out), tuple(found.sweeps))


def _points(sweeps: Sequence[SweepResults]) -> dict[Path, list[str]]:
    """Name runs for the points of the trials that they were made for."""
    found: dict[Path, list[str]] = {}
    for sweep in sweeps:
        for trial in sweep.content["trials"]:
            for run in trial["runs"]:
                found.setdefault((sweep.directory / run).resolve(), []).append(trial["label"])
    return found


def _cells(directory: Path, reproductions: Sequence[Reproduction]) -> str:
    """Name a run for its cells: "FLESD, α=1"; "FedBYOL, Last and Best" where columns show scores of one run."""
    columns: dict[str, list[str]] = {}
    for table in reproductions:
        for cell in table.content["cells"]:
            if any(run and (table.directory / run).resolve() == directory for run in cell.get("runs") or []):
                columns.setdefault(cell["row"], []).append(cell["column"])
    wide = any(len({cell["column"] for cell in table.content["cells"]}) > 1 for table in reproductions)
    return "; ".join(row + (f", {' and '.join(names)}" if wide else "") for row, names in columns.items())


def _find(directory: Path, found: _Found) -> None:
    if (directory / "run.json").is_file():
        found.runs[directory.resolve()] = True
    elif (directory / "reproduction.json").is_file():
        _find_reproduction(directory, found)
    elif (directory / "sweep.json").is_file():
        _find_sweep(directory, found)
    else:
        children = sorted(directory.iterdir()) if directory.is_dir() else []
        inner = [child for child in children if any((child / f"{kind}.json").is_file() for kind in _KINDS)]
        if not inner:
            raise ConfigError(
                f"{directory} holds no run, sweep or reproduction: name a directory that rayfed-ssl wrote"
            )
        for child in inner:
            if (child / "run.json").is_file():
                found.runs.setdefault(child.resolve(), False)
                continue
            find = _find_sweep if (child / "sweep.json").is_file() else _find_reproduction
            try:
                find(child, found)
            except ConfigError as error:
                found.left_out.append(str(error))


def _find_reproduction(directory: Path, found: _Found) -> None:
    content = _read_json(directory / "reproduction.json", ReproductionFile)
    found.reproductions.append(Reproduction(directory, content))
    measured, gone = 0, []
    for cell in content["cells"]:
        runs = cell.get("runs") or []
        for run, value in zip_longest(runs, (cell.get("ours") or [])[: len(runs)]):
            if run and (directory / run).is_dir():
                found.runs.setdefault((directory / run).resolve(), False)
            elif run and value is not None:
                gone.append(run)
            measured += value is not None
    if gone:
        found.left_out.append(
            f"{len(gone)} of {measured} runs of {directory}, which are not there (such as {gone[0]}): its table is shown "
            "without them"
        )


def _find_sweep(directory: Path, found: _Found) -> None:
    file = directory / "results.json"
    begun = sorted(child for child in (directory / "runs").glob("*") if (child / "run.json").is_file())
    if not file.is_file() and not begun:
        raise ConfigError(
            f"{directory} is a sweep of which no run has begun: see `rayfed-ssl sweep --status {directory}`"
        )
    for run in begun:
        found.runs.setdefault(run.resolve(), False)
    if not file.is_file():
        found.left_out.append(f"the table of {directory}: the sweep writes it when it comes to its end")
        return
    content = _read_json(file, SweepFile)
    found.sweeps.append(SweepResults(directory, content))
    there = {run.resolve() for run in begun}
    runs = {run for trial in content["trials"] if trial["reached"] for run in trial["runs"]}
    if gone := sorted(run for run in runs if (directory / run).resolve() not in there):
        found.left_out.append(
            f"{len(gone)} of {len(runs)} runs of {directory}, which are not there (such as {gone[0]}): its table is shown "
            "without them"
        )


_KINDS = ("run", "reproduction", "sweep")


def _open_run(directory: Path) -> ReportedRun:
    record = RunRecord.open(directory)
    evaluations = read_measurements(directory)
    path = directory / "diagnostics.json"
    diagnostics = _read_json(path, DiagnosticsFile) if path.is_file() else None
    return ReportedRun(directory.name, directory, record, summarize(record), tuple(evaluations), diagnostics)


def _read_json(path: Path, schema: type[BaseModel]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged ({error}): make it anew") from None
    if (wrong := damage(content, schema)) is not None:
        raise ConfigError(f"{path} is damaged ({wrong}): make it anew")
    return dict(content)


def _told_apart(runs: Sequence[ReportedRun]) -> tuple[ReportedRun, ...]:
    names = [run.name for run in runs]
    return tuple(
        run if names.count(run.name) == 1 else replace(run, name=f"{run.directory.parent.name}/{run.name}")
        for run in runs
    )
